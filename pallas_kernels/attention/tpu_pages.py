"""Attention on TPUs over pages: one kernel for decoding and for chunks of prompts.

The grid's steps are the blocks of pages in use, of one sequence after another; a step's pages are copied to
VMEM while earlier steps compute, whichever sequence they belong to, and pages not in use are never touched.
"""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

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
    shares_of,
    sinks_in_lanes,
    spread,
    store_own_columns,
    sum_of,
)
from pallas_kernels.attention.tpu_tuning import BLOCKS, VMEM_LIMIT, split_units
from pallas_kernels.platform import Chip

TOKENS_PER_TILE = 32
"""Prompt tokens whose queries share a grid step: with 16 heads to a unit, 512 rows for the matrix unit."""


class Items(NamedTuple):
    """The work list of a grid: item i is block `block[i]` of keys for tile `tile[i]` of queries.

    int32 [I] each, I the static worst case; `total` int32 [1] of them are real. Every sequence has one item
    at least, so that its result is written.
    """

    tile: jax.Array
    block: jax.Array
    total: jax.Array


def schedule_items(lengths: jax.Array, keys_per_block: int, max_blocks: int) -> Items:
    """Items in order of their tiles, each of which sees int32 lengths [tiles] keys."""
    tiles = lengths.shape[0]
    blocks = jnp.maximum(pl.cdiv(lengths, keys_per_block), 1)
    ends = jnp.cumsum(blocks)
    item = jnp.arange(tiles * max_blocks, dtype=jnp.int32)
    tile = jnp.minimum((ends[None, :] <= item[:, None]).sum(axis=1), tiles - 1).astype(jnp.int32)
    block = item - (ends - blocks)[tile]
    return Items(tile, block.astype(jnp.int32), ends[-1:].astype(jnp.int32))


def _kernel(
    tile_ref: Any,
    block_ref: Any,
    total_ref: Any,
    lengths_ref: Any,
    table_ref: Any,
    *refs: Any,
    tiles: int,
    at_once: int,
    scale: float,
) -> None:
    """Attention of a tile of queries of each sequence; `tiles` of them make up a sequence.

    Of the units, `at_once` are computed side by side: all when decoding, but the queries of a tile of a
    prompt are more work, and take more registers.

    q_ref [1, U, R, L]: the R queries of a unit, token by token within each head. With one token to a tile,
    its query sees all keys; otherwise positions_ref [1, tokens, LANES] says what each token sees.
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

    def copy_page(item: jax.Array, index: int | jax.Array) -> Any:
        slot = jax.lax.rem(item, depth)
        sequence = jax.lax.div(tile_ref[item], tiles)
        number = table_ref[sequence, block_ref[item] * pages_per_block + index]
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
    remaining = lengths_ref[tile_ref[item]] - block * keys_per_block
    is_first = block == 0

    def entries_of(unit: Any, row: int, size: int) -> jax.Array:
        return buffers[slot, unit, row, :size].astype(q_ref.dtype)

    def attend(size: int) -> None:
        """To the first `size` keys of the block."""
        key = jax.lax.broadcasted_iota(jnp.int32, (1, size), 1)
        visible = key < remaining
        if positions_ref is not None:
            position = positions_ref[0] - block * keys_per_block
            copies = q_ref.shape[2] // position.shape[0]
            visible = key <= spread(jnp.concatenate([position] * copies, axis=0), size)
        kept = rows_kept(size, lanes, remaining, q_ref.dtype)

        def attend_with(group: list[Any]) -> None:
            # All scores, all softmaxes, all sums: while one unit waits for the matrix unit, others work.
            scores = [scores_of(q_ref[0, unit], entries_of(unit, 0, size), visible, scale) for unit in group]
            steps = []
            for unit, score in zip(group, scores, strict=True):
                highest = jnp.where(is_first, sinks_ref[unit], highest_ref[unit])
                steps.append(shares_of(score, Softmax(highest, jnp.where(is_first, 1.0, sum_ref[unit]))))
            for unit, (shares, correction, softmax) in zip(group, steps, strict=True):
                part = sum_of(shares, keep(entries_of(unit, rows - 1, size), kept))
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
    """How many keys of a block are computed: all of them, or half, … as far as a short sequence allows."""
    return [
        keys // part for part in (1, 2, 4, 8) if keys % (part * page) == 0 and keys // part >= 2 * page
    ] or [keys]


PREFILL_BYTES = 1 << 20
"""Of bf16 pages in a step of `prefill_pages`, whose scores take far more VMEM than the pages."""


class PageBlocks(NamedTuple):
    """What a grid step takes: so many pages, so many keys."""

    pages: int
    keys: int


def page_blocks(
    page: tuple[int, ...], dtype: DTypeLike, columns: int, chip: Chip, *, prefill: bool = False
) -> PageBlocks:
    """For pages of shape [U, R, P, L] and a page table of that many columns."""
    units, rows, length, lanes = page
    itemsize = jnp.dtype(dtype).itemsize
    page_bytes = split_units(units, chip).each * rows * length * lanes * itemsize
    block_bytes = PREFILL_BYTES * min(itemsize, 2) // 2 if prefill else BLOCKS[chip].page_bytes
    pages = min(max(block_bytes // page_bytes, 1), columns)
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
    """See `pallas_kernels.attention.decode_pages`: every sequence is one tile of one token."""
    rows = queries_in_columns(q, _layout(pages))
    out = _attend(
        rows, None, pages, table, lengths, sinks_in_lanes(sinks, pages.shape[1]), q.shape[-1], interpret, chip
    )
    return out.reshape(q.shape)


def prefill_pages(
    q: jax.Array,
    pages: jax.Array,
    table: jax.Array,
    positions: jax.Array,
    sinks: jax.Array,
    *,
    interpret: Any,
    chip: Chip,
) -> jax.Array:
    """See `pallas_kernels.attention.prefill_pages`: tiles of consecutive tokens, each up to the last key it
    sees.
    """
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
        table,
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
    table: jax.Array,
    lengths: jax.Array,
    sinks: jax.Array,
    size: int,
    interpret: Any,
    chip: Chip,
) -> jax.Array:
    """Tiles of queries q [tiles, U, R, L], each of which sees its first int32 lengths [tiles] keys.

    positions int32 [tiles, tokens], where what a tile's tokens see differs; sinks float32 [U, R, LANES].
    Returns [tiles, U, R, h].
    """
    count, units, queries, lanes = q.shape
    rows = pages.shape[2]
    tile = 32 // pages.dtype.itemsize
    if not interpret and pages.shape[3] % tile:
        raise ValueError(f"a page has {pages.shape[3]} tokens: on TPUs it must be a multiple of {tile}")
    split, each = split_units(units, chip)
    prefill = positions is not None
    blocks = page_blocks(pages.shape[1:], pages.dtype, table.shape[1], chip, prefill=prefill)
    max_blocks = pl.cdiv(table.shape[1], blocks.pages)
    items = schedule_items(lengths, blocks.keys, max_blocks)
    table_columns = max_blocks * blocks.pages
    depth = BLOCKS[chip].page_buffers
    at_once = math.gcd(each, BLOCKS[chip].matrix_width // LANES)

    def of_tile(core: Any, item: Any, tile: Any, *_: Any) -> tuple[Any, ...]:
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
            _kernel, tiles=count // table.shape[0], at_once=at_once if prefill else each, scale=size**-0.5
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
            # Checking each copy's bounds takes a third of a step's scalar work; the tests run with checks.
            disable_bounds_checks=True,
            vmem_limit_bytes=VMEM_LIMIT,
        ),
        interpret=interpret,
        name="prefill_pages" if prefill else "decode_pages",
    )(
        *items,
        lengths,
        jnp.pad(table, ((0, 0), (0, table_columns - table.shape[1]))),
        *operands,
        sinks,
        pages,
    )
