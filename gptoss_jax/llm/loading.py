"""From a checkpoint's path to an engine that runs it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jax.sharding import Mesh
    from jax.typing import DTypeLike

    from checkpoints import Checkpoint
    from gptoss_jax.engine import Engine
    from harmony import HarmonyEncoding

DTYPES = ("float32", "bfloat16")


def load_engine(
    path: str | Path, *, dtype: DTypeLike | None = None, mesh: Mesh | None = None, **options: Any
) -> tuple[Engine, HarmonyEncoding, Checkpoint]:
    """The engine of a checkpoint ("tiny": the one in the package), its encoding and the checkpoint.

    `dtype`: float32 or bfloat16; None takes what suits the device. `options` are those of
    `gptoss_jax.engine.options.EngineOptions`; one that is None has its default.

    Raises:
        checkpoints.config.CheckpointError: the checkpoint is none, or does not fit its vocabulary.
        gptoss_jax.engine.RequestError: the dtype or an option is none that can be.
    """
    import jax
    import jax.numpy as jnp

    from checkpoints import open_checkpoint
    from gptoss_jax.engine import Engine, RequestError
    from gptoss_jax.engine.options import EngineOptions
    from gptoss_jax.model import load
    from gptoss_jax.vocabulary import load_encoding_for

    if dtype is None:
        dtype = "float32" if jax.default_backend() == "cpu" else "bfloat16"
    try:
        known = jnp.dtype(dtype).name in DTYPES
    except TypeError:
        known = False
    if not known:
        raise RequestError(f"dtype is {dtype!r}: it must be {' or '.join(DTYPES)}")
    chosen = EngineOptions(**{name: value for name, value in options.items() if value is not None})
    checkpoint = open_checkpoint(path)
    encoding = load_encoding_for(checkpoint)
    stops = [*encoding.stop_tokens_for_assistant_actions(), encoding.end_of_text]
    model = load(checkpoint, jnp.dtype(dtype), mesh)
    return Engine(model, stops, encoding=encoding, mesh=mesh, options=chosen), encoding, checkpoint
