"""Attention on TPUs over pages: one kernel for decoding and for chunks of prompts.

Each grid step computes one block of pages; the steps go through the blocks in use, sequence by sequence. The
pages of a step are copied to VMEM while earlier steps compute, even across sequences. Pages not in use are
never read.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.typing import DTypeLike

from pallas_kernels.attention.layout import LANES, EntryLayout
from pallas_kernels.attention.tpu_steps import (
    Softmax,
    keep,
    queries_in_columns,
    rows_kept,
    scores_of,
    sinks_in_lanes,
    softmax_step,
    spread,
    store_own_columns,
    weighted_sum,
)
from pallas_kernels.attention.tpu_tuning import BLOCKS, VMEM_LIMIT, split_units
from pallas_kernels.platform import Chip, Interpret
from pallas_kernels.types import Copy, Index

TOKENS_PER_TILE = 32
"""Prompt tokens per grid step. With 16 query heads per unit, that gives the matrix unit 512 rows."""


class Items(NamedTuple):
    """The work list of a grid: item i computes tile `tile[i]` of queries on block `block[i]` of keys.

    tile, block: int32 [I], where I is the static worst case. total int32 [1]: how many items are real. Every
    tile has at least one item, so that its result is written.
    """

    tile: jax.Array
    block: jax.Array
    total: jax.Array


def schedule_items(lengths: jax.Array, keys_per_block: int, max_blocks: int) -> Items:
    """The items of all tiles, in order; tile t sees the first lengths[t] keys, int32 [tiles]."""
    tiles = lengths.shape[0]
    blocks = jnp.maximum(pl.cdiv(lengths, keys_per_block), 1)
    ends = jnp.cumsum(blocks)
    item = jnp.arange(tiles * max_blocks, dtype=jnp.int32)
    tile = jnp.minimum((ends[None, :] <= item[:, None]).sum(axis=1), tiles - 1).astype(jnp.int32)
    block = item - (ends - blocks)[tile]
    return Items(tile, block.astype(jnp.int32), ends[-1:].astype(jnp.int32))


def _kernel(
    tile_ref: jax.Ref,
    block_ref: jax.Ref,
    total_ref: jax.Ref,
    lengths_ref: jax.Ref,
    block_table_ref: jax.Ref,
    *refs: jax.Ref,
    tiles: int,
    at_once: int,
    scale: float,
) -> None:
    """One grid step: a tile's queries attend to one block of pages.

    In scalar memory:
        tile_ref int32 [I], block_ref int32 [I], total_ref int32 [1]: the fields of `Items`.
        lengths_ref int32 [tiles]: how many keys each tile sees. block_table_ref int32 [B, M].
    refs, in order, for the U units of this core and the R queries of a unit, token by token within each head:
        q_ref [1, U, R, L] in VMEM: the tile's queries, each in the columns of its own head.
        positions_ref int32 [1, tokens, LANES] in VMEM, for prompts only: the last key that each token of the
        tile
            sees, all lanes equal. Without it, every query sees all of the tile's keys.
        sinks_ref float32 [U, R, LANES] in VMEM, in base 2, all lanes equal.
        pages_ref [N, all units, rows, P, L] in HBM, of q's dtype or 8 bits.
        out_ref [1, U, R, h] of q's dtype in VMEM.
        buffers [depth, U, rows, keys, L] of the pages' dtype in VMEM, semaphores [depth]: blocks being
            copied.
        sums float32 [U, R, L], highest_ref, sum_ref float32 [U, R, LANES] in VMEM: the softmax so far.
    tiles: tiles per sequence. at_once: units computed side by side; all of them when decoding, fewer for
    prompts, whose queries need more registers. scale: the factor on the scores, 1/√h.
    """
    if len(refs) == 10:
        q_ref, positions_ref, sinks_ref, pages_ref, out_ref, buffers, semaphores, *state = refs
    else:
        positions_ref = None
        q_ref, sinks_ref, pages_ref, out_ref, buffers, semaphores, *state = refs
    sums, highest_ref, sum_ref = state
    depth, units, rows, keys_per_block, lanes = buffers.shape
    page = pages_ref.shape[3]
    pages_per_block = keys_per_block // page
    core, item = pl.program_id(0), pl.program_id(1)
    total = total_ref[0]

    def pages_used(item: jax.Array) -> jax.Array:
        return pl.cdiv(lengths_ref[tile_ref[item]], page) - block_ref[item] * pages_per_block

    def copy_page(item: jax.Array, index: Index) -> Copy:
        slot = jax.lax.rem(item, depth)
        sequence = jax.lax.div(tile_ref[item], tiles)
        number = block_table_ref[sequence, block_ref[item] * pages_per_block + index]
        return pltpu.make_async_copy(
            pages_ref.at[number, pl.ds(core * units, units)],
            buffers.at[slot, :, :, pl.ds(index * page, page)],
            semaphores.at[slot],
        )

    def start(item: jax.Array) -> None:
        """Starts the copies of the item's pages in use."""
        used = pages_used(item)

        @pl.when(used >= pages_per_block)
        def _() -> None:
            for index in range(pages_per_block):
                copy_page(item, index).start()

        @pl.when(used < pages_per_block)
        def _() -> None:
            jax.lax.fori_loop(0, used, lambda index, _: copy_page(item, index).start(), None)

    def wait(item: jax.Array) -> None:
        """Waits for the copies that `start` started; a full block takes one wait."""
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
    remaining = lengths_ref[tile_ref[item]] - block * keys_per_block
    is_first = block == 0

    def entries_of(unit: Index, row: int, size: int) -> jax.Array:
        return buffers[slot, unit, row, :size].astype(q_ref.dtype)

    def attend(size: int) -> None:
        """Attends to the first `size` keys of the block."""
        key = jax.lax.broadcasted_iota(jnp.int32, (1, size), 1)
        visible = key < remaining
        if positions_ref is not None:
            position = positions_ref[0] - block * keys_per_block
            copies = q_ref.shape[2] // position.shape[0]
            visible = key <= spread(jnp.concatenate([position] * copies, axis=0), size)
        kept = rows_kept(size, lanes, remaining, q_ref.dtype)

        def attend_with(group: Sequence[Index]) -> None:
            # All scores, then all softmaxes, then all sums: while one unit waits for the matrix unit,
            # others compute.
            scores = [scores_of(q_ref[0, unit], entries_of(unit, 0, size), visible, scale) for unit in group]
            steps = []
            for unit, score in zip(group, scores, strict=True):
                highest = jnp.where(is_first, sinks_ref[unit], highest_ref[unit])
                steps.append(softmax_step(score, Softmax(highest, jnp.where(is_first, 1.0, sum_ref[unit]))))
            for unit, (weights, correction, softmax) in zip(group, steps, strict=True):
                part = weighted_sum(weights, keep(entries_of(unit, rows - 1, size), kept))
                sums[unit] = jnp.where(is_first, 0.0, sums[unit]) * spread(correction, lanes) + part
                highest_ref[unit], sum_ref[unit] = softmax

        if at_once == units:
            attend_with(list(range(units)))
        else:
            jax.lax.fori_loop(
                0,
                units // at_once,
                lambda part, _: attend_with([part * at_once + index for index in range(at_once)]),
                None,
            )

    sizes = [keys_per_block] if positions_ref is not None else _sizes(keys_per_block, page)
    for size, smaller in zip(sizes, [*sizes[1:], None], strict=True):
        fits = True if size == keys_per_block else remaining <= size
        needed = True if smaller is None else remaining > smaller
        if len(sizes) == 1:
            attend(size)
        else:
            pl.when(jnp.logical_and(fits, needed))(functools.partial(attend, size))

    @pl.when(remaining <= keys_per_block)
    def _() -> None:
        for unit in range(units):
            store_own_columns(out_ref, (0, unit), sums[unit] / spread(sum_ref[unit], lanes), rows)


def _sizes(keys: int, page: int) -> list[int]:
    """The numbers of keys that a step can compute: the whole block, or
    1/2, 1/4, 1/8 of it for short sequences.
    """
    return [
        keys // part for part in (1, 2, 4, 8) if keys % (part * page) == 0 and keys // part >= 2 * page
    ] or [keys]


PREFILL_BYTES = 1 << 20
"""Bytes of bfloat16 pages per step of `prefill_pages`; its scores take far more VMEM than its pages."""


class PageBlocks(NamedTuple):
    """The block of one grid step: how many pages, and how many keys they hold."""

    pages: int
    keys: int


def page_blocks(
    page: tuple[int, ...], dtype: DTypeLike, columns: int, chip: Chip, *, prefill: bool = False
) -> PageBlocks:
    """The block size for pages of shape [U, R, P, L] and a block table of `columns` columns."""
    units, rows, length, lanes = page
    itemsize = jnp.dtype(dtype).itemsize
    page_bytes = split_units(units, chip).each * rows * length * lanes * itemsize
    block_bytes = PREFILL_BYTES * min(itemsize, 2) // 2 if prefill else BLOCKS[chip].page_bytes
    pages = min(max(block_bytes // page_bytes, 1), columns)
    return PageBlocks(pages, pages * length)


def decode_pages(
    q: jax.Array,
    pages: jax.Array,
    block_table: jax.Array,
    lengths: jax.Array,
    sinks: jax.Array,
    *,
    interpret: Interpret,
    chip: Chip,
) -> jax.Array:
    """See `pallas_kernels.attention.decode_pages`. Every sequence is one tile of one token.

    Raises ValueError if the page size is not a multiple of a tile's rows (16, or 32 for 8-bit pages).
    """
    rows = queries_in_columns(q, _layout(pages))
    out = _attend(
        rows,
        None,
        pages,
        block_table,
        lengths,
        sinks_in_lanes(sinks, pages.shape[1]),
        q.shape[-1],
        interpret,
        chip,
    )
    return out.reshape(q.shape)


def prefill_pages(
    q: jax.Array,
    pages: jax.Array,
    block_table: jax.Array,
    positions: jax.Array,
    sinks: jax.Array,
    *,
    interpret: Interpret,
    chip: Chip,
) -> jax.Array:
    """See `pallas_kernels.attention.prefill_pages`. A tile is `TOKENS_PER_TILE` consecutive tokens."""
    batch, length, heads, size = q.shape
    units = pages.shape[1]
    tokens = TOKENS_PER_TILE
    tiles = pl.cdiv(length, tokens)
    missing = tiles * tokens - length
    positions = jnp.pad(positions, ((0, 0), (0, missing)), constant_values=-1).reshape(-1, tokens)
    q = jnp.pad(q, ((0, 0), (0, missing), (0, 0), (0, 0)))
    by_head = q.reshape(-1, tokens, heads, size).swapaxes(1, 2)  # [tiles, H, tokens, h]
    rows = queries_in_columns(by_head.reshape(-1, heads * tokens, size), _layout(pages))
    out = _attend(
        rows,
        positions,
        pages,
        block_table,
        positions.max(axis=1) + 1,
        jnp.repeat(sinks_in_lanes(sinks, units), tokens, axis=1),
        size,
        interpret,
        chip,
    )
    by_token = out.reshape(-1, heads, tokens, size).swapaxes(1, 2)
    return by_token.reshape(batch, tiles * tokens, heads, size)[:, :length]


def _layout(pages: jax.Array) -> EntryLayout:
    _, units, rows, _, lanes = pages.shape
    return EntryLayout(units, rows, lanes)


def _attend(
    q: jax.Array,
    positions: jax.Array | None,
    pages: jax.Array,
    block_table: jax.Array,
    lengths: jax.Array,
    sinks: jax.Array,
    size: int,
    interpret: Interpret,
    chip: Chip,
) -> jax.Array:
    """Attention of q [tiles, U, R, L], where tile t sees its first lengths[t] keys, int32 [tiles].

    positions int32 [tiles, tokens]: the last key that each token sees; None: every token sees all keys of its
    tile. sinks float32 [U, R, LANES]. Returns [tiles, U, R, h].
    """
    count, units, queries, lanes = q.shape
    rows = pages.shape[2]
    tile = 32 // pages.dtype.itemsize
    if not interpret and pages.shape[3] % tile:
        raise ValueError(f"a page has {pages.shape[3]} tokens: on TPUs it must be a multiple of {tile}")
    split, each = split_units(units, chip)
    prefill = positions is not None
    blocks = page_blocks(pages.shape[1:], pages.dtype, block_table.shape[1], chip, prefill=prefill)
    max_blocks = pl.cdiv(block_table.shape[1], blocks.pages)
    items = schedule_items(lengths, blocks.keys, max_blocks)
    table_columns = max_blocks * blocks.pages
    depth = BLOCKS[chip].page_buffers
    at_once = math.gcd(each, BLOCKS[chip].matrix_width // LANES)

    def of_tile(
        core: jax.Array, item: jax.Array, tile: jax.Ref, *_: jax.Ref
    ) -> tuple[Index, Index, int, int]:
        return tile[item], core, 0, 0

    in_specs = [pl.BlockSpec((1, each, queries, lanes), of_tile)]
    operands = [q]
    if positions is not None:
        tokens = positions.shape[1]
        in_specs.append(pl.BlockSpec((1, tokens, LANES), lambda core, item, tile, *_: (tile[item], 0, 0)))
        operands.append(jnp.broadcast_to(positions[..., None], (count, tokens, LANES)))
    in_specs += [
        pl.BlockSpec((each, queries, LANES), lambda core, *_: (core, 0, 0)),
        pl.BlockSpec(memory_space=pl.ANY),
    ]
    return pl.pallas_call(
        functools.partial(
            _kernel,
            tiles=count // block_table.shape[0],
            at_once=at_once if prefill else each,
            scale=size**-0.5,
        ),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=5,
            grid=(split, items.total[0]),
            in_specs=in_specs,
            out_specs=pl.BlockSpec((1, each, queries, size), of_tile),
            scratch_shapes=[
                pltpu.VMEM((depth, each, rows, blocks.keys, lanes), pages.dtype),
                pltpu.SemaphoreType.DMA((depth,)),
                pltpu.VMEM((each, queries, lanes), jnp.float32),
                pltpu.VMEM((each, queries, LANES), jnp.float32),
                pltpu.VMEM((each, queries, LANES), jnp.float32),
            ],
        ),
        out_shape=jax.ShapeDtypeStruct((count, units, queries, size), q.dtype),
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "arbitrary"),
            # Bounds checks on copies take a third of a step's scalar work. The simulator checks them in
            # tests.
            disable_bounds_checks=True,
            vmem_limit_bytes=VMEM_LIMIT,
        ),
        interpret=interpret,
        name="prefill_pages" if prefill else "decode_pages",
    )(
        *items,
        lengths,
        jnp.pad(block_table, ((0, 0), (0, table_columns - block_table.shape[1]))),
        *operands,
        sinks,
        pages,
    )
