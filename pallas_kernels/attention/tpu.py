"""Decode attention on TPUs: over pages, and over the ring of a sliding window.

Both kernels look at keys and values as rows of 2h numbers, K then V, which for h = 64 is exactly a vector
register's 128 lanes. The queries of a KV head are padded with zeros to the same width, so `q · rowᵀ` is the
score and the V half of `shares · row` the result: no row is ever taken apart, and on matrix units of 128 or
256 columns the idle half costs nothing that 64 columns alone would not cost. All G queries of a KV head are
the streamed operand of one product, so each row is read from HBM once.

The softmax starts from the sink (highest score so far: the sink, sum so far: 1), so no division by zero
exists and a sequence without keys gives zeros.
"""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from pallas_kernels.attention.reference import LOWEST_SINK
from pallas_kernels.platform import Chip

LANES = 128
LOG2E = math.log2(math.e)


class Blocks(NamedTuple):
    """How much one grid step does, in bytes of keys and values, and how many steps' pages are in flight."""

    page_bytes: int
    page_buffers: int
    ring_bytes: int
    cores: int


BLOCKS: dict[Chip, Blocks] = {
    "v5e": Blocks(page_bytes=1 << 20, page_buffers=3, ring_bytes=1 << 20, cores=1),
    "v5p": Blocks(page_bytes=1 << 20, page_buffers=3, ring_bytes=1 << 20, cores=2),
    "v6e": Blocks(page_bytes=1 << 20, page_buffers=3, ring_bytes=1 << 20, cores=1),
    "7x": Blocks(page_bytes=1 << 20, page_buffers=3, ring_bytes=1 << 20, cores=1),
}


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


def keep_rows(rows: jax.Array, count: jax.Array) -> jax.Array:
    """The first `count` rows of [S, 2h], zeros behind: what was never fetched may be NaN, and 0 · NaN is
    NaN.
    """
    length, width = rows.shape
    index = jax.lax.broadcasted_iota(jnp.int32, (length, width), 0)
    return jnp.where(index < count, rows, 0)


def softmax_step(
    q: jax.Array,
    keys: jax.Array,
    values: jax.Array,
    visible: jax.Array,
    highest: jax.Array,
    total: jax.Array,
    scale: float,
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """One online softmax step of q [R, 2h] over rows [S, 2h], visible bool [R or 1, S].

    `highest`, `total` float32 [R, LANES], lanes all equal, are those so far, in base 2. Returns the sum of
    the new shares · values [R, 2h], the factor on the sum so far, and the new `highest` and `total`.
    """
    precision = jax.lax.Precision.HIGHEST if keys.dtype == jnp.float32 else None
    scores = jax.lax.dot_general(
        q, keys, (((1,), (1,)), ((), ())), precision=precision, preferred_element_type=jnp.float32
    )
    scores = jnp.where(visible, scores * (scale * LOG2E), -jnp.inf)
    new_highest = jnp.maximum(highest, jnp.broadcast_to(scores.max(axis=1, keepdims=True), highest.shape))
    correction = jnp.exp2(highest - new_highest)
    shares = jnp.exp2(scores - spread(new_highest, scores.shape[1]))
    new_total = total * correction + jnp.broadcast_to(shares.sum(axis=1, keepdims=True), total.shape)
    part = jax.lax.dot_general(
        shares.astype(values.dtype),
        values,
        (((1,), (0,)), ((), ())),
        precision=precision,
        preferred_element_type=jnp.float32,
    )
    return part, correction, new_highest, new_total


def _pages_kernel(
    sequence_ref: Any,
    block_ref: Any,
    count_ref: Any,
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
    total_ref: Any,
    *,
    scale: float,
) -> None:
    depth, kv_heads, keys_per_block, row = buffers.shape
    page = pages_ref.shape[2]
    pages_per_block = keys_per_block // page
    core, item = pl.program_id(0), pl.program_id(1)
    count = count_ref[0]

    def each_page(item: jax.Array, action: str) -> None:
        """Starts, or waits for, the copies of an item's pages that are in use."""
        slot = jax.lax.rem(item, depth)
        sequence = sequence_ref[item]
        first = block_ref[item] * pages_per_block
        used = pl.cdiv(lengths_ref[sequence], page) - first

        def one_page(index: jax.Array, _: None) -> None:
            copy = pltpu.make_async_copy(
                pages_ref.at[table_ref[sequence, first + index], pl.ds(core * kv_heads, kv_heads)],
                buffers.at[slot, :, pl.ds(index * page, page)],
                semaphores.at[slot],
            )
            getattr(copy, action)()

        jax.lax.fori_loop(0, jnp.minimum(used, pages_per_block), one_page, None)

    @pl.when(item == 0)
    def _() -> None:
        for ahead in range(depth - 1):

            @pl.when(ahead < count)
            def _(ahead: int = ahead) -> None:
                each_page(jnp.int32(ahead), "start")

    @pl.when(item + depth - 1 < count)
    def _() -> None:
        each_page(item + depth - 1, "start")

    each_page(item, "wait")

    slot = jax.lax.rem(item, depth)
    block = block_ref[item]
    remaining = lengths_ref[sequence_ref[item]] - block * keys_per_block
    is_first = block == 0
    visible = jax.lax.broadcasted_iota(jnp.int32, (1, keys_per_block), 1) < remaining
    for head in range(kv_heads):
        rows = buffers[slot, head]
        highest = jnp.where(is_first, sinks_ref[head], highest_ref[head])
        total = jnp.where(is_first, 1.0, total_ref[head])
        part, correction, highest, total = softmax_step(
            q_ref[0, head], rows, keep_rows(rows, remaining), visible, highest, total, scale
        )
        so_far = jnp.where(is_first, 0.0, sums[head])
        sums[head] = so_far * spread(correction, row) + part
        highest_ref[head], total_ref[head] = highest, total

    @pl.when(remaining <= keys_per_block)
    def _() -> None:
        for head in range(kv_heads):
            result = sums[head] / spread(total_ref[head], row)
            out_ref[0, head] = result[:, row // 2 :].astype(out_ref.dtype)


def _by_kv_head(q: jax.Array, kv_heads: int) -> jax.Array:
    """q [B, H, h] → [B, K, G, 2h], the second half zeros."""
    batch, heads, size = q.shape
    grouped = q.reshape(batch, kv_heads, heads // kv_heads, size)
    return jnp.pad(grouped, ((0, 0), (0, 0), (0, 0), (0, size)))


def _sinks_in_lanes(sinks: jax.Array, kv_heads: int) -> jax.Array:
    """[H] → float32 [K, G, LANES], in base 2."""
    scaled = jnp.maximum(sinks.astype(jnp.float32), LOWEST_SINK) * LOG2E
    return jnp.broadcast_to(scaled.reshape(kv_heads, -1, 1), (kv_heads, sinks.size // kv_heads, LANES))


def _split(kv_heads: int, cores: int) -> int:
    """Into how many parts the KV heads are split, one for each core."""
    return cores if kv_heads % cores == 0 else 1


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

    One grid step takes the keys of one block of pages of one sequence: its pages are copied to VMEM, those
    of the next steps already in flight, whichever sequence they belong to. Only pages in use are copied.
    """
    batch, heads, size = q.shape
    _, kv_heads, page, row = pages.shape
    tuning = BLOCKS[chip]
    split = _split(kv_heads, tuning.cores)
    kv_heads_each = kv_heads // split
    group = heads // kv_heads
    page_bytes = kv_heads_each * page * row * pages.dtype.itemsize
    pages_per_block = min(max(tuning.page_bytes // page_bytes, 1), table.shape[1])
    keys_per_block = pages_per_block * page
    max_blocks = pl.cdiv(table.shape[1], pages_per_block)
    table = jnp.pad(table, ((0, 0), (0, max_blocks * pages_per_block - table.shape[1])))
    items = schedule_items(lengths, keys_per_block, max_blocks)

    def of_sequence(core: Any, item: Any, sequence: Any, *_: Any) -> tuple[Any, ...]:
        return sequence[item], core, 0, 0

    out = pl.pallas_call(
        functools.partial(_pages_kernel, scale=size**-0.5),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=5,
            grid=(split, items.total[0]),
            in_specs=[
                pl.BlockSpec((1, kv_heads_each, group, row), of_sequence),
                pl.BlockSpec((kv_heads_each, group, LANES), lambda core, *_: (core, 0, 0)),
                pl.BlockSpec(memory_space=pl.ANY),
            ],
            out_specs=pl.BlockSpec((1, kv_heads_each, group, size), of_sequence),
            scratch_shapes=[
                pltpu.VMEM((tuning.page_buffers, kv_heads_each, keys_per_block, row), pages.dtype),
                pltpu.SemaphoreType.DMA((tuning.page_buffers,)),
                pltpu.VMEM((kv_heads_each, group, row), jnp.float32),
                pltpu.VMEM((kv_heads_each, group, LANES), jnp.float32),
                pltpu.VMEM((kv_heads_each, group, LANES), jnp.float32),
            ],
        ),
        out_shape=jax.ShapeDtypeStruct((batch, kv_heads, group, size), q.dtype),
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "arbitrary")),
        interpret=interpret,
        name="decode_pages",
    )(*items, lengths, table, _by_kv_head(q, kv_heads), _sinks_in_lanes(sinks, kv_heads), pages)
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
    sequences, kv_heads, _, row = ring_ref.shape
    for index in range(sequences):
        sequence = pl.program_id(1) * sequences + index
        held = held_ref[index]
        visible = (held > past_ref[sequence]) & (held <= newest_ref[sequence])
        for head in range(kv_heads):
            rows = ring_ref[index, head]
            sink = sinks_ref[head]
            part, _, _, total = softmax_step(
                q_ref[index, head], rows, rows, visible, sink, jnp.ones_like(sink), scale
            )
            result = part / spread(total, row)
            out_ref[index, head] = result[:, row // 2 :].astype(out_ref.dtype)


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
    _, kv_heads, width, row = ring.shape
    tuning = BLOCKS[chip]
    split = _split(kv_heads, tuning.cores)
    kv_heads_each = kv_heads // split
    group = heads // kv_heads
    ring_bytes = kv_heads_each * width * row * ring.dtype.itemsize
    most = max(tuning.ring_bytes // ring_bytes, 1)
    sequences = max(count for count in range(1, most + 1) if batch % count == 0)

    out = pl.pallas_call(
        functools.partial(_ring_kernel, scale=size**-0.5),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=2,
            grid=(split, batch // sequences),
            in_specs=[
                pl.BlockSpec(
                    (sequences, kv_heads_each, group, row), lambda core, step, *_: (step, core, 0, 0)
                ),
                pl.BlockSpec((kv_heads_each, group, LANES), lambda core, *_: (core, 0, 0)),
                pl.BlockSpec(
                    (sequences, kv_heads_each, width, row), lambda core, step, *_: (step, core, 0, 0)
                ),
                pl.BlockSpec((sequences, 1, width), lambda core, step, *_: (step, 0, 0)),
            ],
            out_specs=pl.BlockSpec(
                (sequences, kv_heads_each, group, size), lambda core, step, *_: (step, core, 0, 0)
            ),
        ),
        out_shape=jax.ShapeDtypeStruct((batch, kv_heads, group, size), q.dtype),
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "arbitrary")),
        interpret=interpret,
        name="decode_ring",
    )(
        positions,
        jnp.maximum(positions - window, -1),  # the newest position that is not to be seen any more
        _by_kv_head(q, kv_heads),
        _sinks_in_lanes(sinks, kv_heads),
        ring,
        held[:, None],
    )
    return out.reshape(batch, heads, size)
