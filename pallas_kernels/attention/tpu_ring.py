"""Decode attention on TPUs over the ring of a sliding window."""

from __future__ import annotations

import functools
from typing import Any

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
    shares_of,
    sinks_in_lanes,
    spread,
    store_own_columns,
    sum_of,
)
from pallas_kernels.attention.tpu_tuning import BLOCKS, VMEM_LIMIT, split_units
from pallas_kernels.platform import Chip


def _ring_kernel(
    newest_ref: Any,
    past_ref: Any,
    q_ref: Any,
    sinks_ref: Any,
    ring_ref: Any,
    held_ref: Any,
    out_ref: Any,
    *,
    together: int,
    scale: float,
) -> None:
    sequences, units, rows, width, lanes = ring_ref.shape
    first = pl.program_id(1) * sequences
    queries = together * q_ref.shape[2]
    own = _same_part((queries, together * width), together)
    visible = []
    for index in range(sequences):
        held = jnp.concatenate([held_ref[index]] * together, axis=1)
        seen = (held > past_ref[first + index]) & (held <= newest_ref[first + index])
        visible.append(seen if own is None else seen & own)
    sinks = {
        unit: _stacked([sinks_ref[unit + other] for other in range(together)])
        for unit in range(0, units, together)
    }

    # All scores, all softmaxes, all sums: while one product waits for the matrix unit, others work.
    each = [(index, unit) for index in range(sequences) for unit in range(0, units, together)]
    scores, steps = [], []
    for index, unit in each:
        members = range(unit, unit + together)
        q = _stacked([q_ref[index, member] for member in members])
        keys = _stacked([ring_ref[index, member, 0].astype(q.dtype) for member in members])
        scores.append(scores_of(q, keys, visible[index], scale))
    for (_, unit), score in zip(each, scores, strict=True):
        steps.append(shares_of(score, Softmax(sinks[unit], jnp.ones_like(sinks[unit]))))
    for (index, unit), (shares, _, softmax) in zip(each, steps, strict=True):
        stored = [ring_ref[index, unit + other, rows - 1] for other in range(together)]
        values = _stacked([value.astype(q_ref.dtype) for value in stored])
        result = sum_of(shares, values) / spread(softmax.total, lanes)
        for other in range(together):
            part = result[other * queries // together : (other + 1) * queries // together]
            store_own_columns(out_ref, (index, unit + other), part, rows)


def _stacked(parts: list[jax.Array]) -> jax.Array:
    """[R, L] each, one below the other."""
    return parts[0] if len(parts) == 1 else jnp.concatenate(parts, axis=0)


def _same_part(shape: tuple[int, int], parts: int) -> jax.Array | None:
    """bool of that shape, cut into `parts` parts along both dimensions: are row and column in the same?
    None for one.
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
    """How many units' rings share a product: as many as the matrix unit has columns for.

    Each unit's queries meet the keys of all of them, and see only their own. A ring a little longer than a
    register row's lanes counts as one of that length: two of 144 keys in products of 256 columns and 32 take
    two thirds of the time of products of 144 columns each.
    """
    tile = 32 // jnp.dtype(dtype).itemsize
    columns = BLOCKS[chip].matrix_width
    most = max(columns // width, columns // LANES) if width % tile == 0 else 1
    return max(count for count in range(1, most + 1) if units % count == 0)


def ring_sequences(ring: tuple[int, ...], dtype: DTypeLike, chip: Chip) -> int:
    """How many sequences a grid step of `decode_ring` takes, for rings of shape [B, U, R, W, L]."""
    batch, units, rows, width, lanes = ring
    ring_bytes = split_units(units, chip).each * rows * width * lanes * jnp.dtype(dtype).itemsize
    most = max(BLOCKS[chip].ring_bytes // ring_bytes, 1)
    return max(count for count in range(1, most + 1) if batch % count == 0)


def decode_ring(
    q: jax.Array,
    ring: jax.Array,
    held: jax.Array,
    positions: jax.Array,
    sinks: jax.Array,
    *,
    window: int | jax.Array,
    interpret: Any,
    chip: Chip,
) -> jax.Array:
    """See `pallas_kernels.attention.decode_ring`. One grid step takes the whole rings of a few sequences."""
    # Rings beyond the batch are rows that the grid does not visit: cutting them off would copy the others.
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
        jnp.maximum(positions - window, -1),  # the newest position that is not to be seen any more
        queries_in_columns(q, layout),
        sinks_in_lanes(sinks, units),
        ring,
        held[:, None],
    )
    return out.reshape(batch, heads, size)
