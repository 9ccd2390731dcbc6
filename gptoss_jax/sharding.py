"""How a model lies on a mesh: three axes, and one table of what is split along which.

The whole of a step runs inside one `jax.shard_map`: code sees the arrays of its own device, and says where
devices must talk. `data` and `expert` split the batch, `tensor` the attention heads and the vocabulary, and
`expert` and `tensor` together the experts. So along `data` a model is repeated; along `expert` its experts
are spread while each device has sequences of its own; along `tensor` everything is spread.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import jax
import numpy as np
from jax.sharding import AbstractMesh, Mesh, PartitionSpec

from checkpoints.config import ModelConfig

DATA, EXPERT, TENSOR = "data", "expert", "tensor"
AXES = (DATA, EXPERT, TENSOR)

_SPLIT: dict[str, tuple[str, ...]] = {
    "batch": (DATA, EXPERT),  # slots, pages and rings
    "sampled": (DATA, EXPERT, TENSOR),  # slots while they are sampled: a row needs its whole vocabulary
    "vocabulary": (TENSOR,),
    "heads": (TENSOR,),
    "experts": (EXPERT, TENSOR),
}
"""Logical axis → the mesh axes that it is split along."""

_PARAMETERS: tuple[tuple[str, tuple[str | None, ...]], ...] = (
    ("embedding.weight", ("vocabulary",)),  # the unembedding's too
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
"""Part of a parameter's name → the logical axes of its first dimensions. All others are on every device."""


class ShardingError(ValueError):
    """A mesh that does not fit the devices or the model; the message is one line and says why."""


class MeshShape(NamedTuple):
    """Devices along each axis."""

    data: int = 1
    expert: int = 1
    tensor: int = 1

    @property
    def batch_shards(self) -> int:
        """Parts that the batch is split into."""
        return self.data * self.expert

    @property
    def expert_shards(self) -> int:
        """Parts that the experts are split into."""
        return self.expert * self.tensor

    def __str__(self) -> str:
        return ", ".join(f"{name} {size}" for name, size in zip(AXES, self, strict=True))


def split(*axes: str | None) -> PartitionSpec:
    """The partition of an array whose dimensions have these logical axes (None: not split)."""
    return PartitionSpec(*(None if axis is None else _SPLIT[axis] for axis in axes))


def parameter_split(name: str) -> PartitionSpec:
    """The partition of a parameter, by its name in `checkpoints.parameters` or in the model's state."""
    for part, axes in _PARAMETERS:
        if part in name:
            return split(*axes)
    return PartitionSpec()


def choose_shape(config: ModelConfig, devices: int) -> MeshShape:
    """A good mesh for a model on that many devices.

    `tensor` first, as it splits everything that a decode step reads, up to the number of KV heads; then
    `expert`, which splits all but attention's weights and the vocabulary; what is left repeats the model.
    """
    tensor = math.gcd(devices, math.gcd(config.num_kv_heads, config.num_experts))
    expert = math.gcd(devices // tensor, config.num_experts // tensor)
    return MeshShape(devices // (tensor * expert), expert, tensor)


def check_shape(config: ModelConfig, shape: MeshShape, devices: int) -> None:
    """Raises `ShardingError` if the model cannot lie on such a mesh of that many devices."""
    for name, size in zip(AXES, shape, strict=True):
        if size < 1:
            raise ShardingError(f"the mesh axis {name} is {size}: it must be a whole number from 1")
    if math.prod(shape) != devices:
        raise ShardingError(f"the mesh ({shape}) has {math.prod(shape)} devices: there are {devices}")
    if config.num_kv_heads % shape.tensor:
        raise ShardingError(
            f"the mesh axis tensor is {shape.tensor}: it must divide the model's {config.num_kv_heads} KV "
            "heads"
        )
    if config.num_experts % shape.expert_shards:
        raise ShardingError(
            f"the mesh axes expert · tensor are {shape.expert_shards}: they must divide the model's "
            f"{config.num_experts} experts"
        )


def make_mesh(
    config: ModelConfig, shape: MeshShape | None = None, devices: Sequence[jax.Device] | None = None
) -> Mesh:
    """A mesh over the devices (default: all there are), of a given shape or a good one.

    Raises `ShardingError` if the shape does not fit.
    """
    devices = jax.devices() if devices is None else devices
    shape = choose_shape(config, len(devices)) if shape is None else MeshShape(*shape)
    check_shape(config, shape, len(devices))
    if devices[0].platform == "tpu" and len(devices) > 1:
        from jax.experimental import mesh_utils

        # Knows which chips are neighbours: the last axis, which talks most, gets the nearest ones. An axis
        # need not be a whole side of the slice: 8 of the devices of a 4x4 are a side and half of another.
        arranged = mesh_utils.create_device_mesh(tuple(shape), list(devices), allow_split_physical_axes=True)
        return Mesh(arranged, AXES)
    return Mesh(np.array(devices).reshape(tuple(shape)), AXES)


def shape_of(mesh: Mesh | AbstractMesh) -> MeshShape:
    """The sizes of a mesh's axes."""
    return MeshShape(*(mesh.shape[axis] for axis in AXES))


def padded_vocabulary(config: ModelConfig, tensor: int) -> int:
    """Vocabulary rows that `tensor` devices can share out evenly; those past the model's own are zeros."""
    return -(-config.vocabulary_size // tensor) * tensor


def axis_size(axis: str) -> int:
    """Devices along a mesh axis; 1 outside `jax.shard_map`, where a model runs on one device."""
    try:
        return jax.lax.axis_size(axis)
    except NameError:
        return 1


def sum_over(axis: str, x: jax.Array) -> jax.Array:
    """The sum of all devices' x along a mesh axis, on each of them."""
    return jax.lax.psum(x, axis) if axis_size(axis) > 1 else x
