"""What attention remembers between steps: everything on full layers, a ring of the window on sliding ones."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from checkpoints.config import ModelConfig

EMPTY = -1
"""The position of a cache entry, or of an input token, that does not exist."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class LayerCache:
    """One layer's keys and values [B, S, K, h] and the position of each entry, int32 [B, S], or EMPTY.

    A token at position p is kept at index p mod S. On a full layer S is the longest sequence, so nothing is
    ever overwritten; on a sliding layer S is the window, so exactly what a query may still see is there.
    """

    keys: jax.Array
    values: jax.Array
    positions: jax.Array

    def write(self, keys: jax.Array, values: jax.Array, positions: jax.Array) -> LayerCache:
        """Stores T new tokens, keys and values [B, T, K, h], at positions [B, T] (EMPTY: not stored)."""
        batch, size = self.positions.shape
        # Of a chunk longer than the ring only the last S tokens stay; each index is then written once.
        newest = jnp.max(positions, axis=1, keepdims=True)
        kept = (positions >= 0) & (positions > newest - size)
        index = jnp.where(kept, positions % size, size)  # size is out of range: dropped
        rows = jnp.arange(batch)[:, None]
        return LayerCache(
            self.keys.at[rows, index].set(keys, mode="drop"),
            self.values.at[rows, index].set(values, mode="drop"),
            self.positions.at[rows, index].set(positions, mode="drop"),
        )


Cache = tuple[LayerCache, ...]
"""One `LayerCache` per layer."""


def new_cache(config: ModelConfig, batch: int, length: int, dtype: DTypeLike) -> Cache:
    """An empty cache for `batch` sequences of at most `length` tokens: keys and values of `dtype`."""

    def layer(index: int) -> LayerCache:
        size = min(config.window(index) or length, length)
        shape = (batch, size, config.num_kv_heads, config.head_size)
        return LayerCache(
            jnp.zeros(shape, dtype), jnp.zeros(shape, dtype), jnp.full((batch, size), EMPTY, jnp.int32)
        )

    return tuple(layer(index) for index in range(config.num_layers))


def take_rows(cache: Cache, rows: jax.Array, *, fresh: jax.Array) -> Cache:
    """The cache of some slots: `rows` int32 [n]; those with `fresh` bool [n] come back empty."""

    def take(layer: LayerCache) -> LayerCache:
        positions = jnp.where(fresh[:, None], EMPTY, layer.positions.at[rows].get(mode="clip"))
        return LayerCache(
            layer.keys.at[rows].get(mode="clip"), layer.values.at[rows].get(mode="clip"), positions
        )

    return tuple(take(layer) for layer in cache)


def put_rows(cache: Cache, rows: jax.Array, part: Cache) -> Cache:
    """Writes the cache of some slots back; a row index past the last slot is dropped."""
    return jax.tree.map(lambda whole, piece: whole.at[rows].set(piece, mode="drop"), cache, part)
