"""What the attention kernels for TPUs have in common: one step of a softmax over a block of entries.

An entry's row (see `layout`) is as wide as a vector register, and is never taken apart. The queries of the J
KV heads of a unit, G each, stand below each other, every one in the columns of its own head's keys and zero
elsewhere; then `q · keysᵀ` gives the scores of all J·G queries, and `shares · values` their results, each in
the columns of its own head. So a row of keys is loaded into the matrix unit once for all heads that it holds,
and so is a row of values; with each head's [K | V] in one row, every row would be loaded twice, half of it
multiplied by zeros.

A softmax starts from the sink (highest score so far: the sink, sum so far: 1), so no division by zero exists
and a sequence without keys gives zeros. Exponentials are to the base 2, the one that the hardware has.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.typing import DTypeLike

from pallas_kernels.attention.layout import LANES, EntryLayout, heads_per_unit
from pallas_kernels.attention.reference import LOWEST_SINK

LOG2E = math.log2(math.e)


def spread(x: jax.Array, width: int) -> jax.Array:
    """[R, LANES] whose lanes are all equal → [R, width]."""
    copies = pl.cdiv(width, LANES)
    return x[:, :width] if copies == 1 else jnp.concatenate([x] * copies, axis=1)[:, :width]


def rows_kept(length: int, width: int, count: jax.Array, dtype: DTypeLike) -> jax.Array:
    """Which of [length, width] rows are the first `count`: what `keep` needs, the same for all units."""
    if jnp.dtype(dtype).itemsize != 2 or length % 2:
        return jax.lax.broadcasted_iota(jnp.int32, (length, width), 0) < count
    index = 2 * jax.lax.broadcasted_iota(jnp.int32, (length // 2, width), 0)
    low = jnp.where(index < count, jnp.uint32(0x0000FFFF), jnp.uint32(0))
    high = jnp.where(index + 1 < count, jnp.uint32(0xFFFF0000), jnp.uint32(0))
    return low | high


def keep(rows: jax.Array, kept: jax.Array) -> jax.Array:
    """Rows [S, L], zeros where they are not kept: what was never fetched may be NaN, and 0 · NaN is NaN.

    Two bf16 rows share a 32-bit word, and a word is kept or cleared by one `and`.
    """
    if kept.dtype == jnp.bool_:
        return jnp.where(kept, rows, 0)
    return pltpu.bitcast(pltpu.bitcast(rows, jnp.uint32) & kept, rows.dtype)


class Softmax(NamedTuple):
    """A softmax under way, float32 [R, LANES] each, lanes all equal: the highest score in base 2, the sum."""

    highest: jax.Array
    total: jax.Array


def scores_of(q: jax.Array, keys: jax.Array, visible: jax.Array, scale: float) -> jax.Array:
    """Scores in base 2, float32 [R, S], of q [R, L] on keys [S, L]; -inf where not `visible` [R or 1, S]."""
    scores = jax.lax.dot_general(
        q, keys, (((1,), (1,)), ((), ())), precision=_precision(q), preferred_element_type=jnp.float32
    )
    return jnp.where(visible, scores * (scale * LOG2E), -jnp.inf)


def shares_of(scores: jax.Array, before: Softmax) -> tuple[jax.Array, jax.Array, Softmax]:
    """One online softmax step over scores [R, S].

    Returns the new shares, not yet divided by their sum, the factor on what was summed before, and the
    softmax so far.
    """
    highest = jnp.broadcast_to(scores.max(axis=1, keepdims=True), before.highest.shape)
    highest = jnp.maximum(before.highest, highest)
    correction = jnp.exp2(before.highest - highest)
    shares = jnp.exp2(scores - spread(highest, scores.shape[1]))
    added = jnp.broadcast_to(shares.sum(axis=1, keepdims=True), before.total.shape)
    return shares, correction, Softmax(highest, before.total * correction + added)


def sum_of(shares: jax.Array, values: jax.Array) -> jax.Array:
    """Shares [R, S] · values [S, L] → float32 [R, L]."""
    return jax.lax.dot_general(
        shares.astype(values.dtype),
        values,
        (((1,), (0,)), ((), ())),
        precision=_precision(values),
        preferred_element_type=jnp.float32,
    )


def _precision(x: jax.Array) -> jax.lax.Precision | None:
    return jax.lax.Precision.HIGHEST if x.dtype == jnp.float32 else None


def queries_in_columns(q: jax.Array, layout: EntryLayout) -> jax.Array:
    """q [B, …, H, h] → [B, …, U, H/U, L]: each query in the columns of its head's keys, zeros elsewhere."""
    size = q.shape[-1]
    joint = heads_per_unit(layout, size)
    split = q.reshape(*q.shape[:-2], layout.units, joint, -1, size)
    parts = [
        jnp.pad(
            split[..., head, :, :],
            [*[(0, 0)] * (split.ndim - 2), (head * size, layout.lanes - (head + 1) * size)],
        )
        for head in range(joint)
    ]
    return jnp.concatenate(parts, axis=-2)


def store_own_columns(out_ref: Any, index: Sequence[Any], result: jax.Array, rows: int) -> None:
    """Writes of a result [J·G, L] each head's own columns, [J·G, h], to `out_ref[index]`."""
    size = out_ref.shape[-1]
    if rows == 1:
        out_ref[(*index,)] = result[:, size:].astype(out_ref.dtype)
        return
    joint = result.shape[1] // size
    group = result.shape[0] // joint
    for head in range(joint):
        own = result[head * group : (head + 1) * group, head * size : (head + 1) * size]
        out_ref[(*index, slice(head * group, (head + 1) * group))] = own.astype(out_ref.dtype)


def sinks_in_lanes(sinks: jax.Array, units: int) -> jax.Array:
    """[H] → float32 [U, H/U, LANES], in base 2."""
    scaled = jnp.maximum(sinks.astype(jnp.float32), LOWEST_SINK) * LOG2E
    return jnp.broadcast_to(scaled.reshape(units, -1, 1), (units, sinks.size // units, LANES))
