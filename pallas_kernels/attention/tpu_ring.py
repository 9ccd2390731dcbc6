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
    scale: float,
) -> None:
    sequences, units, rows, _, lanes = ring_ref.shape
    first = pl.program_id(1) * sequences
    held = [held_ref[index] for index in range(sequences)]
    visible = [
        (held[index] > past_ref[first + index]) & (held[index] <= newest_ref[first + index])
        for index in range(sequences)
    ]
    # All scores, then all softmaxes, then all sums.
    each = [(index, unit) for index in range(sequences) for unit in range(units)]
    scores = [scores_of(q_ref[at], ring_ref[(*at, 0)], visible[at[0]], scale) for at in each]
    steps = [
        shares_of(score, Softmax(sinks_ref[unit], jnp.ones_like(sinks_ref[unit])))
        for score, (_, unit) in zip(scores, each, strict=True)
    ]
    for at, (shares, _, softmax) in zip(each, steps, strict=True):
        result = sum_of(shares, ring_ref[(*at, rows - 1)]) / spread(softmax.total, lanes)
        store_own_columns(out_ref, at, result, rows)


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
    batch, heads, size = q.shape
    _, units, rows, width, lanes = ring.shape
    layout = EntryLayout(units, rows, lanes)
    queries = heads // units
    split, each = split_units(units, chip)
    sequences = ring_sequences(ring.shape, ring.dtype, chip)

    out = pl.pallas_call(
        functools.partial(_ring_kernel, scale=size**-0.5),
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
