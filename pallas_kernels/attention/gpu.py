"""Attention on NVIDIA GPUs (Hopper): one Triton kernel for decoding and prompts, over pages and rings.

Each program computes the queries of one KV head, for one token (decoding) or for a tile of tokens (prompts),
on one part of the keys that those queries see. Key i of a sequence is row i mod P of page
`block_table[sequence, i // P]`. A ring is one page with a list of positions. All queries of a KV head share
one read of each key.

With few sequences, one program per KV head would not keep the memory busy, so the keys of a sequence are
split among several programs (flash decoding). Each program returns its highest score, its softmax sum and its
unnormalised result. Plain JAX combines them and adds the sink to the denominator; XLA fuses that into one
kernel.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu

from pallas_kernels.attention.layout import EntryLayout, heads_per_unit, pack
from pallas_kernels.attention.reference import LOWEST_SINK, positions_before
from pallas_kernels.platform import Interpret

LOG2E = math.log2(math.e)
_ROWS = 16
"""The smallest number of rows that the matrix units multiply."""
_KEYS = 64
"""Keys per iteration of a program's loop."""
_TOKENS = 16
"""Prompt tokens per program."""
_PROGRAMS = 4 * 132
"""Programs that keep an H200 busy: four for each of its 132 multiprocessors."""
_NONE = jnp.iinfo(jnp.int32).max


class Keys(NamedTuple):
    """Where the keys of each sequence lie, and which of them each tile of queries reads.

    entries [N, U, R, P, L]: the pages. block_table int32 [B, M]: the pages of each sequence. positions int32
    [B, M·P]: the position of each key, negative where there is no key; None: key i has position i. first, end
    int32 [tiles]: each tile reads the keys from `first` up to but not including `end`.
    """

    entries: jax.Array
    block_table: jax.Array
    positions: jax.Array | None
    first: jax.Array
    end: jax.Array


def decode_pages(
    q: jax.Array,
    pages: jax.Array,
    block_table: jax.Array,
    lengths: jax.Array,
    sinks: jax.Array,
    *,
    interpret: Interpret,
) -> jax.Array:
    """See `pallas_kernels.attention.decode_pages`."""
    keys = Keys(pages, block_table, None, jnp.zeros_like(lengths), lengths)
    return _attend(q[:, None], lengths[:, None] - 1, keys, sinks, None, 1, interpret)[:, 0]


def decode_ring(
    q: jax.Array,
    ring: jax.Array,
    cached_positions: jax.Array,
    positions: jax.Array,
    sinks: jax.Array,
    *,
    window: int | jax.Array,
    interpret: Interpret,
) -> jax.Array:
    """See `pallas_kernels.attention.decode_ring`."""
    batch, width = cached_positions.shape
    end = jnp.where(positions >= 0, width, 0).astype(jnp.int32)
    keys = Keys(ring, jnp.arange(batch, dtype=jnp.int32)[:, None], cached_positions, jnp.zeros_like(end), end)
    return _attend(q[:, None], positions[:, None], keys, sinks, window, 1, interpret)[:, 0]


def prefill_pages(
    q: jax.Array,
    pages: jax.Array,
    block_table: jax.Array,
    positions: jax.Array,
    sinks: jax.Array,
    *,
    interpret: Interpret,
) -> jax.Array:
    """See `pallas_kernels.attention.prefill_pages`."""
    end = _by_tile(positions, _TOKENS, -1).max(axis=-1) + 1
    keys = Keys(pages, block_table, None, jnp.zeros_like(end), end)
    return _attend(q, positions, keys, sinks, None, _TOKENS, interpret)


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
    interpret: Interpret,
) -> jax.Array:
    """See `pallas_kernels.attention.prefill`. Ring and chunk together form one page per sequence."""
    batch, length, kv_heads, size = k.shape
    layout = EntryLayout(kv_heads, 1, 2 * size) if ring is None else _layout(ring)
    entries = jnp.moveaxis(pack(k, v, layout), 1, 3)
    key_positions = positions
    before = 0
    if ring is not None and cached_positions is not None:
        before = cached_positions.shape[1]
        entries = jnp.concatenate([ring.astype(entries.dtype), entries], axis=3)
        key_positions = jnp.concatenate([positions_before(cached_positions, positions), positions], axis=1)
    # Tokens and keys have the same order, so a tile's index in the chunk gives the keys in its window.
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
    """Splits [B, T, …] into tiles, [tiles, tokens, …].

    The last tile of a sequence is padded with `filler`.
    """
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
    interpret: Interpret,
) -> jax.Array:
    """Attention of q [B, T, H, h] at int32 positions [B, T], in tiles of `tokens` → [B, T, H, h]."""
    batch, length, heads, size = q.shape
    layout = _layout(keys.entries)
    kv_heads = layout.units * heads_per_unit(layout, size)
    group = heads // kv_heads
    q = _by_tile(q, tokens, 0).reshape(-1, tokens, kv_heads, group, size)
    tiles = q.shape[0]
    rows = q.transpose(0, 2, 1, 3, 4).reshape(tiles, kv_heads, tokens * group, size)
    newest = jnp.repeat(_by_tile(positions, tokens, -1), group, axis=1)
    past = jnp.full_like(newest, -1) if window is None else jnp.maximum(newest - window, -1)

    max_keys = keys.block_table.shape[1] * keys.entries.shape[3]
    splits = max(1, min(_PROGRAMS // (tiles * kv_heads), max_keys // (2 * _KEYS)))
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
    q: jax.Array, newest: jax.Array, past: jax.Array, keys: Keys, splits: int, interpret: Interpret
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Attention of q [tiles, K, R, h] to each of `splits` parts of a tile's keys.

    newest, past int32 [tiles, R]: row r sees the positions from past[r] + 1 up to newest[r]. Returns three
    float32 arrays: unnormalised results [splits, tiles, K, R, h], highest scores in base 2 [splits, tiles, K,
    R], and softmax sums [splits, tiles, K, R].
    """
    tiles, kv_heads, rows, size = q.shape
    layout = _layout(keys.entries)
    joint = heads_per_unit(layout, size)
    page = keys.entries.shape[3]
    tiles_per_sequence = tiles // keys.block_table.shape[0]
    block_rows = max(_ROWS, pl.next_power_of_2(rows))
    block_size = max(16, pl.next_power_of_2(size))
    scale = size**-0.5 * LOG2E
    precision = jax.lax.Precision.HIGHEST if q.dtype == jnp.float32 else None
    explicit = keys.positions is not None

    def kernel(*refs: jax.Ref) -> None:
        """One program: the queries of one KV head of one tile, on one part of the keys that the tile sees.

        refs, all in device memory, in order:
            q_ref [tiles, K, R, h]; newest_ref, past_ref int32 [tiles, R]: see `_partial_results`.
            entries [N, U, rows, P, L], of q's dtype or 8 bits; block_table int32 [B, M]; first_ref and
                end_ref int32 [tiles]; positions_ref int32 [B, M·P], only if given: the fields of `Keys`.
            out_ref float32 [splits, tiles, K, R, h]; highest_ref, total_ref float32 [splits, tiles, K, R].
        """
        q_ref, newest_ref, past_ref, entries, block_table, first_ref, end_ref, *rest = refs
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
            number = plgpu.load(block_table.at[sequence, index // page], mask=exists, other=0)
            visible = (
                exists[None, :] & (position[None, :] <= newest[:, None]) & (position[None, :] > past[:, None])
            )
            k = load(number, index, exists, 0, key_column)
            scores = jnp.dot(queries, k.T, precision=precision, preferred_element_type=jnp.float32)
            scores = jnp.where(visible, scores * scale, -jnp.inf)
            new_highest = jnp.maximum(highest, scores.max(axis=1))
            correction = jnp.exp2(highest - new_highest)
            weights = jnp.exp2(scores - new_highest[:, None])
            v = load(number, index, exists, value_row, value_column)
            part = jnp.dot(
                weights.astype(v.dtype), v, precision=precision, preferred_element_type=jnp.float32
            )
            return (
                out * correction[:, None] + part,
                new_highest,
                total * correction + weights.sum(axis=1),
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
    operands = [q, newest, past, keys.entries, keys.block_table, keys.first, keys.end]
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
