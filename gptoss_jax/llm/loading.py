"""Loads a checkpoint into an engine."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from harmony.errors import shown

if TYPE_CHECKING:
    from jax.sharding import Mesh
    from jax.typing import DTypeLike

    from checkpoints import Checkpoint
    from gptoss_jax.engine import Engine
    from gptoss_jax.engine.options import EngineKeywords
    from gptoss_jax.sizes import MeshShape
    from harmony import HarmonyEncoding

_logger = logging.getLogger(__name__)

DTYPES = ("float32", "bfloat16")


def load_engine(
    path: str | Path | Checkpoint,
    *,
    dtype: DTypeLike | None = None,
    mesh: Mesh | Sequence[int] | Mapping[str, int] | None = None,
    **options: Unpack[EngineKeywords],
) -> tuple[Engine, HarmonyEncoding, Checkpoint]:
    """Loads a checkpoint. Returns an engine that runs it, its encoding, and the opened checkpoint.

    Args:
        path: `checkpoint` of `gptoss_jax.LLM`, or a checkpoint that is open.
        dtype, mesh, options: `dtype`, `mesh` and `options` of `gptoss_jax.LLM`.

    Raises:
        checkpoints.config.CheckpointError: the checkpoint is missing or broken, or does not fit its
            vocabulary.
        gptoss_jax.sizes.ShardingError: the mesh does not fit the devices or the model.
        gptoss_jax.engine.RequestError: the dtype or an option is not allowed.
        gptoss_jax.engine.memory.EngineMemoryError: the engine does not fit in the devices' memory.
    """
    import jax
    import jax.numpy as jnp
    from jax.sharding import Mesh

    from checkpoints import Checkpoint, open_checkpoint
    from gptoss_jax.engine import Engine, RequestError
    from gptoss_jax.engine.engine import plan_on
    from gptoss_jax.engine.options import options_from
    from gptoss_jax.model import load
    from gptoss_jax.sharding import make_mesh
    from gptoss_jax.vocabulary import load_encoding_for

    if not isinstance(path, (str, os.PathLike, Checkpoint)):
        raise RequestError(f"checkpoint is {shown(path)}: it must be a folder's path, or 'tiny'")
    if dtype is None:
        dtype = "float32" if jax.default_backend() == "cpu" else "bfloat16"
    try:
        known = jnp.dtype(dtype).name in DTYPES
    except TypeError:
        known = False
    if not known:
        raise RequestError(f"dtype is {shown(dtype)}: it must be {' or '.join(DTYPES)}")
    chosen = options_from(dict(options))
    checkpoint = path if isinstance(path, Checkpoint) else open_checkpoint(path)
    encoding = load_encoding_for(checkpoint)
    warn_beyond_context(chosen.max_length, checkpoint.config.context_length)
    if not isinstance(mesh, Mesh):
        mesh = make_mesh(checkpoint.config, _shape(mesh))
    stops = [*encoding.stop_tokens_for_assistant_actions(), encoding.end_of_text]
    plan_on(mesh, checkpoint.config, chosen, jnp.dtype(dtype))  # raises before a model is loaded in vain
    model = load(checkpoint, jnp.dtype(dtype), mesh)
    return Engine(model, stops, encoding=encoding, mesh=mesh, options=chosen), encoding, checkpoint


def warn_beyond_context(max_length: int | None, context_length: int) -> None:
    """Logs a warning if `max_length` (None for the default) is above the model's context, in tokens."""
    if max_length is not None and max_length > context_length:
        _logger.warning(
            "max_length is %s: the model was made for %s tokens (max_position_embeddings)",
            f"{max_length:,}",
            f"{context_length:,}",
        )


def _shape(mesh: Sequence[int] | Mapping[str, int] | None) -> MeshShape | None:
    from gptoss_jax.engine import RequestError
    from gptoss_jax.engine.values import as_integer
    from gptoss_jax.sizes import AXES, MeshShape

    if mesh is None:
        return None
    sizes: Mapping[str, int] = {}
    if isinstance(mesh, Mapping):
        sizes = mesh
    elif isinstance(mesh, Sequence) and not isinstance(mesh, str) and len(mesh) <= len(AXES):
        sizes = dict(zip(AXES, mesh, strict=False))
    numbers = {axis: as_integer(size) for axis, size in sizes.items()}
    if not numbers or not all(axis in AXES and size for axis, size in numbers.items()):
        raise RequestError(
            f"mesh is {shown(mesh)}: it must be a mesh, or sizes of the axes {', '.join(AXES)}"
        )
    return MeshShape(**{axis: size for axis, size in numbers.items() if size is not None})
