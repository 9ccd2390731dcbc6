"""Decode attention on TPUs over the ring of a sliding window."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.typing import DTypeLike

from pallas_kernels.attention.layout import LANES, EntryLayout
from pallas_kernels.attention.tpu_steps import (
    Softmax,
    queries_in_columns,
    scores_of,
    sinks_in_lanes,
    softmax_step,
    spread,
    store_own_columns,
    weighted_sum,
)
from pallas_kernels.attention.tpu_tuning import BLOCKS, VMEM_LIMIT, split_units
from pallas_kernels.platform import Chip, Interpret


def _ring_kernel(
    newest_ref: jax.Ref,
    past_ref: jax.Ref,
    q_ref: jax.Ref,
    sinks_ref: jax.Ref,
    ring_ref: jax.Ref,
    cached_positions_ref: jax.Ref,
    out_ref: jax.Ref,
    *,
    together: int,
    scale: float,
) -> None:
    """One grid step: a few sequences attend to their whole rings, for the units of this core.

    In scalar memory, for all sequences of the batch:
        newest_ref int32 [B]: each query's position. past_ref int32 [B]: the newest position outside its
        window.
    In VMEM, for the U units of this core and the R queries of a unit:
        q_ref [sequences, U, R, L]: queries, each in the columns of its own head.
        sinks_ref float32 [U, R, LANES], in base 2, all lanes equal.
        ring_ref [sequences, U, rows, W, L], of q's dtype or 8 bits: the entries.
        cached_positions_ref int32 [sequences, 1, W]: the entries' positions.
        out_ref [sequences, U, R, h] of q's dtype.
    together: how many units share a matrix product. scale: the factor on the scores, 1/√h.
    """
    sequences, units, rows, width, lanes = ring_ref.shape
    first = pl.program_id(1) * sequences
    queries = together * q_ref.shape[2]
    own = _same_part((queries, together * width), together)
    visible = []
    for index in range(sequences):
        position = jnp.concatenate([cached_positions_ref[index]] * together, axis=1)
        seen = (position > past_ref[first + index]) & (position <= newest_ref[first + index])
        visible.append(seen if own is None else seen & own)
    sinks = {
        unit: _stacked([sinks_ref[unit + other] for other in range(together)])
        for unit in range(0, units, together)
    }

    # All scores, then all softmaxes, then all sums: while one product waits for the matrix unit, others
    # compute.
    each = [(index, unit) for index in range(sequences) for unit in range(0, units, together)]
    scores, steps = [], []
    for index, unit in each:
        members = range(unit, unit + together)
        q = _stacked([q_ref[index, member] for member in members])
        keys = _stacked([ring_ref[index, member, 0].astype(q.dtype) for member in members])
        scores.append(scores_of(q, keys, visible[index], scale))
    for (_, unit), score in zip(each, scores, strict=True):
        steps.append(softmax_step(score, Softmax(sinks[unit], jnp.ones_like(sinks[unit]))))
    for (index, unit), (weights, _, softmax) in zip(each, steps, strict=True):
        stored = [ring_ref[index, unit + other, rows - 1] for other in range(together)]
        values = _stacked([value.astype(q_ref.dtype) for value in stored])
        result = weighted_sum(weights, values) / spread(softmax.total, lanes)
        for other in range(together):
            part = result[other * queries // together : (other + 1) * queries // together]
            store_own_columns(out_ref, (index, unit + other), part, rows)


def _stacked(parts: list[jax.Array]) -> jax.Array:
    """Concatenates parts [R, L] along their rows."""
    return parts[0] if len(parts) == 1 else jnp.concatenate(parts, axis=0)


def _same_part(shape: tuple[int, int], parts: int) -> jax.Array | None:
    """Returns bool `shape`, True where row and column belong to the same
    of `parts` equal parts; None for one part.
    """
    if parts == 1:
        return None
    row = jax.lax.broadcasted_iota(jnp.int32, shape, 0)
    column = jax.lax.broadcasted_iota(jnp.int32, shape, 1)
    high, wide = shape[0] // parts, shape[1] // parts
    same = (row < high) & (column < wide)
    for part in range(1, parts):
        same |= (
            (row >= part * high)
            & (row < (part + 1) * high)
            & (column >= part * wide)
            & (column < (part + 1) * wide)
        )
    return same


def units_together(units: int, width: int, dtype: DTypeLike, chip: Chip) -> int:
    """How many units' rings share a matrix product: as many as the matrix unit has columns for.

    The product also gives scores of one unit's queries on another unit's keys; a mask removes them. A ring
    slightly longer than 128 keys counts as one of 128: two rings of 144 keys, multiplied as 256 and 32
    columns, take two thirds of the time of two products of 144 columns.
    """
    tile = 32 // jnp.dtype(dtype).itemsize
    columns = BLOCKS[chip].matrix_width
    max_count = max(columns // width, columns // LANES) if width % tile == 0 else 1
    return max(count for count in range(1, max_count + 1) if units % count == 0)


def ring_sequences(ring: tuple[int, ...], dtype: DTypeLike, chip: Chip) -> int:
    """How many sequences a grid step of `decode_ring` computes, for rings of shape [B, U, R, W, L]."""
    batch, units, rows, width, lanes = ring
    ring_bytes = split_units(units, chip).each * rows * width * lanes * jnp.dtype(dtype).itemsize
    max_count = max(BLOCKS[chip].ring_bytes // ring_bytes, 1)
    return max(count for count in range(1, max_count + 1) if batch % count == 0)


def decode_ring(
    q: jax.Array,
    ring: jax.Array,
    cached_positions: jax.Array,
    positions: jax.Array,
    sinks: jax.Array,
    *,
    window: int | jax.Array,
    interpret: Interpret,
    chip: Chip,
) -> jax.Array:
    """See `pallas_kernels.attention.decode_ring`.

    One grid step computes a few sequences with their whole rings.
    """
    # The grid does not visit rings beyond the batch. Slicing them off would copy the others.
    batch, heads, size = q.shape
    _, units, rows, width, lanes = ring.shape
    layout = EntryLayout(units, rows, lanes)
    queries = heads // units
    split, each = split_units(units, chip)
    sequences = ring_sequences((batch, *ring.shape[1:]), ring.dtype, chip)
    together = units_together(each, width, ring.dtype, chip)

    out = pl.pallas_call(
        functools.partial(_ring_kernel, together=together, scale=size**-0.5),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=2,
            grid=(split, batch // sequences),
            in_specs=[
                pl.BlockSpec((sequences, each, queries, lanes), lambda core, step, *_: (step, core, 0, 0)),
                pl.BlockSpec((each, queries, LANES), lambda core, *_: (core, 0, 0)),
                pl.BlockSpec(
                    (sequences, each, rows, width, lanes), lambda core, step, *_: (step, core, 0, 0, 0)
                ),
                pl.BlockSpec((sequences, 1, width), lambda core, step, *_: (step, 0, 0)),
            ],
            out_specs=pl.BlockSpec(
                (sequences, each, queries, size), lambda core, step, *_: (step, core, 0, 0)
            ),
        ),
        out_shape=jax.ShapeDtypeStruct((batch, units, queries, size), q.dtype),
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "arbitrary"), vmem_limit_bytes=VMEM_LIMIT
        ),
        interpret=interpret,
        name="decode_ring",
    )(
        positions,
        jnp.maximum(positions - window, -1),  # the newest position outside the window
        queries_in_columns(q, layout),
        sinks_in_lanes(sinks, units),
        ring,
        cached_positions[:, None],
    )
    return out.reshape(batch, heads, size)
