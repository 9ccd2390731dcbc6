"""The sizes of a mesh and of a KV cache, as plain numbers; imports no jax."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:  # an import at run time would load jax
    from checkpoints.config import ModelConfig

DATA, EXPERT, TENSOR = "data", "expert", "tensor"
AXES = (DATA, EXPERT, TENSOR)
"""The names of a mesh's axes."""


class ShardingError(ValueError):
    """The mesh does not fit the devices or the model. The message is one line and says why."""


class MeshShape(NamedTuple):
    """Devices along each axis."""

    data: int = 1
    expert: int = 1
    tensor: int = 1

    @property
    def batch_shards(self) -> int:
        """The number of parts of the batch."""
        return self.data * self.expert

    @property
    def expert_shards(self) -> int:
        """The number of parts of the experts."""
        return self.expert * self.tensor

    def __str__(self) -> str:
        return ", ".join(f"{name} {size}" for name, size in zip(AXES, self, strict=True))


class CacheShape(NamedTuple):
    """The sizes of one batch shard's cache.

    pages: pages of `page_size` tokens each. slots, snapshots: each has a ring of `ring` tokens, which is the
    window and the slack.
    """

    pages: int
    page_size: int
    slots: int
    ring: int
    snapshots: int = 0

    @property
    def rings(self) -> int:
        """The number of rings: those of the slots, those of the snapshots, and a dummy."""
        return self.slots + self.snapshots + 1


def choose_shape(config: ModelConfig, devices: int) -> MeshShape:
    """A good mesh for a model on `devices` devices.

    `tensor` comes first, up to the number of KV heads, because it splits everything that a decode step reads.
    Then comes `expert`, which splits the experts only. The rest is `data`, which replicates the model.
    """
    tensor = math.gcd(devices, math.gcd(config.num_kv_heads, config.num_experts))
    expert = math.gcd(devices // tensor, config.num_experts // tensor)
    return MeshShape(devices // (tensor * expert), expert, tensor)


def check_shape(config: ModelConfig, shape: MeshShape, devices: int) -> None:
    """Raises `ShardingError` if a mesh of this shape does not fit the model or the number of devices."""
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


def padded_vocabulary(config: ModelConfig, tensor: int) -> int:
    """The number of vocabulary rows, rounded up to a multiple of `tensor`; the added rows are zeros."""
    return -(-config.vocabulary_size // tensor) * tensor
