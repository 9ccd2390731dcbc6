"""Attention with sinks over a cache of keys and values.

An *entry* [U, R, L] holds the keys and values of one token; `layout` describes it. Full layers keep entries
in pages and decode with `decode_pages`; sliding layers keep them in rings and decode with `decode_ring`.
Entries may be stored in 8 bits.
"""

from __future__ import annotations

import jax

from pallas_kernels.attention import reference
from pallas_kernels.attention.layout import EntryLayout, entry_layout, pack, saturated, unpack
from pallas_kernels.attention.reference import attend, sees
from pallas_kernels.platform import Kernel, Operation

__all__ = [
    "EntryLayout",
    "attend",
    "decode_pages",
    "decode_ring",
    "entry_layout",
    "pack",
    "prefill",
    "prefill_pages",
    "saturated",
    "sees",
    "store_entries",
    "unpack",
]

_DECODE_PAGES = Operation(
    "attention.decode_pages",
    reference.decode_pages,
    tpu=Kernel("pallas_kernels.attention.tpu:decode_pages"),
    gpu=Kernel("pallas_kernels.attention.gpu:decode_pages"),
)
_PREFILL_PAGES = Operation(
    "attention.prefill_pages",
    reference.prefill_pages,
    tpu=Kernel("pallas_kernels.attention.tpu:prefill_pages"),
    gpu=Kernel("pallas_kernels.attention.gpu:prefill_pages"),
)
_DECODE_RING = Operation(
    "attention.decode_ring",
    reference.decode_ring,
    tpu=Kernel("pallas_kernels.attention.tpu:decode_ring"),
    gpu=Kernel("pallas_kernels.attention.gpu:decode_ring"),
)
_PREFILL = Operation(
    "attention.prefill",
    reference.prefill,
    tpu=Kernel("pallas_kernels.attention.tpu:prefill"),
    gpu=Kernel("pallas_kernels.attention.gpu:prefill"),
)
# The TPU kernel stores one entry per sequence. Chunks of prompts, and every store on a GPU, are scatters
# that XLA compiles.
_STORE_ENTRIES = Operation(
    "attention.store_entries",
    reference.store_entries,
    tpu=Kernel(
        "pallas_kernels.attention.tpu:store_entries",
        serves=lambda pool, entries, pages, rows: pages.ndim == 1,
    ),
)


def decode_pages(
    q: jax.Array, pages: jax.Array, block_table: jax.Array, lengths: jax.Array, sinks: jax.Array
) -> jax.Array:
    """One query per sequence attends to all keys of its sequence, which lie in pages.

    q [B, H, h]. pages [N, U, R, P, L]: each page holds the entries of P consecutive tokens. block_table int32
    [B, M]: key i of sequence b lies in page block_table[b, i // P], row i mod P. lengths int32 [B]: the
    number of keys of each sequence, the query's own included, at most M·P. sinks [H].

    Returns [B, H, h] in q's dtype, zeros where the length is 0. Columns of the table past the last page in
    use, and rows past the last key, may hold anything.
    """
    return _DECODE_PAGES(q, pages, block_table, lengths, sinks)


def prefill_pages(
    q: jax.Array, pages: jax.Array, block_table: jax.Array, positions: jax.Array, sinks: jax.Array
) -> jax.Array:
    """T queries per sequence attend to the keys of their sequence up to their own, which lie in pages.

    q [B, T, H, h]. positions int32 [B, T]: the position of each query, negative where there is no token. The
    pages already hold the chunk's own keys, and key i has position i. pages, block_table and sinks are as in
    `decode_pages`. Returns [B, T, H, h] in q's dtype, zeros where there is no token.
    """
    return _PREFILL_PAGES(q, pages, block_table, positions, sinks)


def decode_ring(
    q: jax.Array,
    ring: jax.Array,
    cached_positions: jax.Array,
    positions: jax.Array,
    sinks: jax.Array,
    *,
    window: int | jax.Array,
) -> jax.Array:
    """One query per sequence attends to the last `window` keys, its own included, which lie in a ring.

    q [B, H, h]. ring [N, U, R, W, L], W ≥ window: row b holds the entries of sequence b in any order; rows
    from B on are not read. cached_positions int32 [B, W]: the position of each entry, negative where there is
    none (the entry may then hold any finite numbers). positions int32 [B]: the position of each query,
    negative where there is no token. sinks [H]. A query sees no key outside the window and none after its own
    position.

    Returns [B, H, h] in q's dtype, zeros where no key is seen.
    """
    return _DECODE_RING(q, ring, cached_positions, positions, sinks, window=window)


def prefill(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    positions: jax.Array,
    sinks: jax.Array,
    ring: jax.Array | None = None,
    cached_positions: jax.Array | None = None,
    *,
    window: int | None,
) -> jax.Array:
    """The T tokens of a chunk attend to each other and to the earlier tokens in a ring.

    q [B, T, H, h]; k, v [B, T, K, h]; sinks [H]. positions int32 [B, T]: consecutive, negative where there is
    no token, which is after the tokens of a row, or, without a ring, also before them. ring [B, U, R, W, L]
    and cached_positions int32 [B, W], W ≥ window - 1: the ring as it was before this chunk, the entry of
    position p at index p mod W. None: there are no earlier tokens. Positions in the ring from the chunk's
    first on are ignored. window: how many keys a query sees, its own included; None for all.

    Returns [B, T, H, h] in q's dtype, zeros where there is no token.
    """
    return _PREFILL(q, k, v, positions, sinks, ring, cached_positions, window=window)


def store_entries(pool: jax.Array, entries: jax.Array, pages: jax.Array, rows: jax.Array) -> jax.Array:
    """Writes entries into a pool of pages. The pool is updated in place if the caller donates it.

    pool [N, U, R, P, L]; a ring counts as a page of W tokens. Decoding stores entries [B, U, R, L] at int32
    pages [B], all of them different, and rows [B] of those pages. A chunk stores entries [B, T, U, R, L] at
    pages and rows [B, T]. An entry whose page is not in 0 … N - 1 is dropped. 8-bit pools saturate: what is
    larger than the dtype's largest number becomes that number.

    Returns the pool with the entries in it.
    """
    return _STORE_ENTRIES(pool, entries, pages, rows)
