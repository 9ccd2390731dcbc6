"""Writing a decode step's entries into pages on TPUs.

The smallest piece of memory that a copy can address is a tile, 16 bf16 rows, and a token's entry is one
row in each of U·R tiles. All sequences' tiles are fetched at once, the new rows put in, and the tiles
written back. XLA's own scatter would do the same one row after another, and prefers another order of
dimensions than the attention kernels do, which costs a copy of the whole cache in every step.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from pallas_kernels.attention.layout import saturated
from pallas_kernels.attention.tpu_tuning import VMEM_LIMIT

_ENTRIES_AT_ONCE = 64


def _kernel(
    pages_ref: Any,
    rows_ref: Any,
    new_ref: Any,
    pool_in: Any,
    pool_ref: Any,
    buffer: Any,
    semaphores: Any,
) -> None:
    del pool_in  # the same memory as pool_ref
    count, units, rows, tile, lanes = buffer.shape
    first = pl.program_id(0) * count

    def tile_of(index: jax.Array) -> Any:
        start = pl.multiple_of(jax.lax.div(rows_ref[first + index], tile) * tile, tile)
        return pool_ref.at[pages_ref[first + index], :, :, pl.ds(start, tile)]

    def fetch(index: jax.Array) -> Any:
        return pltpu.make_async_copy(tile_of(index), buffer.at[index], semaphores.at[0])

    def put_back(index: jax.Array) -> Any:
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

    def for_each(do: Any) -> None:
        def one(index: jax.Array, _: None) -> None:
            page = pages_ref[first + index]
            pl.when((page >= 0) & (page < pool_ref.shape[0]))(lambda: do(index))

        jax.lax.fori_loop(0, count, one, None)

    for_each(lambda index: fetch(index).start())
    for_each(
        lambda index: fetch(index).wait()
    )  # they share a semaphore: only all of them are known to be there
    for_each(insert)
    for_each(lambda index: put_back(index).wait())


def store_entries(
    pool: jax.Array, entries: jax.Array, pages: jax.Array, rows: jax.Array, *, interpret: Any
) -> jax.Array:
    """See `pallas_kernels.attention.store_entries`, for entries [n, U, R, L] in n different pages."""
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
