"""Decode attention on TPUs: over pages, and over the ring of a sliding window.

An entry's row (see `layout`) is as wide as a vector register, and is never taken apart. The queries of the
J KV heads of a unit, G each, stand below each other, every one in the columns of its own head's keys and
zero elsewhere; then `q · keysᵀ` gives the scores of all J·G queries, and `shares · values` their results,
each in the columns of its own head. So a row of keys is loaded into the matrix unit once for all heads that
it holds, and so is a row of values; with each head's [K | V] in one row, every row would be loaded twice,
half of it multiplied by zeros.

The softmax starts from the sink (highest score so far: the sink, sum so far: 1), so no division by zero
exists and a sequence without keys gives zeros. Exponentials are to the base 2, the one that the hardware
has.
"""

from __future__ import annotations

import functools
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
from pallas_kernels.platform import Chip

LOG2E = math.log2(math.e)
_VMEM_LIMIT = 48 << 20
"""More than the compiler's default of 16 MiB, less than the 64 MiB of the smallest chip."""


class Blocks(NamedTuple):
    """What one grid step takes: bytes of pages, and how many steps' pages are in VMEM; bytes of rings.

    `cores` is how many TensorCores share a device and its grid.
    """

    page_bytes: int
    page_buffers: int
    ring_bytes: int
    cores: int


BLOCKS: dict[Chip, Blocks] = {
    "v5e": Blocks(page_bytes=2 << 20, page_buffers=3, ring_bytes=1 << 20, cores=1),
    "v5p": Blocks(page_bytes=2 << 20, page_buffers=3, ring_bytes=1 << 20, cores=2),
    "v6e": Blocks(page_bytes=2 << 20, page_buffers=3, ring_bytes=2 << 20, cores=1),
    "7x": Blocks(page_bytes=4 << 20, page_buffers=3, ring_bytes=2 << 20, cores=1),
}


class Units(NamedTuple):
    """How a grid shares out the units of an entry: `split` parts of `each` units, one for each core."""

    split: int
    each: int


def split_units(units: int, chip: Chip) -> Units:
    """One part for each core where that is possible."""
    split = BLOCKS[chip].cores if units % BLOCKS[chip].cores == 0 else 1
    return Units(split, units // split)


class Items(NamedTuple):
    """The work list of `decode_pages`: item i is block `block[i]` of sequence `sequence[i]`.

    int32 [I] each, I the static worst case; `total` int32 [1] of them are real. Every sequence has one item
    at least, so that its result is written.
    """

    sequence: jax.Array
    block: jax.Array
    total: jax.Array


def schedule_items(lengths: jax.Array, keys_per_block: int, max_blocks: int) -> Items:
    """Items in order of their sequences, for int32 lengths [B]."""
    batch = lengths.shape[0]
    blocks = jnp.maximum(pl.cdiv(lengths, keys_per_block), 1)
    ends = jnp.cumsum(blocks)
    item = jnp.arange(batch * max_blocks, dtype=jnp.int32)
    sequence = jnp.minimum((ends[None, :] <= item[:, None]).sum(axis=1), batch - 1).astype(jnp.int32)
    block = item - (ends - blocks)[sequence]
    return Items(sequence, block.astype(jnp.int32), ends[-1:].astype(jnp.int32))


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


def _pages_kernel(
    sequence_ref: Any,
    block_ref: Any,
    total_ref: Any,
    lengths_ref: Any,
    table_ref: Any,
    q_ref: Any,
    sinks_ref: Any,
    pages_ref: Any,
    out_ref: Any,
    buffers: Any,
    semaphores: Any,
    sums: Any,
    highest_ref: Any,
    sum_ref: Any,
    *,
    scale: float,
) -> None:
    depth, units, rows, keys_per_block, lanes = buffers.shape
    page = pages_ref.shape[3]
    pages_per_block = keys_per_block // page
    core, item = pl.program_id(0), pl.program_id(1)
    total = total_ref[0]

    def pages_used(item: jax.Array) -> jax.Array:
        return pl.cdiv(lengths_ref[sequence_ref[item]], page) - block_ref[item] * pages_per_block

    def copy_page(item: jax.Array, index: int | jax.Array) -> Any:
        slot = jax.lax.rem(item, depth)
        number = table_ref[sequence_ref[item], block_ref[item] * pages_per_block + index]
        return pltpu.make_async_copy(
            pages_ref.at[number, pl.ds(core * units, units)],
            buffers.at[slot, :, :, pl.ds(index * page, page)],
            semaphores.at[slot],
        )

    def start(item: jax.Array) -> None:
        """Starts the copies of an item's pages that are in use."""
        used = pages_used(item)

        @pl.when(used >= pages_per_block)
        def _() -> None:
            for index in range(pages_per_block):
                copy_page(item, index).start()

        @pl.when(used < pages_per_block)
        def _() -> None:
            jax.lax.fori_loop(0, used, lambda index, _: copy_page(item, index).start(), None)

    def wait(item: jax.Array) -> None:
        """Waits for what `start` started; for a whole block at once."""
        slot = jax.lax.rem(item, depth)
        used = pages_used(item)

        @pl.when(used >= pages_per_block)
        def _() -> None:
            pltpu.make_async_copy(buffers.at[slot], buffers.at[slot], semaphores.at[slot]).wait()

        @pl.when(used < pages_per_block)
        def _() -> None:
            jax.lax.fori_loop(0, used, lambda index, _: copy_page(item, index).wait(), None)

    @pl.when(item == 0)
    def _() -> None:
        jax.lax.fori_loop(0, jnp.minimum(depth - 1, total), lambda ahead, _: start(ahead), None)

    @pl.when(item + depth - 1 < total)
    def _() -> None:
        start(item + depth - 1)

    wait(item)

    slot = jax.lax.rem(item, depth)
    block = block_ref[item]
    remaining = lengths_ref[sequence_ref[item]] - block * keys_per_block
    is_first = block == 0
    visible = jax.lax.broadcasted_iota(jnp.int32, (1, keys_per_block), 1) < remaining
    kept = rows_kept(keys_per_block, lanes, remaining, buffers.dtype)
    # All scores, then all softmaxes, then all sums: while one unit waits for the matrix unit, others work.
    scores = [scores_of(q_ref[0, unit], buffers[slot, unit, 0], visible, scale) for unit in range(units)]
    steps = []
    for unit in range(units):
        highest = jnp.where(is_first, sinks_ref[unit], highest_ref[unit])
        steps.append(shares_of(scores[unit], Softmax(highest, jnp.where(is_first, 1.0, sum_ref[unit]))))
    for unit, (shares, correction, softmax) in enumerate(steps):
        part = sum_of(shares, keep(buffers[slot, unit, rows - 1], kept))
        sums[unit] = jnp.where(is_first, 0.0, sums[unit]) * spread(correction, lanes) + part
        highest_ref[unit], sum_ref[unit] = softmax

    @pl.when(remaining <= keys_per_block)
    def _() -> None:
        for unit in range(units):
            store_own_columns(out_ref, (0, unit), sums[unit] / spread(sum_ref[unit], lanes), rows)


class PageBlocks(NamedTuple):
    """What a grid step of `decode_pages` takes: so many pages, so many keys."""

    pages: int
    keys: int


def page_blocks(page: tuple[int, ...], dtype: DTypeLike, columns: int, chip: Chip) -> PageBlocks:
    """For pages of shape [U, R, P, L] and a page table of that many columns."""
    units, rows, length, lanes = page
    page_bytes = split_units(units, chip).each * rows * length * lanes * jnp.dtype(dtype).itemsize
    pages = min(max(BLOCKS[chip].page_bytes // page_bytes, 1), columns)
    return PageBlocks(pages, pages * length)


def decode_pages(
    q: jax.Array,
    pages: jax.Array,
    table: jax.Array,
    lengths: jax.Array,
    sinks: jax.Array,
    *,
    interpret: Any,
    chip: Chip,
) -> jax.Array:
    """See `pallas_kernels.attention.decode_pages`.

    One grid step takes one block of pages of one sequence: its pages are copied to VMEM, those of the next
    steps already in flight, whichever sequence they belong to. Only pages in use are copied, and the grid
    has only as many steps as there are blocks in use.
    """
    batch, heads, size = q.shape
    _, units, rows, _, lanes = pages.shape
    layout = EntryLayout(units, rows, lanes)
    queries = heads // units
    split, each = split_units(units, chip)
    pages_per_block, keys_per_block = page_blocks(pages.shape[1:], pages.dtype, table.shape[1], chip)
    max_blocks = pl.cdiv(table.shape[1], pages_per_block)
    table = jnp.pad(table, ((0, 0), (0, max_blocks * pages_per_block - table.shape[1])))
    items = schedule_items(lengths, keys_per_block, max_blocks)
    depth = BLOCKS[chip].page_buffers

    def of_sequence(core: Any, item: Any, sequence: Any, *_: Any) -> tuple[Any, ...]:
        return sequence[item], core, 0, 0

    out = pl.pallas_call(
        functools.partial(_pages_kernel, scale=size**-0.5),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=5,
            grid=(split, items.total[0]),
            in_specs=[
                pl.BlockSpec((1, each, queries, lanes), of_sequence),
                pl.BlockSpec((each, queries, LANES), lambda core, *_: (core, 0, 0)),
                pl.BlockSpec(memory_space=pl.ANY),
            ],
            out_specs=pl.BlockSpec((1, each, queries, size), of_sequence),
            scratch_shapes=[
                pltpu.VMEM((depth, each, rows, keys_per_block, lanes), pages.dtype),
                pltpu.SemaphoreType.DMA((depth,)),
                pltpu.VMEM((each, queries, lanes), jnp.float32),
                pltpu.VMEM((each, queries, LANES), jnp.float32),
                pltpu.VMEM((each, queries, LANES), jnp.float32),
            ],
        ),
        out_shape=jax.ShapeDtypeStruct((batch, units, queries, size), q.dtype),
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "arbitrary"),
            # Checking each copy's bounds takes a third of a step's scalar work; the tests run with checks.
            disable_bounds_checks=True,
            vmem_limit_bytes=_VMEM_LIMIT,
        ),
        interpret=interpret,
        name="decode_pages",
    )(*items, lengths, table, queries_in_columns(q, layout), sinks_in_lanes(sinks, units), pages)
    return out.reshape(batch, heads, size)


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
    # As in `_pages_kernel`: all scores, then all softmaxes, then all sums.
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
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "arbitrary")),
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
