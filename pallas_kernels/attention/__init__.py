"""Attention with sinks over a cache of entries; `layout` says how an entry [U, R, L] holds a token's keys
and values.

Pages and rings may hold entries in 8 bits.

`decode_pages` and `decode_ring` are the two kinds of layers of a decode step.
"""

from __future__ import annotations

import jax

from pallas_kernels.attention import gpu, reference, tpu
from pallas_kernels.attention.layout import EntryLayout, entry_layout, pack, saturated, unpack
from pallas_kernels.attention.reference import attend, sees
from pallas_kernels.platform import call_once, choose

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


def decode_pages(
    q: jax.Array, pages: jax.Array, table: jax.Array, lengths: jax.Array, sinks: jax.Array
) -> jax.Array:
    """One query of each sequence attends to all keys that a pool of pages holds for it.

    q [B, H, h]; pages [N, U, R, P, L], the entries of P consecutive tokens in each page; table int32
    [B, M], where key i of sequence b stands in page table[b, i // P]; lengths int32 [B], the keys of each
    sequence, the query's own included, at most M·P; sinks [H]. Returns [B, H, h] in q's dtype, zeros where a
    length is 0. Table entries past the last page in use, and rows past the last key, may hold anything.
    """
    choice = choose("attention.decode_pages", ("reference", "tpu", "gpu"))
    if choice.implementation == "tpu":
        return call_once(
            tpu.decode_pages, q, pages, table, lengths, sinks, interpret=choice.interpret, chip=choice.chip
        )
    if choice.implementation == "gpu":
        return call_once(gpu.decode_pages, q, pages, table, lengths, sinks, interpret=choice.interpret)
    return call_once(reference.decode_pages, q, pages, table, lengths, sinks)


def prefill_pages(
    q: jax.Array, pages: jax.Array, table: jax.Array, positions: jax.Array, sinks: jax.Array
) -> jax.Array:
    """T queries of each sequence attend to all keys up to their own that a pool of pages holds for it.

    q [B, T, H, h] at int32 positions [B, T], negative where there is no token; the keys of the chunk itself
    are in the pages already. pages, table and sinks as in `decode_pages`; key i stands at position i.
    Returns [B, T, H, h] in q's dtype, zeros where there is no token.
    """
    choice = choose("attention.prefill_pages", ("reference", "tpu", "gpu"))
    if choice.implementation == "tpu":
        return call_once(
            tpu.prefill_pages, q, pages, table, positions, sinks, interpret=choice.interpret, chip=choice.chip
        )
    if choice.implementation == "gpu":
        return call_once(gpu.prefill_pages, q, pages, table, positions, sinks, interpret=choice.interpret)
    return call_once(reference.prefill_pages, q, pages, table, positions, sinks)


def decode_ring(
    q: jax.Array,
    ring: jax.Array,
    held: jax.Array,
    positions: jax.Array,
    sinks: jax.Array,
    *,
    window: int | jax.Array,
) -> jax.Array:
    """One query of each sequence attends to the last `window` keys, itself included, of a ring.

    q [B, H, h] at int32 positions [B], negative where there is no token; ring [N, U, R, W, L], the entries
    of W ≥ window tokens in any order, those of sequence b in row b: rows from B on are not read. held int32
    [B, W]: the position of each, negative where there is none (it may then hold anything that is finite);
    those outside the window, after the query's own too, are not seen. sinks [H]. Returns [B, H, h] in q's
    dtype, zeros where nothing is seen.
    """
    choice = choose("attention.decode_ring", ("reference", "tpu", "gpu"))
    if choice.implementation == "tpu":
        return call_once(
            tpu.decode_ring,
            q,
            ring,
            held,
            positions,
            sinks,
            window=window,
            interpret=choice.interpret,
            chip=choice.chip,
        )
    if choice.implementation == "gpu":
        return call_once(
            gpu.decode_ring, q, ring, held, positions, sinks, window=window, interpret=choice.interpret
        )
    return call_once(reference.decode_ring, q, ring, held, positions, sinks, window=window)


def prefill(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    positions: jax.Array,
    sinks: jax.Array,
    ring: jax.Array | None = None,
    held: jax.Array | None = None,
    *,
    window: int | None,
) -> jax.Array:
    """T tokens attend to each other, and to what a ring holds of the tokens before them.

    q [B, T, H, h]; k, v [B, T, K, h]; int32 positions [B, T], consecutive, negative where there is no
    token: behind the tokens, or, without a ring, also before them. sinks [H]. ring [B, U, R, W, L] and held
    int32 [B, W ≥ window - 1] as they were before this chunk, the entry of position p at index p mod W; held
    positions outside a query's window are not seen, nor those from the chunk's first on. `window`: how many
    keys a query sees, itself included; None for all. Returns [B, T, H, h] in q's dtype, zeros where there is
    no token.
    """
    choice = choose("attention.prefill", ("reference", "tpu", "gpu"))
    if choice.implementation == "tpu":
        return call_once(
            tpu.prefill,
            q,
            k,
            v,
            positions,
            sinks,
            ring,
            held,
            window=window,
            interpret=choice.interpret,
            chip=choice.chip,
        )
    if choice.implementation == "gpu":
        return call_once(
            gpu.prefill, q, k, v, positions, sinks, ring, held, window=window, interpret=choice.interpret
        )
    return call_once(reference.prefill, q, k, v, positions, sinks, ring, held, window=window)


def store_entries(pool: jax.Array, entries: jax.Array, pages: jax.Array, rows: jax.Array) -> jax.Array:
    """Puts entries into a pool of pages; give the pool away (donate it), and nothing is copied.

    pool [N, U, R, P, L], or rings: a ring is a page of W tokens. When decoding, entries [B, U, R, L] at int32
    pages [B], all different, and rows [B] within them; chunks are entries [B, T, U, R, L] at pages [B, T] and
    rows [B, T]. An entry whose page is not one of the N is dropped. In 8 bits
    the largest numbers stand for all that are larger.
    """
    # On GPUs the reference is the kernel: XLA makes one of its scatter.
    choice = choose("attention.store_entries", ("reference", "tpu", "gpu"))
    if choice.implementation == "tpu" and pages.ndim == 1:
        return call_once(tpu.store_entries, pool, entries, pages, rows, interpret=choice.interpret)
    return call_once(reference.store_entries, pool, entries, pages, rows)
