"""The KV cache: pages of a pool on full layers, a ring of the window on sliding ones.

On full layers a sequence's keys and values lie in pages of a pool that all sequences share. One block table,
the numbers of each sequence's pages, is the same for all layers. On sliding layers each slot has a ring of
its newest tokens, so a long context takes no more memory there. A ring is longer than the window by some
slack: that many of the newest tokens can be taken back, and the ring still holds the whole window before
them. Further rings hold snapshots, from which later requests with the same prefix start. The last ring is a
dummy for rows of a chunk that have no sequence.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
from jax.typing import DTypeLike

from checkpoints.config import ModelConfig
from gptoss_jax.sharding import split
from gptoss_jax.sizes import CacheShape
from pallas_kernels.attention import EntryLayout, entry_layout, pack, store_entries

EMPTY = -1
"""The position of a cache entry or an input token that does not exist."""


class SlotMapping(NamedTuple):
    """Where the entries of new tokens are stored.

    pages, rows: int32 arrays of one shape, the page of each entry and its row in that page. A page EMPTY
    stores nothing. A ring counts as one page.
    """

    pages: jax.Array
    rows: jax.Array


class DecodeMetadata(NamedTuple):
    """What the attention of every layer needs to know about one new token in each of B slots.

    positions int32 [B]: EMPTY for idle slots. block_table int32 [B, M]: the pages of each sequence; columns
    past the pages in use may hold any page. in_pages, in_rings [B]: where the tokens are stored on full and
    on sliding layers. cached_positions int32 [B, W]: the position of each entry of the slots' rings, the new
    tokens included; EMPTY where there is no entry.
    """

    positions: jax.Array
    block_table: jax.Array
    in_pages: SlotMapping
    in_rings: SlotMapping
    cached_positions: jax.Array


class PrefillMetadata(NamedTuple):
    """What the attention of every layer needs to know about a chunk: T new tokens of each of n sequences.

    positions int32 [n, T]: consecutive, EMPTY after a row's tokens. block_table int32 [n, M]: the pages of
    each sequence. rings int32 [n]: the ring of each sequence. in_pages [n, T]: where the tokens are stored on
    full layers. in_rings [n, T]: where they are stored among those n rings. cached_positions int32 [n, W]:
    the position of each entry of those rings before the chunk; EMPTY where there is no entry.
    """

    positions: jax.Array
    block_table: jax.Array
    rings: jax.Array
    in_pages: SlotMapping
    in_rings: SlotMapping
    cached_positions: jax.Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class PagePool:
    """The entries of a full layer, [N pages, U, R, P tokens, L].

    `pallas_kernels.attention.layout` describes how keys and values lie in U, R and L.
    """

    entries: jax.Array

    def store_token(self, keys: jax.Array, values: jax.Array, step: DecodeMetadata) -> PagePool:
        """Stores keys and values [B, 1, K, h] of one token per slot; returns the new pool."""
        return PagePool(_store_tokens(self.entries, keys, values, step.in_pages))

    def store_chunk(self, keys: jax.Array, values: jax.Array, chunk: PrefillMetadata) -> PagePool:
        """Stores keys and values [n, T, K, h] of a chunk; returns the new pool."""
        new = pack(keys, values, _layout(self.entries))
        return PagePool(store_entries(self.entries, new, *chunk.in_pages))


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Rings:
    """The entries of a sliding layer, [rings, U, R, W tokens, L].

    The entry of position p is at index p mod W.
    """

    entries: jax.Array

    def store_token(self, keys: jax.Array, values: jax.Array, step: DecodeMetadata) -> Rings:
        """Stores keys and values [B, 1, K, h] of one token per slot; returns the new rings."""
        return Rings(_store_tokens(self.entries, keys, values, step.in_rings))

    def store_chunk(self, keys: jax.Array, values: jax.Array, chunk: PrefillMetadata) -> Rings:
        """Stores keys and values [n, T, K, h] of a chunk; returns the new rings."""
        new = pack(keys, values, _layout(self.entries))
        stored = store_entries(self.read(chunk.rings), new, *chunk.in_rings)
        return self.write(chunk.rings, stored)

    def read(self, numbers: jax.Array) -> jax.Array:
        """Reads the entries [n, U, R, W, L] of the rings `numbers`, int32 [n].

        Slices, not a gather: for a gather, a TPU would copy all rings.
        """
        return jnp.concatenate([jax.lax.dynamic_slice_in_dim(self.entries, number, 1) for number in numbers])

    def write(self, numbers: jax.Array, entries: jax.Array) -> Rings:
        """Writes entries [n, U, R, W, L] to the rings `numbers`, int32 [n].

        Of equal numbers the last one wins.
        """
        all_entries = self.entries
        for index, number in enumerate(numbers):
            part = entries[index : index + 1]
            all_entries = jax.lax.dynamic_update_slice_in_dim(all_entries, part, number, 0)
        return Rings(all_entries)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class KVCache:
    """Keys and values of all sequences.

    pools: the entries of the full layers. rings: the entries of the sliding layers. cached_positions int32
    [rings, W]: the position of each entry of a ring, the same on all layers; EMPTY where there is no entry.
    sliding: for each layer in the model's order, True if it is a sliding layer.
    """

    # All pools, then all rings: in the order of the layers, XLA's prefill step takes 1% more memory.
    pools: tuple[PagePool, ...]
    rings: tuple[Rings, ...]
    cached_positions: jax.Array
    sliding: tuple[bool, ...] = dataclasses.field(metadata={"static": True})

    @classmethod
    def of_layers(cls, layers: Sequence[PagePool | Rings], cached_positions: jax.Array) -> KVCache:
        """A cache from the entries of each layer, in the model's order."""
        return cls(
            tuple(layer for layer in layers if isinstance(layer, PagePool)),
            tuple(layer for layer in layers if isinstance(layer, Rings)),
            cached_positions,
            tuple(isinstance(layer, Rings) for layer in layers),
        )

    @property
    def layers(self) -> list[PagePool | Rings]:
        """The entries of each layer, in the model's order."""
        pools, rings = iter(self.pools), iter(self.rings)
        return [next(rings) if sliding else next(pools) for sliding in self.sliding]


def new_cache(
    config: ModelConfig, shape: CacheShape, dtype: DTypeLike, *, batch_shards: int = 1, head_shards: int = 1
) -> KVCache:
    """An empty cache with keys and values of `dtype`.

    shape: the sizes of one batch shard. batch_shards: the cache has as many times the pages and rings.
    head_shards: the devices that the KV heads are split over.
    """
    units, rows, lanes = entry_layout(config.num_kv_heads, config.head_size, head_shards)
    pool = (batch_shards * shape.pages, units, rows, shape.page_size, lanes)
    rings = (batch_shards * shape.rings, units, rows, shape.ring, lanes)
    return KVCache.of_layers(
        [
            PagePool(jnp.zeros(pool, dtype))
            if config.window(layer) is None
            else Rings(jnp.zeros(rings, dtype))
            for layer in range(config.num_layers)
        ],
        jnp.full((batch_shards * shape.rings, shape.ring), EMPTY, jnp.int32),
    )


def cache_split(config: ModelConfig) -> KVCache:
    """How a cache is split over a mesh: a cache with a `PartitionSpec` in place of each array."""
    entries: PartitionSpec = split("batch", "heads")
    kinds = (PagePool if config.window(layer) is None else Rings for layer in range(config.num_layers))
    return KVCache.of_layers([kind(entries) for kind in kinds], split("batch"))  # type: ignore[arg-type]


def decode_metadata(
    cache: KVCache, block_table: jax.Array, positions: jax.Array
) -> tuple[DecodeMetadata, jax.Array]:
    """The metadata of one token in each of the first B slots, and the cache's new `cached_positions`.

    block_table int32 [B, M]: the pages of each sequence. positions int32 [B]: EMPTY for idle slots.
    """
    batch, ring = positions.size, cache.cached_positions.shape[1]
    exists = positions >= 0
    indices = jnp.where(exists, positions % ring, ring)
    cached = cache.cached_positions.at[jnp.arange(batch), indices].set(positions, mode="drop")
    own = jnp.where(exists, jnp.arange(batch, dtype=jnp.int32), EMPTY)
    pages, rows = _in_pages(cache, block_table, positions[:, None])
    return DecodeMetadata(
        positions=positions,
        block_table=block_table,
        in_pages=SlotMapping(pages[:, 0], rows[:, 0]),
        in_rings=SlotMapping(own, indices % ring),
        cached_positions=cached[:batch],
    ), cached


def prefill_metadata(
    cache: KVCache, block_table: jax.Array, positions: jax.Array, rings: jax.Array, first_chunk: jax.Array
) -> tuple[PrefillMetadata, jax.Array]:
    """The metadata of a chunk, and the cache's new `cached_positions`.

    block_table int32 [n, M]: the pages of each sequence. positions int32 [n, T]: consecutive, EMPTY after a
    row's tokens. rings int32 [n]: the ring of each sequence. first_chunk bool [n]: True where the sequence
    starts with this chunk, so that its ring counts as empty.
    """
    ring = cache.cached_positions.shape[1]
    before = jnp.where(first_chunk[:, None], EMPTY, cache.cached_positions[rings])
    # Only the last W tokens of a chunk longer than the ring are stored, so each index is written once.
    newest = jnp.max(positions, axis=1, keepdims=True)
    kept = (positions >= 0) & (positions > newest - ring)
    indices = jnp.where(kept, positions % ring, ring)
    numbers = jnp.arange(rings.size, dtype=jnp.int32)[:, None]
    after = before.at[numbers, indices].set(positions, mode="drop")
    return PrefillMetadata(
        positions=positions,
        block_table=block_table,
        rings=rings,
        in_pages=_in_pages(cache, block_table, positions),
        in_rings=SlotMapping(jnp.where(kept, numbers, EMPTY), indices % ring),
        cached_positions=before,
    ), cache.cached_positions.at[rings].set(after)


def copy_rings(cache: KVCache, sources: jax.Array, targets: jax.Array) -> KVCache:
    """Returns the cache with the rings `sources`, int32 [n], copied to the rings `targets`, int32 [n]."""
    rings = tuple(layer.write(targets, layer.read(sources)) for layer in cache.rings)
    positions = cache.cached_positions.at[targets].set(cache.cached_positions[sources])
    return dataclasses.replace(cache, rings=rings, cached_positions=positions)


def _in_pages(cache: KVCache, block_table: jax.Array, positions: jax.Array) -> SlotMapping:
    """Where tokens at positions int32 [B, T] are stored on full layers; tokens that do not exist are not."""
    if not cache.pools:
        return SlotMapping(positions, positions)
    size = cache.pools[0].entries.shape[3]
    columns = jnp.where(positions >= 0, positions // size, block_table.shape[1])
    pages = jnp.take_along_axis(block_table, columns, axis=1, mode="fill", fill_value=EMPTY)
    return SlotMapping(pages, positions % size)


def _store_tokens(entries: jax.Array, keys: jax.Array, values: jax.Array, mapping: SlotMapping) -> jax.Array:
    return store_entries(entries, pack(keys, values, _layout(entries))[:, 0], *mapping)


def _layout(entries: jax.Array) -> EntryLayout:
    return EntryLayout(entries.shape[1], entries.shape[2], entries.shape[4])
