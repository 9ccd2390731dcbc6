"""What attention remembers between steps: everything on full layers, a ring of the window on sliding ones."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from checkpoints.config import ModelConfig
from pallas_kernels.attention import EntryLayout, entry_layout, pack, store_entries

EMPTY = -1
"""The position of a cache entry, or of an input token, that does not exist."""

PAGE = 128
"""Tokens in a page of a full layer."""

_TILE = 16
"""Tokens in a tile of a TPU's memory: a page of a shorter sequence is a multiple of it."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class LayerCache:
    """One layer's entries [B, M, U, R, P, L], and the position of each, int32 [B, M·P], or EMPTY.

    A slot's entries are M pages of P tokens; `pallas_kernels.attention.layout` says how a page holds keys and
    values. A token at position p is kept at index p mod M·P. On a full layer M·P is at least the longest
    sequence, so nothing is ever overwritten; on a sliding layer there is one page, as long as the window, so
    exactly what a query may still see is there.
    """

    entries: jax.Array
    positions: jax.Array

    def write(self, keys: jax.Array, values: jax.Array, positions: jax.Array) -> LayerCache:
        """Stores T new tokens, keys and values [B, T, K, h], at positions [B, T] (EMPTY: not stored)."""
        batch, size = self.positions.shape
        pages, units, rows, page, lanes = self.entries.shape[1:]
        # Of a chunk longer than the ring only the last M·P tokens stay; each index is then written once.
        newest = jnp.max(positions, axis=1, keepdims=True)
        kept = (positions >= 0) & (positions > newest - size)
        index = jnp.where(kept, positions % size, size)  # size is out of range: dropped
        slot = jnp.arange(batch, dtype=jnp.int32)[:, None]
        number = jnp.where(kept, slot * pages + index // page, EMPTY)
        entries = pack(keys, values, EntryLayout(units, rows, lanes))
        where = (number, index % page)
        if positions.shape[1] == 1:
            entries, where = entries[:, 0], (number[:, 0], index[:, 0] % page)
        return LayerCache(
            store_entries(self.pool()[0], entries, *where).reshape(self.entries.shape),
            self.positions.at[slot, index].set(positions, mode="drop"),
        )

    def pool(self) -> tuple[jax.Array, jax.Array]:
        """All slots' pages as one pool [B·M, U, R, P, L], and the table int32 [B, M]: slots own theirs."""
        batch, pages = self.entries.shape[:2]
        table = jnp.arange(batch * pages, dtype=jnp.int32).reshape(batch, pages)
        return self.entries.reshape(batch * pages, *self.entries.shape[2:]), table

    def ring(self) -> tuple[jax.Array, jax.Array]:
        """The entries of a sliding layer [B, U, R, W, L] and their positions, int32 [B, W]."""
        return self.entries[:, 0], self.positions


Cache = tuple[LayerCache, ...]
"""One `LayerCache` per layer."""


def new_cache(config: ModelConfig, batch: int, length: int, dtype: DTypeLike) -> Cache:
    """An empty cache for `batch` sequences of at most `length` tokens: keys and values of `dtype`."""
    units, rows, lanes = entry_layout(config.num_kv_heads, config.head_size)

    def layer(index: int) -> LayerCache:
        window = config.window(index)
        if window is None:
            page = min(-(-length // _TILE) * _TILE, PAGE)
            pages = -(-length // page)
        else:
            page, pages = min(length, window), 1
        return LayerCache(
            jnp.zeros((batch, pages, units, rows, page, lanes), dtype),
            jnp.full((batch, pages * page), EMPTY, jnp.int32),
        )

    return tuple(layer(index) for index in range(config.num_layers))


def take_rows(cache: Cache, rows: jax.Array, *, fresh: jax.Array) -> Cache:
    """The cache of some slots: `rows` int32 [n]; those with `fresh` bool [n] come back empty."""

    def take(layer: LayerCache) -> LayerCache:
        positions = jnp.where(fresh[:, None], EMPTY, layer.positions.at[rows].get(mode="clip"))
        return LayerCache(layer.entries.at[rows].get(mode="clip"), positions)

    return tuple(take(layer) for layer in cache)


def put_rows(cache: Cache, rows: jax.Array, part: Cache) -> Cache:
    """Writes the cache of some slots back; a row index past the last slot is dropped."""
    return jax.tree.map(lambda whole, piece: whole.at[rows].set(piece, mode="drop"), cache, part)
