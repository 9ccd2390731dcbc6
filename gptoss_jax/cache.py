"""What attention remembers between steps: pages on full layers, a ring of the window on sliding ones.

A sequence's tokens on full layers lie in pages of a pool that all sequences share; one table of page numbers
serves all layers. A sliding layer keeps a ring for each slot, so a long context costs it nothing. The ring is
longer than the window by some slack: so many of the newest tokens can be taken back, and what the window then
shows is still there. Rings of further rows hold snapshots, from which a later request with the same beginning
starts; the last row is for rows of a chunk that have nothing to do.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
from jax.typing import DTypeLike

from checkpoints.config import ModelConfig
from gptoss_jax.sharding import split
from pallas_kernels.attention import EntryLayout, entry_layout, pack, store_entries

EMPTY = -1
"""The position of a cache entry, or of an input token, that does not exist."""


class CacheShape(NamedTuple):
    """The sizes of one batch shard's cache, in rows and tokens.

    `slots` and `snapshots` are rows of rings; `ring` is the window and the slack, in tokens.
    """

    pages: int
    page_size: int
    slots: int
    ring: int
    snapshots: int = 0

    @property
    def ring_rows(self) -> int:
        """Slots, snapshots, and one that takes what nobody needs."""
        return self.slots + self.snapshots + 1


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Cache:
    """The entries of all layers; `pallas_kernels.attention.layout` says how keys and values lie in them.

    `pools`: one [N, U, R, P, L] for each full layer. `rings`: one [S, U, R, W, L] for each sliding layer, the
    entry of position p at index p mod W. `held` int32 [S, W]: the position of each of a ring's entries, the
    same on all layers, or EMPTY.
    """

    pools: tuple[jax.Array, ...]
    rings: tuple[jax.Array, ...]
    held: jax.Array


def new_cache(
    config: ModelConfig, shape: CacheShape, dtype: DTypeLike, *, batch_shards: int = 1, head_shards: int = 1
) -> Cache:
    """An empty cache of all shards, keys and values of `dtype`."""
    units, rows, lanes = entry_layout(config.num_kv_heads, config.head_size, head_shards)
    pool = (batch_shards * shape.pages, units, rows, shape.page_size, lanes)
    ring = (batch_shards * shape.ring_rows, units, rows, shape.ring, lanes)
    sliding = [config.window(index) is not None for index in range(config.num_layers)]
    return Cache(
        tuple(jnp.zeros(pool, dtype) for slides in sliding if not slides),
        tuple(jnp.zeros(ring, dtype) for slides in sliding if slides),
        jnp.full((batch_shards * shape.ring_rows, shape.ring), EMPTY, jnp.int32),
    )


def cache_split(config: ModelConfig) -> Cache:
    """How a cache is split over a mesh, a partition in place of each array."""
    entries: PartitionSpec = split("batch", "heads")
    sliding = [config.window(index) is not None for index in range(config.num_layers)]
    return Cache(
        tuple(entries for slides in sliding if not slides),  # type: ignore[misc]
        tuple(entries for slides in sliding if slides),  # type: ignore[misc]
        split("batch"),  # type: ignore[arg-type]
    )


class Places(NamedTuple):
    """Where the tokens of a step are kept, B sequences with T tokens each.

    `table` int32 [B, M]: the pages of each sequence; entries past those in use may be any page. `pages`,
    `rows` int32 [B, T]: the page of each token on full layers and its row there. `slots` int32 [B]: the ring
    of each sequence; None when decoding, where ring b is that of sequence b. `indices` int32 [B, T]: the
    place of each token in its ring, W where it is not kept there. `before`, `held` int32 [B, W]: what the
    rings hold before and after the step.
    """

    table: jax.Array
    pages: jax.Array
    rows: jax.Array
    slots: jax.Array | None
    indices: jax.Array
    before: jax.Array
    held: jax.Array


def places_to_decode(cache: Cache, table: jax.Array, positions: jax.Array) -> tuple[Places, jax.Array]:
    """Where one token of each of the first B slots goes: table int32 [B, M], positions int32 [B] or EMPTY.

    Returns the places, and the cache's new `held`.
    """
    batch, ring = positions.size, cache.held.shape[1]
    exists = positions >= 0
    indices = jnp.where(exists, positions % ring, ring)
    held = cache.held.at[jnp.arange(batch), indices].set(positions, mode="drop")
    pages, rows = _pages_of(cache, table, positions[:, None])
    places = Places(table, pages, rows, None, indices[:, None], cache.held[:batch], held[:batch])
    return places, held


def places_to_prefill(
    cache: Cache, table: jax.Array, positions: jax.Array, slots: jax.Array, fresh: jax.Array
) -> tuple[Places, jax.Array]:
    """Where a chunk's tokens go: table int32 [n, M], positions int32 [n, T], consecutive, EMPTY behind them;
    slots int32 [n]; the rings of sequences with `fresh` bool [n] are empty, whatever they hold.

    Returns the places, and the cache's new `held`.
    """
    ring = cache.held.shape[1]
    before = jnp.where(fresh[:, None], EMPTY, cache.held[slots])
    # Of a chunk longer than the ring only the last W tokens stay; each index is then written once.
    newest = jnp.max(positions, axis=1, keepdims=True)
    kept = (positions >= 0) & (positions > newest - ring)
    indices = jnp.where(kept, positions % ring, ring)
    after = before.at[jnp.arange(slots.size)[:, None], indices].set(positions, mode="drop")
    pages, rows = _pages_of(cache, table, positions)
    return Places(table, pages, rows, slots, indices, before, after), cache.held.at[slots].set(after)


def _pages_of(cache: Cache, table: jax.Array, positions: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The page of each token and its row there, int32 [B, T]; tokens that do not exist have no page."""
    if not cache.pools:
        return positions, positions
    size = cache.pools[0].shape[3]
    columns = jnp.where(positions >= 0, positions // size, table.shape[1])
    pages = jnp.take_along_axis(table, columns, axis=1, mode="fill", fill_value=EMPTY)
    return pages, positions % size


def write_pages(pool: jax.Array, keys: jax.Array, values: jax.Array, places: Places) -> jax.Array:
    """A pool of a full layer with T new tokens, keys and values [B, T, K, h], in it."""
    entries = pack(keys, values, _layout(pool))
    if places.slots is None:
        return store_entries(pool, entries[:, 0], places.pages[:, 0], places.rows[:, 0])
    return store_entries(pool, entries, places.pages, places.rows)


def write_rings(rings: jax.Array, keys: jax.Array, values: jax.Array, places: Places) -> jax.Array:
    """The rings of a sliding layer with T new tokens, keys and values [B, T, K, h], in them."""
    entries = pack(keys, values, _layout(rings))
    indices, length = places.indices, rings.shape[3]
    row = jnp.arange(indices.shape[0], dtype=jnp.int32)
    if places.slots is None:
        kept = indices[:, 0] < length
        return store_entries(rings, entries[:, 0], jnp.where(kept, row, EMPTY), indices[:, 0] % length)
    part = take_rings(rings, places.slots)
    number = jnp.where(indices < length, row[:, None], EMPTY)
    return put_rings(rings, places.slots, store_entries(part, entries, number, indices % length))


def take_rings(rings: jax.Array, rows: jax.Array) -> jax.Array:
    """The rings of some rows, int32 [n]. Not a gather, for which a TPU would copy all rings."""
    return jnp.concatenate([jax.lax.dynamic_slice_in_dim(rings, row, 1) for row in rows])


def put_rings(rings: jax.Array, rows: jax.Array, part: jax.Array) -> jax.Array:
    """Writes the rings of some rows back; of equal rows the last one stays."""
    for index, row in enumerate(rows):
        rings = jax.lax.dynamic_update_slice_in_dim(rings, part[index : index + 1], row, 0)
    return rings


def copy_rings(cache: Cache, sources: jax.Array, targets: jax.Array) -> Cache:
    """The cache with the rings of rows `sources` int32 [n] copied to rows `targets` int32 [n]."""
    rings = tuple(put_rings(ring, targets, take_rings(ring, sources)) for ring in cache.rings)
    return Cache(cache.pools, rings, cache.held.at[targets].set(cache.held[sources]))


def _layout(entries: jax.Array) -> EntryLayout:
    return EntryLayout(entries.shape[1], entries.shape[2], entries.shape[4])
