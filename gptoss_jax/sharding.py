"""How a model is split over a mesh: three axes, and one table of what is split along which axis.

A step runs inside one `jax.shard_map`: code sees the arrays of its own device and calls collectives
explicitly. `data` and `expert` split the batch, `tensor` splits the attention heads and the vocabulary, and
`expert` and `tensor` together split the experts. So the model is replicated along `data`. Along `expert`,
only the experts are split, and each device has its own sequences. Along `tensor`, all weights are split.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import numpy as np
from jax.sharding import AbstractMesh, Mesh, PartitionSpec

from checkpoints.config import ModelConfig
from gptoss_jax.sizes import AXES, DATA, EXPERT, TENSOR, MeshShape, check_shape, choose_shape

_SPLIT: dict[str, tuple[str, ...]] = {
    "batch": (DATA, EXPERT),  # slots, pages and rings
    "sampled": (DATA, EXPERT, TENSOR),  # slots during sampling, where each row needs its whole vocabulary
    "vocabulary": (TENSOR,),
    "heads": (TENSOR,),
    "experts": (EXPERT, TENSOR),
}
"""Logical axis → the mesh axes that split it."""

_PARAMETERS: tuple[tuple[str, tuple[str | None, ...]], ...] = (
    ("embedding.weight", ("vocabulary",)),  # also matches the unembedding
    ("attention.query.weight", ("heads",)),
    ("attention.query.bias", ("heads",)),
    ("attention.key.weight", ("heads",)),
    ("attention.key.bias", ("heads",)),
    ("attention.value.weight", ("heads",)),
    ("attention.value.bias", ("heads",)),
    ("attention.sinks", ("heads",)),
    ("attention.output.weight", (None, "heads")),
    (".moe.experts.", ("experts",)),
)
"""Part of a parameter's name → the logical axes of its first dimensions. Other parameters are replicated."""


def split(*axes: str | None) -> PartitionSpec:
    """The `PartitionSpec` of an array whose dimensions have these logical axes; None: not split."""
    return PartitionSpec(*(None if axis is None else _SPLIT[axis] for axis in axes))


def parameter_split(name: str) -> PartitionSpec:
    """The `PartitionSpec` of a parameter, by its name in `checkpoints.parameters` or in the model's state."""
    for part, axes in _PARAMETERS:
        if part in name:
            return split(*axes)
    return PartitionSpec()


def make_mesh(
    config: ModelConfig, shape: MeshShape | None = None, devices: Sequence[jax.Device] | None = None
) -> Mesh:
    """Makes a mesh.

    shape: the sizes of its axes; None takes `choose_shape`. devices: None takes all devices. Raises
    `ShardingError` if the shape does not fit the model or the devices.
    """
    devices = jax.devices() if devices is None else devices
    shape = choose_shape(config, len(devices)) if shape is None else MeshShape(*shape)
    check_shape(config, shape, len(devices))
    if devices[0].platform == "tpu" and len(devices) > 1:
        from jax.experimental import mesh_utils

        # This knows which chips are neighbours: the last axis, which communicates most, gets the nearest
        # ones. An axis may be a part of a side of the slice: 8 devices of a 4x4 are one side and half of
        # the other.
        arranged = mesh_utils.create_device_mesh(tuple(shape), list(devices), allow_split_physical_axes=True)
        return Mesh(arranged, AXES)
    return Mesh(np.array(devices).reshape(tuple(shape)), AXES)


def shape_of(mesh: Mesh | AbstractMesh) -> MeshShape:
    """The sizes of the axes of a mesh."""
    return MeshShape(*(mesh.shape[axis] for axis in AXES))


def axis_size(axis: str) -> int:
    """Devices along a mesh axis; 1 outside `jax.shard_map`, where a model runs on one device."""
    try:
        return jax.lax.axis_size(axis)
    except NameError:
        return 1


def sum_over(axis: str, x: jax.Array) -> jax.Array:
    """Sums x over all devices along a mesh axis; every device gets the sum."""
    return jax.lax.psum(x, axis) if axis_size(axis) > 1 else x
