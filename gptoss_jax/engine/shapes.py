"""The shapes, dtypes and shardings of all inputs of an engine's steps, without allocating any."""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec
from jax.typing import DTypeLike

from checkpoints.config import ModelConfig
from gptoss_jax.engine.layout import Bucket, Layout
from gptoss_jax.engine.runner import STOP_COLUMNS
from gptoss_jax.engine.sampling import idle_samplers
from gptoss_jax.engine.steps import Chunk, Masks, Rows, Slots, empty_cache, idle_slots
from gptoss_jax.model import Transformer
from gptoss_jax.model.kv_cache import KVCache, cache_split
from gptoss_jax.model.loading import abstract_model
from gptoss_jax.sharding import shape_of, split
from gptoss_jax.sizes import AXES, MeshShape, padded_vocabulary
from pallas_kernels.mxfp4.tiled import CodeFormat


def abstract_mesh(shape: MeshShape) -> AbstractMesh:
    """A mesh of a shape that has no devices: enough to compute shardings."""
    return AbstractMesh(tuple(shape), AXES)


def device_bytes(arrays: Any) -> int:
    """Bytes of one device's part of a tree of `jax.ShapeDtypeStruct`s, without the padding of tiles."""
    return sum(
        math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
        for leaf in jax.tree.leaves(arrays)
    )


@dataclasses.dataclass(frozen=True)
class EngineShapes:
    """A `jax.ShapeDtypeStruct` with its sharding for each array of an engine.

    `form`: the tile format of the expert weights for the TPU kernel; None if they are kept as published.
    """

    config: ModelConfig
    mesh: Mesh | AbstractMesh
    layout: Layout
    dtype: DTypeLike
    form: CodeFormat | None

    @functools.cached_property
    def model(self) -> Transformer:
        """The model with abstract parameters."""
        return abstract_model(self.config, self.dtype, self.mesh, self.form)

    @functools.cached_property
    def cache(self) -> KVCache:
        """The KV cache: pages and rings."""
        cache: KVCache = jax.eval_shape(lambda: empty_cache(self.config, self.layout, shape_of(self.mesh)))
        placed: KVCache = jax.tree.map(self._placed, cache, cache_split(self.config))
        return placed

    def decode_inputs(self) -> tuple[Slots, jax.Array, jax.Array, Rows, Masks, jax.Array]:
        """The inputs of the decode step after parameters and cache."""
        rows = self.layout.slots * shape_of(self.mesh).batch_shards
        columns = padded_vocabulary(self.config, shape_of(self.mesh).tensor)
        idle: Slots = jax.eval_shape(lambda: idle_slots(rows, columns))
        slots = dataclasses.replace(
            jax.tree.map(lambda array: self._placed(array, split("batch")), idle),
            counts=self._placed(idle.counts, split("sampled")),
        )
        # For one row only: idle_samplers would allocate the numpy arrays of all rows.
        samplers = jax.tree.map(
            lambda row: self._placed(
                jax.ShapeDtypeStruct((rows, *row.shape[1:]), row.dtype), split("sampled")
            ),
            idle_samplers(1),
        )
        words = jax.ShapeDtypeStruct((rows, -(-columns // 32)), jnp.uint32)
        masked = jax.ShapeDtypeStruct((rows,), jnp.bool)
        return (
            *(slots, self._integers(rows, 4), self._integers(rows, self.layout.block_columns)),
            Rows(self._integers(rows), self._integers(rows, STOP_COLUMNS), samplers),
            Masks(self._placed(words, split("sampled")), self._placed(masked, split("sampled"))),
            self._placed(jax.ShapeDtypeStruct((), jnp.int32), PartitionSpec()),
        )

    def chunk(self, bucket: Bucket) -> Chunk:
        """The inputs of a bucket's prefill step after parameters and cache."""
        rows = bucket.rows * shape_of(self.mesh).batch_shards
        return Chunk(
            self._integers(rows, bucket.tokens),
            self._integers(rows, bucket.tokens),
            self._integers(rows, self.layout.block_columns),
            self._integers(rows),
            self._placed(jax.ShapeDtypeStruct((rows,), jnp.bool), split("batch")),
        )

    def _integers(self, *sizes: int) -> Any:
        return self._placed(jax.ShapeDtypeStruct(sizes, jnp.int32), split("batch"))

    def _placed(self, array: Any, where: PartitionSpec) -> Any:
        return jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=NamedSharding(self.mesh, where))
