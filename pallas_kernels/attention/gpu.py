"""Attention on NVIDIA GPUs (Hopper): one Triton kernel for decoding and prompts, over pages and rings.

A program takes the queries of one KV head, of one token (decoding) or of a tile of them (prompts), and a
share of the keys that they see. It finds keys by number: key i of a sequence is row i mod P of page
`table[sequence, i // P]`; a ring is a page with its own list of positions. A key's row is read once for all
queries of its KV head.

With few sequences there are too few programs to keep the memory busy, so the keys of one are split among
several (flash decoding). Each leaves its highest score, its sum and its unnormalised result; adding those
up, and the sink to the denominator, is plain JAX, fused into one kernel by XLA.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu

from pallas_kernels.attention.layout import EntryLayout, heads_per_unit, pack
from pallas_kernels.attention.reference import LOWEST_SINK, held_before

LOG2E = math.log2(math.e)
_ROWS = 16
"""The fewest rows of a product on the matrix units."""
_KEYS = 64
"""Keys that a program takes at a time."""
_TOKENS = 16
"""Prompt tokens that share a program."""
_PROGRAMS = 4 * 132
"""So many programs fill an H200 of 132 multiprocessors."""
_NONE = jnp.iinfo(jnp.int32).max


class Keys(NamedTuple):
    """Where the keys of each sequence are, and which of them a tile of queries visits.

    entries [N, U, R, P, L]; table int32 [B, M]; positions int32 [B, M·P], that of each key, negative for
    none, or None where key i stands at position i. first, end int32 [tiles]: the numbers of the keys to
    visit.
    """

    entries: jax.Array
    table: jax.Array
    positions: jax.Array | None
    first: jax.Array
    end: jax.Array


def decode_pages(
    q: jax.Array,
    pages: jax.Array,
    table: jax.Array,
    lengths: jax.Array,
    sinks: jax.Array,
    *,
    interpret: Any,
) -> jax.Array:
    """See `pallas_kernels.attention.decode_pages`."""
    keys = Keys(pages, table, None, jnp.zeros_like(lengths), lengths)
    return _attend(q[:, None], lengths[:, None] - 1, keys, sinks, None, 1, interpret)[:, 0]


def decode_ring(
    q: jax.Array,
    ring: jax.Array,
    held: jax.Array,
    positions: jax.Array,
    sinks: jax.Array,
    *,
    window: int | jax.Array,
    interpret: Any,
) -> jax.Array:
    """See `pallas_kernels.attention.decode_ring`."""
    batch, width = held.shape
    end = jnp.where(positions >= 0, width, 0).astype(jnp.int32)
    keys = Keys(ring, jnp.arange(batch, dtype=jnp.int32)[:, None], held, jnp.zeros_like(end), end)
    return _attend(q[:, None], positions[:, None], keys, sinks, window, 1, interpret)[:, 0]


def prefill_pages(
    q: jax.Array,
    pages: jax.Array,
    table: jax.Array,
    positions: jax.Array,
    sinks: jax.Array,
    *,
    interpret: Any,
) -> jax.Array:
    """See `pallas_kernels.attention.prefill_pages`."""
    end = _by_tile(positions, _TOKENS, -1).max(axis=-1) + 1
    keys = Keys(pages, table, None, jnp.zeros_like(end), end)
    return _attend(q, positions, keys, sinks, None, _TOKENS, interpret)


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
    interpret: Any,
) -> jax.Array:
    """See `pallas_kernels.attention.prefill`: the ring, then the chunk, are one page of each sequence."""
    batch, length, kv_heads, size = k.shape
    layout = EntryLayout(kv_heads, 1, 2 * size) if ring is None else _layout(ring)
    entries = jnp.moveaxis(pack(k, v, layout), 1, 3)
    key_positions = positions
    before = 0
    if ring is not None and held is not None:
        before = held.shape[1]
        entries = jnp.concatenate([ring.astype(entries.dtype), entries], axis=3)
        key_positions = jnp.concatenate([held_before(held, positions), positions], axis=1)
    # Tokens and their keys are in the same order, so a tile's window is known by its place in the chunk.
    start = jnp.tile(jnp.arange(0, length, _TOKENS, dtype=jnp.int32), batch)
    end = jnp.minimum(start + _TOKENS, length) + before
    first = jnp.zeros_like(start)
    if window is not None:
        first = jnp.where(start < window, 0, before + start - window + 1)
    keys = Keys(entries, jnp.arange(batch, dtype=jnp.int32)[:, None], key_positions, first, end)
    return _attend(q, positions, keys, sinks, window, _TOKENS, interpret)


def _layout(entries: jax.Array) -> EntryLayout:
    _, units, rows, _, lanes = entries.shape
    return EntryLayout(units, rows, lanes)


def _by_tile(x: jax.Array, tokens: int, filler: int) -> jax.Array:
    """[B, T, …] → [tiles, tokens, …], padded with `filler`."""
    missing = -x.shape[1] % tokens
    padded = jnp.pad(x, [(0, 0), (0, missing), *[(0, 0)] * (x.ndim - 2)], constant_values=filler)
    return padded.reshape(-1, tokens, *x.shape[2:])


def _attend(
    q: jax.Array,
    positions: jax.Array,
    keys: Keys,
    sinks: jax.Array,
    window: int | jax.Array | None,
    tokens: int,
    interpret: Any,
) -> jax.Array:
    """q [B, T, H, h] at int32 positions [B, T], `tokens` of them to a tile → [B, T, H, h]."""
    batch, length, heads, size = q.shape
    layout = _layout(keys.entries)
    kv_heads = layout.units * heads_per_unit(layout, size)
    group = heads // kv_heads
    q = _by_tile(q, tokens, 0).reshape(-1, tokens, kv_heads, group, size)
    tiles = q.shape[0]
    rows = q.transpose(0, 2, 1, 3, 4).reshape(tiles, kv_heads, tokens * group, size)
    newest = jnp.repeat(_by_tile(positions, tokens, -1), group, axis=1)
    past = jnp.full_like(newest, -1) if window is None else jnp.maximum(newest - window, -1)

    most = keys.table.shape[1] * keys.entries.shape[3]
    splits = max(1, min(_PROGRAMS // (tiles * kv_heads), most // (2 * _KEYS)))
    out, highest, total = _partial_results(rows, newest, past, keys, splits, interpret)

    sink = jnp.maximum(sinks.astype(jnp.float32), LOWEST_SINK) * LOG2E
    sink = jnp.tile(sink.reshape(kv_heads, 1, group), (1, tokens, 1)).reshape(kv_heads, -1)
    top = jnp.maximum(highest.max(axis=0), sink)
    factor = jnp.exp2(highest - top)
    denominator = (total * factor).sum(axis=0) + jnp.exp2(sink - top)
    result = (out * factor[..., None]).sum(axis=0) / denominator[..., None]
    by_token = result.reshape(tiles, kv_heads, tokens, group, size).transpose(0, 2, 1, 3, 4)
    return by_token.reshape(batch, -1, heads, size)[:, :length].astype(q.dtype)


def _partial_results(
    q: jax.Array, newest: jax.Array, past: jax.Array, keys: Keys, splits: int, interpret: Any
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Attention of q [tiles, K, R, h] to each of `splits` shares of a tile's keys.

    A row sees positions above int32 past [tiles, R], up to newest [tiles, R]. Returns float32 unnormalised
    results [splits, tiles, K, R, h], highest scores in base 2 and sums, both [splits, tiles, K, R].
    """
    tiles, kv_heads, rows, size = q.shape
    layout = _layout(keys.entries)
    joint = heads_per_unit(layout, size)
    page = keys.entries.shape[3]
    tiles_per_sequence = tiles // keys.table.shape[0]
    block_rows = max(_ROWS, pl.next_power_of_2(rows))
    block_size = max(16, pl.next_power_of_2(size))
    scale = size**-0.5 * LOG2E
    precision = jax.lax.Precision.HIGHEST if q.dtype == jnp.float32 else None
    explicit = keys.positions is not None

    def kernel(*refs: Any) -> None:
        q_ref, newest_ref, past_ref, entries, table, first_ref, end_ref, *rest = refs
        positions_ref = rest[0] if explicit else None
        out_ref, highest_ref, total_ref = rest[-3:]
        split, head, tile = pl.program_id(0), pl.program_id(1), pl.program_id(2)
        sequence = tile // tiles_per_sequence
        row, column = jnp.arange(block_rows), jnp.arange(block_size)
        real, wide = row < rows, column < size
        both = real[:, None] & wide[None, :]
        queries = plgpu.load(q_ref.at[tile, head, row[:, None], column[None, :]], mask=both, other=0)
        newest = plgpu.load(newest_ref.at[tile, row], mask=real, other=-1)
        past = plgpu.load(past_ref.at[tile, row], mask=real, other=-1)

        unit, place = head // joint, head % joint
        key_column = place * size
        value_row, value_column = (0, size) if layout.rows == 1 else (1, key_column)
        first, end = first_ref[tile], end_ref[tile]
        share = pl.cdiv(pl.cdiv(end - first, splits), _KEYS) * _KEYS
        begin = first + split * share
        stop = jnp.minimum(begin + share, end)

        def load(
            number: jax.Array, index: jax.Array, exists: jax.Array, kind: int, start: int | jax.Array
        ) -> jax.Array:
            at = entries.at[number[:, None], unit, kind, (index % page)[:, None], start + column[None, :]]
            return plgpu.load(at, mask=exists[:, None] & wide[None, :], other=0.0).astype(q.dtype)

        def step(count: jax.Array, carry: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
            out, highest, total = carry
            index = begin + count * _KEYS + jnp.arange(_KEYS)
            exists = index < stop
            position = index
            if positions_ref is not None:
                position = plgpu.load(positions_ref.at[sequence, index], mask=exists, other=_NONE)
                exists &= position >= 0
            number = plgpu.load(table.at[sequence, index // page], mask=exists, other=0)
            visible = (
                exists[None, :] & (position[None, :] <= newest[:, None]) & (position[None, :] > past[:, None])
            )
            k = load(number, index, exists, 0, key_column)
            scores = jnp.dot(queries, k.T, precision=precision, preferred_element_type=jnp.float32)
            scores = jnp.where(visible, scores * scale, -jnp.inf)
            new_highest = jnp.maximum(highest, scores.max(axis=1))
            correction = jnp.exp2(highest - new_highest)
            shares = jnp.exp2(scores - new_highest[:, None])
            v = load(number, index, exists, value_row, value_column)
            part = jnp.dot(shares.astype(v.dtype), v, precision=precision, preferred_element_type=jnp.float32)
            return (
                out * correction[:, None] + part,
                new_highest,
                total * correction + shares.sum(axis=1),
            )

        start = (
            jnp.zeros((block_rows, block_size), jnp.float32),
            jnp.full((block_rows,), jnp.finfo(jnp.float32).min, jnp.float32),
            jnp.zeros((block_rows,), jnp.float32),
        )
        steps = jnp.maximum(pl.cdiv(stop - begin, _KEYS), 0)
        out, highest, total = jax.lax.fori_loop(0, steps, step, start)
        plgpu.store(out_ref.at[split, tile, head, row[:, None], column[None, :]], out, mask=both)
        plgpu.store(highest_ref.at[split, tile, head, row], highest, mask=real)
        plgpu.store(total_ref.at[split, tile, head, row], total, mask=real)

    shape = (splits, tiles, kv_heads, rows)
    operands = [q, newest, past, keys.entries, keys.table, keys.first, keys.end]
    if keys.positions is not None:
        operands.append(keys.positions)
    return pl.pallas_call(
        kernel,
        grid=(splits, kv_heads, tiles),
        out_shape=(
            jax.ShapeDtypeStruct((*shape, size), jnp.float32),
            jax.ShapeDtypeStruct(shape, jnp.float32),
            jax.ShapeDtypeStruct(shape, jnp.float32),
        ),
        compiler_params=plgpu.CompilerParams(num_warps=4, num_stages=3),
        interpret=interpret,
        name="attention",
    )(*operands)
