"""What the TPU attention kernels share: one step of an online softmax over a block of entries.

A row of an entry (see `layout`) is as wide as a vector register and is never split. A unit has J KV heads
with G queries each. Its J·G queries form the rows of one matrix: each query is in the columns of its own
head's keys, with zeros elsewhere. So `q · keysᵀ` gives the scores of all queries, and `weights · values`
gives their results, each in the columns of its own head. The matrix unit loads each row of keys and of values
once for all heads in it. With [K | V] of one head in a row it would load every row twice, and multiply half
of it by zeros.

The softmax starts from the sink: the highest score is the sink and the sum is 1. So the sum is never zero,
and a sequence without keys gives zeros. Exponentials have base 2, which is what the hardware computes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.typing import DTypeLike

from pallas_kernels.attention.layout import LANES, EntryLayout, heads_per_unit
from pallas_kernels.attention.reference import LOWEST_SINK
from pallas_kernels.types import Index

LOG2E = math.log2(math.e)


def spread(x: jax.Array, width: int) -> jax.Array:
    """Repeats [R, LANES], whose lanes are all equal, to [R, width]."""
    copies = pl.cdiv(width, LANES)
    return x[:, :width] if copies == 1 else jnp.concatenate([x] * copies, axis=1)[:, :width]


def rows_kept(length: int, width: int, count: jax.Array, dtype: DTypeLike) -> jax.Array:
    """The mask for `keep` of the first `count` of [length, width] rows:
    bool, or uint32 words for 2-byte dtypes.
    """
    if jnp.dtype(dtype).itemsize != 2 or length % 2:
        return jax.lax.broadcasted_iota(jnp.int32, (length, width), 0) < count
    index = 2 * jax.lax.broadcasted_iota(jnp.int32, (length // 2, width), 0)
    low = jnp.where(index < count, jnp.uint32(0x0000FFFF), jnp.uint32(0))
    high = jnp.where(index + 1 < count, jnp.uint32(0xFFFF0000), jnp.uint32(0))
    return low | high


def keep(rows: jax.Array, kept: jax.Array) -> jax.Array:
    """Sets the rows of [S, L] that are not kept to zero: unread memory may hold NaN, and 0 · NaN is NaN.

    Two bfloat16 rows share a 32-bit word, so one `and` keeps or clears both.
    """
    if kept.dtype == jnp.bool_:
        return jnp.where(kept, rows, 0)
    return pltpu.bitcast(pltpu.bitcast(rows, jnp.uint32) & kept, rows.dtype)


class Softmax(NamedTuple):
    """The state of an online softmax: highest score in base 2, and sum;
    float32 [R, LANES] each, all lanes equal.
    """

    highest: jax.Array
    total: jax.Array


def scores_of(q: jax.Array, keys: jax.Array, visible: jax.Array, scale: float) -> jax.Array:
    """Scores in base 2, float32 [R, S], of q [R, L] on keys [S, L]; -inf
    where `visible`, bool [R or 1, S], is False.
    """
    scores = jax.lax.dot_general(
        q, keys, (((1,), (1,)), ((), ())), precision=_precision(q), preferred_element_type=jnp.float32
    )
    return jnp.where(visible, scores * (scale * LOG2E), -jnp.inf)


def softmax_step(scores: jax.Array, before: Softmax) -> tuple[jax.Array, jax.Array, Softmax]:
    """One step of an online softmax over scores [R, S].

    Returns the unnormalised weights float32 [R, S], the factor [R, LANES] on all sums so far, and the new
    state.
    """
    highest = jnp.broadcast_to(scores.max(axis=1, keepdims=True), before.highest.shape)
    highest = jnp.maximum(before.highest, highest)
    correction = jnp.exp2(before.highest - highest)
    weights = jnp.exp2(scores - spread(highest, scores.shape[1]))
    added = jnp.broadcast_to(weights.sum(axis=1, keepdims=True), before.total.shape)
    return weights, correction, Softmax(highest, before.total * correction + added)


def weighted_sum(weights: jax.Array, values: jax.Array) -> jax.Array:
    """weights [R, S] · values [S, L] → float32 [R, L]."""
    return jax.lax.dot_general(
        weights.astype(values.dtype),
        values,
        (((1,), (0,)), ((), ())),
        precision=_precision(values),
        preferred_element_type=jnp.float32,
    )


def _precision(x: jax.Array) -> jax.lax.Precision | None:
    return jax.lax.Precision.HIGHEST if x.dtype == jnp.float32 else None


def queries_in_columns(q: jax.Array, layout: EntryLayout) -> jax.Array:
    """q [B, …, H, h] → [B, …, U, H/U, L]: each query in the columns of
    its head's keys, with zeros elsewhere.
    """
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


def store_own_columns(out_ref: jax.Ref, index: Sequence[Index], result: jax.Array, rows: int) -> None:
    """Takes each head's own columns, [J·G, h], from a result [J·G, L] and writes them to `out_ref[index]`."""
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
    """sinks [H] → float32 [U, H/U, LANES], in base 2, all lanes equal."""
    scaled = jnp.maximum(sinks.astype(jnp.float32), LOWEST_SINK) * LOG2E
    return jnp.broadcast_to(scaled.reshape(units, -1, 1), (units, sinks.size // units, LANES))
