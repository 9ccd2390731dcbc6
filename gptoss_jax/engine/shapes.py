"""An engine without its arrays: the shape, type and partition of everything that its steps take."""

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
from gptoss_jax.cache import Cache, cache_split, new_cache
from gptoss_jax.engine.options import Bucket, Layout
from gptoss_jax.engine.runner import STOP_COLUMNS
from gptoss_jax.engine.steps import Chunk, Masks, Rows, Slots, idle_slots
from gptoss_jax.model import Transformer
from gptoss_jax.model.loading import abstract_model
from gptoss_jax.sampling import idle_samplers
from gptoss_jax.sharding import AXES, MeshShape, padded_vocabulary, shape_of, split
from pallas_kernels.mxfp4.tiled import Form


def abstract_mesh(shape: MeshShape) -> AbstractMesh:
    """A mesh of that shape over no devices in particular."""
    return AbstractMesh(tuple(shape), AXES)


def device_bytes(arrays: Any) -> int:
    """Bytes of one device's part of a tree of `jax.ShapeDtypeStruct`s, their dimensions not padded."""
    return sum(
        math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
        for leaf in jax.tree.leaves(arrays)
    )


@dataclasses.dataclass(frozen=True)
class EngineShapes:
    """A `jax.ShapeDtypeStruct`, placed on the mesh, for each array of an engine.

    `form`: that of experts rearranged for the TPU kernel, None where they are as published.
    """

    config: ModelConfig
    mesh: Mesh | AbstractMesh
    layout: Layout
    dtype: DTypeLike
    form: Form | None

    @functools.cached_property
    def model(self) -> Transformer:
        """The model, its parameters abstract."""
        return abstract_model(self.config, self.dtype, self.mesh, self.form)

    @functools.cached_property
    def cache(self) -> Cache:
        """Pages and rings."""
        shape, layout = shape_of(self.mesh), self.layout
        cache: Cache = jax.eval_shape(
            lambda: new_cache(
                self.config,
                layout.cache,
                layout.kv_dtype,
                batch_shards=shape.batch_shards,
                head_shards=shape.tensor,
            )
        )
        placed: Cache = jax.tree.map(self._placed, cache, cache_split(self.config))
        return placed

    def decode_inputs(self) -> tuple[Slots, jax.Array, jax.Array, Rows, Masks, jax.Array]:
        """What the decode step takes behind parameters and cache."""
        rows = self.layout.slots * shape_of(self.mesh).batch_shards
        columns = padded_vocabulary(self.config, shape_of(self.mesh).tensor)
        idle: Slots = jax.eval_shape(lambda: idle_slots(rows, columns))
        slots = dataclasses.replace(
            jax.tree.map(lambda array: self._placed(array, split("batch")), idle),
            counts=self._placed(idle.counts, split("sampled")),
        )
        samplers = jax.tree.map(lambda array: self._placed(array, split("sampled")), idle_samplers(rows))
        words = jax.ShapeDtypeStruct((rows, -(-columns // 32)), jnp.uint32)
        masked = jax.ShapeDtypeStruct((rows,), jnp.bool)
        return (
            *(slots, self._integers(rows, 4), self._integers(rows, self.layout.page_columns)),
            Rows(self._integers(rows), self._integers(rows, STOP_COLUMNS), samplers),
            Masks(self._placed(words, split("sampled")), self._placed(masked, split("sampled"))),
            self._placed(jax.ShapeDtypeStruct((), jnp.int32), PartitionSpec()),
        )

    def chunk(self, bucket: Bucket) -> Chunk:
        """What the prefill step of a bucket takes behind parameters and cache."""
        rows = bucket.rows * shape_of(self.mesh).batch_shards
        return Chunk(
            self._integers(rows, bucket.tokens),
            self._integers(rows, bucket.tokens),
            self._integers(rows, self.layout.page_columns),
            self._integers(rows),
            self._placed(jax.ShapeDtypeStruct((rows,), jnp.bool), split("batch")),
        )

    def _integers(self, *sizes: int) -> Any:
        return self._placed(jax.ShapeDtypeStruct(sizes, jnp.int32), split("batch"))

    def _placed(self, array: Any, where: PartitionSpec) -> Any:
        return jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=NamedSharding(self.mesh, where))
