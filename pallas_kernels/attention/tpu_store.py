"""Writing a decode step's entries into pages on TPUs.

A copy can address no less than a tile, 16 bfloat16 rows, and a token's entry is one row in each of U·R tiles.
The kernel reads the tiles of up to 64 sequences at once, puts the new rows in, and writes the tiles back.
XLA's scatter would work row by row, and in another order of dimensions than the attention kernels, which
would copy the whole cache in every step.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from pallas_kernels.attention.layout import saturated
from pallas_kernels.attention.tpu_tuning import VMEM_LIMIT
from pallas_kernels.platform import Chip, Interpret
from pallas_kernels.types import Copy

_ENTRIES_AT_ONCE = 64


def _kernel(
    pages_ref: jax.Ref,
    rows_ref: jax.Ref,
    new_ref: jax.Ref,
    pool_in: jax.Ref,
    pool_ref: jax.Ref,
    buffer: jax.Ref,
    semaphores: jax.Ref,
) -> None:
    """One grid step: stores the entries of n sequences.

    pages_ref, rows_ref int32 [B] in scalar memory: the page and the row of each sequence's entry.
    new_ref float32 [n, U·R, L] in VMEM: the entries.
    pool_in and pool_ref [N, U, R, P, L] in HBM: the pool, as operand and as result.
    buffer [n, U, R, tile, L] of the pool's dtype in VMEM; semaphores [2]: for reading and for writing tiles.
    """
    del pool_in  # it aliases pool_ref
    count, units, rows, tile, lanes = buffer.shape
    first = pl.program_id(0) * count

    def tile_of(index: jax.Array) -> jax.Ref:
        start = pl.multiple_of(jax.lax.div(rows_ref[first + index], tile) * tile, tile)
        return pool_ref.at[pages_ref[first + index], :, :, pl.ds(start, tile)]

    def fetch(index: jax.Array) -> Copy:
        return pltpu.make_async_copy(tile_of(index), buffer.at[index], semaphores.at[0])

    def put_back(index: jax.Array) -> Copy:
        return pltpu.make_async_copy(buffer.at[index], tile_of(index), semaphores.at[1])

    def insert(index: jax.Array) -> None:
        place = jax.lax.rem(rows_ref[first + index], tile)
        is_new = jax.lax.broadcasted_iota(jnp.int32, (tile, lanes), 0) == place
        for unit in range(units):
            for row in range(rows):
                at = unit * rows + row
                new = jnp.broadcast_to(new_ref[index, at : at + 1], (tile, lanes))
                old = buffer[index, unit, row].astype(jnp.float32)
                buffer[index, unit, row] = jnp.where(is_new, new, old).astype(buffer.dtype)
        put_back(index).start()

    def for_each(do: Callable[[jax.Array], None]) -> None:
        def one(index: jax.Array, _: None) -> None:
            page = pages_ref[first + index]
            pl.when((page >= 0) & (page < pool_ref.shape[0]))(lambda: do(index))

        jax.lax.fori_loop(0, count, one, None)

    for_each(lambda index: fetch(index).start())
    # The copies share a semaphore, so a tile is certain to be there only after all waits.
    for_each(lambda index: fetch(index).wait())
    for_each(insert)
    for_each(lambda index: put_back(index).wait())


def store_entries(
    pool: jax.Array,
    entries: jax.Array,
    pages: jax.Array,
    rows: jax.Array,
    *,
    interpret: Interpret,
    chip: Chip,
) -> jax.Array:
    """See `pallas_kernels.attention.store_entries`; stores one entry per sequence. The same on every chip."""
    del chip
    total, units, parts, lanes = entries.shape
    length = pool.shape[3]
    tile = 32 // pool.dtype.itemsize
    tile = tile if length % tile == 0 else length
    count = max(each for each in range(1, _ENTRIES_AT_ONCE + 1) if total % each == 0)
    new = saturated(entries, pool.dtype).reshape(total, units * parts, lanes).astype(jnp.float32)
    return pl.pallas_call(
        _kernel,
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=2,
            grid=(total // count,),
            in_specs=[
                pl.BlockSpec((count, units * parts, lanes), lambda step, *_: (step, 0, 0)),
                pl.BlockSpec(memory_space=pl.ANY),
            ],
            out_specs=pl.BlockSpec(memory_space=pl.ANY),
            scratch_shapes=[
                pltpu.VMEM((count, units, parts, tile, lanes), pool.dtype),
                pltpu.SemaphoreType.DMA((2,)),
            ],
        ),
        out_shape=jax.ShapeDtypeStruct(pool.shape, pool.dtype),
        input_output_aliases={3: 0},
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("arbitrary",), disable_bounds_checks=True, vmem_limit_bytes=VMEM_LIMIT
        ),
        interpret=interpret,
        name="store_entries",
    )(pages, rows, new, pool)
