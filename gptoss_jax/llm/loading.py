"""From a checkpoint's path to an engine that runs it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jax.sharding import Mesh
    from jax.typing import DTypeLike

    from checkpoints import Checkpoint
    from gptoss_jax.engine import Engine
    from gptoss_jax.sharding import MeshShape
    from harmony import HarmonyEncoding

DTYPES = ("float32", "bfloat16")


def load_engine(
    path: str | Path,
    *,
    dtype: DTypeLike | None = None,
    mesh: Mesh | Sequence[int] | Mapping[str, int] | None = None,
    **options: Any,
) -> tuple[Engine, HarmonyEncoding, Checkpoint]:
    """The engine of a checkpoint ("tiny": the one in the package), its encoding and the checkpoint.

    `dtype`: float32 or bfloat16; None takes what suits the device. `mesh`: the devices the model is spread
    over, as a mesh of `gptoss_jax.sharding`, as the sizes of its axes (data, expert, tensor), or as a
    dictionary of those that are not 1; None spreads it over all devices as suits it. `options` are those of
    `gptoss_jax.engine.options.EngineOptions`; one that is None has its default.

    Raises:
        checkpoints.config.CheckpointError: the checkpoint is none, or does not fit its vocabulary.
        gptoss_jax.sharding.ShardingError: the mesh does not fit the devices or the model.
        gptoss_jax.engine.RequestError: the dtype or an option is none that can be.
        gptoss_jax.engine.memory.EngineMemoryError: it does not fit in the devices' memory.
    """
    import jax
    import jax.numpy as jnp
    from jax.sharding import Mesh

    from checkpoints import open_checkpoint
    from gptoss_jax.engine import Engine, RequestError
    from gptoss_jax.engine.engine import plan_on
    from gptoss_jax.engine.options import EngineOptions
    from gptoss_jax.model import load
    from gptoss_jax.sharding import make_mesh
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
    if not isinstance(mesh, Mesh):
        mesh = make_mesh(checkpoint.config, _shape(mesh))
    stops = [*encoding.stop_tokens_for_assistant_actions(), encoding.end_of_text]
    plan_on(mesh, checkpoint.config, chosen, jnp.dtype(dtype))  # refuses what does not fit before it loads it
    model = load(checkpoint, jnp.dtype(dtype), mesh)
    return Engine(model, stops, encoding=encoding, mesh=mesh, options=chosen), encoding, checkpoint


def _shape(mesh: Sequence[int] | Mapping[str, int] | None) -> MeshShape | None:
    from gptoss_jax.engine import RequestError
    from gptoss_jax.sharding import AXES, MeshShape

    if mesh is None:
        return None
    sizes = mesh if isinstance(mesh, Mapping) else dict(zip(AXES, mesh, strict=False))
    known = len(sizes) == len(mesh) and all(axis in AXES for axis in sizes)
    if not known or not all(isinstance(size, int) for size in sizes.values()):
        raise RequestError(f"mesh is {mesh!r}: it must be a mesh, or sizes of the axes {', '.join(AXES)}")
    return MeshShape(**sizes)
