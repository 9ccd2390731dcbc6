"""The experts of one layer on a TPU: one kernel for both projections.

A grid step computes one tile: some rows that share an expert. Meanwhile the weights of the next tile's expert
are copied to VMEM, in chunks of lane blocks, so computing and reading overlap over a whole expert. Gate and
up come first; the activations stay in VMEM for down. An expert without tokens has no tile and costs nothing.
On a device with two cores (v5p), the cores take alternate tiles.

With few tokens (`resident`) all of them stay in VMEM and only weights move. Every chosen expert computes
every token, and the results are multiplied by the route's weights, which are zero where a token did not
choose the expert. Decoding takes most of the time, so this is hardly slower than computing the expert's own
tokens. On v5e and v5p, more than 32 tokens would keep the matrix units busy for longer: there a product with
a 0/1 matrix selects an expert's own tokens, and the transposed product puts the results back, unless more
than 32 tokens chose it.

With many tokens (`streamed`) the rows are sorted by expert before the kernel and arrive tile by tile, and the
results are gathered by token after it. Each chunk is decoded once for a tile of several hundred rows.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.typing import DTypeLike

from pallas_kernels.expert_matmul.decoding import WEIGHT_DTYPE, product
from pallas_kernels.expert_matmul.reference import clamped_swiglu
from pallas_kernels.expert_matmul.tiling import TiledExperts
from pallas_kernels.expert_matmul.tpu_weights import (
    Chunk,
    Projection,
    streams_of,
    tile_and_read_ahead,
)
from pallas_kernels.mxfp4 import tiled
from pallas_kernels.mxfp4.tiled import LANES, TiledWeights
from pallas_kernels.platform import Chip, Interpret
from pallas_kernels.routing import Route, schedule_tiles
from pallas_kernels.types import Index

MAX_RESIDENT_TOKENS = 64
_MAX_SHARED_ROWS = 32
"""Up to this many rows, decoding takes longer than multiplying, so they cost hardly more than one row."""

_LARGEST = float(jnp.finfo(jnp.bfloat16).max)
"""The matrix unit splits float32 numbers into bfloat16 parts, and
the parts of a larger number are infinite.
"""

_VMEM_LIMIT = 56 * 2**20

CORES: dict[Chip, int] = {"v5e": 1, "v5p": 2, "v6e": 1, "7x": 1}
"""TensorCores per JAX device."""


class Plan(NamedTuple):
    """The block sizes of the kernel.

    rows: rows per tile. first: sizes of the first part of a tile, which is computed while weights are
    decoded; the smallest that holds the tile's rows is used, and further rows follow in parts of the last
    size. gate_up_blocks (even), down_blocks: lane blocks per chunk of weights.
    """

    rows: int
    first: tuple[int, ...]
    gate_up_blocks: int
    down_blocks: int


def plan_for(num_tokens: int, rows_per_expert: float, chip: Chip) -> Plan:
    """The plan for `num_tokens` tokens, where an expert gets `rows_per_expert` rows on average."""
    if num_tokens > MAX_RESIDENT_TOKENS and rows_per_expert > 16:
        if rows_per_expert <= 96:
            return Plan(128, (32, 64, 96, 128), 4, 4)
        # The larger the matrix unit, the more rows are needed until multiplying takes longer than decoding.
        return (
            Plan(512, (32, 64, 128, 256), 6, 6) if chip in ("v6e", "7x") else Plan(512, (32, 64, 128), 4, 4)
        )
    rows = 32
    if num_tokens <= MAX_RESIDENT_TOKENS:
        rows = max(16, 1 << (max(1, num_tokens) - 1).bit_length())
    # 7x reads so fast that its vector unit only keeps up if no padding is computed (46 and 23 are all lane
    # blocks of 2,880 outputs) and the matrix units drain rarely. The others have time for shorter code, and
    # for smaller chunks, which let the first tile start earlier.
    if chip == "7x":
        return Plan(rows, (rows,), 46, 23)
    if chip == "v6e":
        return Plan(rows, (rows,), 24, 23) if rows > 16 else Plan(rows, (rows,), 12, 12)
    # On v5e and v5p the matrix units take longer for 64 rows than the memory takes for the weights.
    return Plan(rows, (_MAX_SHARED_ROWS, rows) if rows > _MAX_SHARED_ROWS else (rows,), 12, 12)


def expert_mlp(
    x: jax.Array,
    route: Route,
    gate_up: TiledWeights,
    down: TiledWeights,
    limit: float,
    num_experts: int | None = None,
    *,
    interpret: Interpret,
    chip: Chip,
) -> jax.Array:
    """See `pallas_kernels.expert_matmul.expert_mlp`; the weights are tiled."""
    num_tokens, hidden = x.shape
    if num_tokens == 0:
        return x
    held = down.codes.shape[0]
    plan = plan_for(num_tokens, route.experts.size / (num_experts or held), chip)
    schedule = schedule_tiles(route.experts, held, plan.rows)
    run = functools.partial(
        launch,
        tile_experts=schedule.tile_experts,
        tile_counts=schedule.tile_counts,
        num_tiles=schedule.num_tiles,
        experts=TiledExperts(gate_up, down),
        plan=plan,
        limit=limit,
        interpret=interpret,
        chip=chip,
    )
    stored = tiled.to_kernel_order(x)
    if num_tokens > MAX_RESIDENT_TOKENS:
        results = run(stored.at[schedule.tokens].get(mode="fill", fill_value=0), None)
        chosen = results.at[schedule.destinations].get(mode="fill", fill_value=0)[..., :hidden]
        highest = jax.lax.Precision.HIGHEST
        return jnp.einsum("tad,ta->td", chosen, route.weights, precision=highest).astype(x.dtype)
    # Every expert computes every token and multiplies by zero where it was not chosen; a NaN would survive
    # that.
    routed = (route.experts < held).any(axis=1, keepdims=True)
    finite = (jnp.abs(x) <= _LARGEST).all(axis=1, keepdims=True)
    stored = jnp.where(routed & finite, stored, 0)
    # For each token and expert: the weight, and the token's row among the expert's rows (-1: none).
    chosen = route.experts[..., None] == jnp.arange(held)
    weights = jnp.where(chosen, route.weights[..., None], 0).sum(axis=1)
    row_numbers = jnp.where(chosen, schedule.destinations[..., None] % plan.rows, -1).max(axis=1)
    missing = ((0, plan.rows - num_tokens), (0, 0))
    members = Members(jnp.pad(weights, missing), jnp.pad(row_numbers, missing, constant_values=-1))
    result = run(jnp.pad(stored, missing), members)[:num_tokens, :hidden].astype(x.dtype)
    return jnp.where(routed & ~finite, jnp.nan, result)


class Members(NamedTuple):
    """Which tokens chose which experts, for the resident kernel.

    weights float32 [M, E]: the route's weights, 0 where a token did not choose an expert. row_numbers int32
    [M, E]: the token's row among the expert's rows, -1 where it did not choose the expert.
    """

    weights: jax.Array
    row_numbers: jax.Array


def launch(
    x: jax.Array,
    members: Members | None,
    *,
    tile_experts: jax.Array,
    tile_counts: jax.Array,
    num_tiles: jax.Array,
    experts: TiledExperts,
    plan: Plan,
    limit: float,
    interpret: Interpret,
    chip: Chip,
) -> jax.Array:
    """Launches the kernel for the first `num_tiles`, int32 [], tiles of a schedule.

    x [M, D'] with `members` runs the resident kernel and returns float32 [M, N]. x [P, D'] without `members`
    (None) runs the streamed kernel and returns float32 [P, N], whose rows past the last tile are undefined. N
    is D padded to whole chunks.
    """
    gate_up, down = experts.gate_up, experts.down
    plan = plan._replace(
        gate_up_blocks=min(plan.gate_up_blocks, gate_up.codes.shape[1]),
        down_blocks=min(plan.down_blocks, down.codes.shape[1]),
    )
    projections = (
        Projection.of(gate_up, plan.gate_up_blocks, interpret),
        Projection.of(down, plan.down_blocks, interpret),
    )
    cores = CORES[chip]
    outputs = projections[1].chunks * plan.down_blocks * LANES
    # A step past the last tile computes nothing, but its block index must exist.
    last_tile = tile_experts.size - 1

    def of_tile(core: jax.Array, step: jax.Array, *_: jax.Ref) -> tuple[jax.Array, int]:
        return jnp.minimum(step * cores + core, last_tile), 0

    scratch = [pltpu.VMEM((plan.rows, projections[0].chunks * plan.gate_up_blocks // 2 * LANES), x.dtype)]
    if members is not None:
        inputs: list[jax.Array] = [x, *members]
        specs = [pl.BlockSpec(array.shape, lambda *_: (0, 0)) for array in inputs]
        out_spec = pl.BlockSpec((None, plan.rows, outputs), lambda core, *_: (core, 0, 0))
        out_shape: tuple[int, ...] = (cores, plan.rows, outputs)
        scratch.append(pltpu.VMEM((plan.first[0], x.shape[1]), x.dtype))
    else:
        inputs = [x]
        specs = [pl.BlockSpec((plan.rows, x.shape[1]), of_tile)]
        out_spec = pl.BlockSpec((plan.rows, outputs), of_tile)
        out_shape = (x.shape[0], outputs)
        in_parts = plan.rows > plan.first[-1]
        decoded = max(tiled.padded_inputs(projection.inputs) for projection in projections) if in_parts else 0
        lanes = max(plan.gate_up_blocks, plan.down_blocks) * LANES
        scratch.append(pltpu.VMEM((max(decoded, 32), lanes if in_parts else LANES), WEIGHT_DTYPE))
    for weights, projection in zip((gate_up, down), projections, strict=True):
        buffers = 2, projection.chunks, projection.blocks
        shapes = [(*buffers, *array.shape[2:]) for array in _arrays(weights)]
        dtypes = [array.dtype for array in _arrays(weights)]
        scratch += [pltpu.VMEM(shape, dtype) for shape, dtype in zip(shapes, dtypes, strict=True)]
        scratch.append(pltpu.SemaphoreType.DMA((2, projection.chunks)))
    # At least one step, so that each core zeroes its sums even without a tile.
    steps = jnp.maximum(pl.cdiv(num_tiles, cores), 1)
    result: jax.Array = pl.pallas_call(
        functools.partial(
            _streamed_body if members is None else _resident_body,
            projections=projections,
            plan=plan,
            limit=limit,
        ),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=3,
            grid=(cores, steps),
            in_specs=[*specs, *[pl.BlockSpec(memory_space=pl.ANY)] * 6],
            out_specs=out_spec,
            scratch_shapes=scratch,
        ),
        out_shape=jax.ShapeDtypeStruct(out_shape, jnp.float32),
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "arbitrary"),
            vmem_limit_bytes=_VMEM_LIMIT,
            # Bounds checks cost as much as starting a copy. The simulator checks them in tests.
            disable_bounds_checks=True,
        ),
        interpret=interpret,
        name="expert_mlp",
    )(num_tiles.reshape(1), tile_experts, tile_counts, *inputs, *_arrays(gate_up), *_arrays(down))
    return result if members is None else result.sum(axis=0)


def _resident_body(
    num_tiles: jax.Ref,
    tile_experts: jax.Ref,
    tile_counts: jax.Ref,
    x: jax.Ref,
    weights: jax.Ref,
    row_numbers: jax.Ref,
    *refs: jax.Ref,
    projections: tuple[Projection, Projection],
    plan: Plan,
    limit: float,
) -> None:
    """One grid step of the resident kernel: all M tokens go through one expert; the results are added to
    `out`.

    In scalar memory:
        num_tiles int32 [1]; tile_experts, tile_counts int32 [tiles]: the schedule.
    In VMEM, the same in every step:
        x [M, D']: the tokens, bfloat16 or float32, inputs in kernel order.
        weights float32 [M, E]; row_numbers int32 [M, E]: the fields of `Members`.
    refs, in order:
        codes int32, scales int32 and columns float32 of gate and up, then of down, [E, C, …] in HBM: the
            arrays of `TiledWeights`.
        out float32 [M, N] in VMEM: this core's sum over its experts.
        features [M, F'] of x's dtype in VMEM: the activations between gate_up and down; F' is whole lane
            blocks.
        picked [rows, D'] of x's dtype in VMEM: an expert's own tokens; rows is `plan.first[0]`.
        buffers and semaphores of the weights: see `WeightStream`.
    """
    out, features, picked = refs[6:9]
    streams = streams_of(refs[:6], refs[9:], projections)
    tile = tile_and_read_ahead(num_tiles, tile_experts, tile_counts, streams)

    @pl.when(pl.program_id(1) == 0)
    def _() -> None:
        out[...] = jnp.zeros_like(out)

    def of_expert(table: jax.Ref) -> jax.Array:
        """The current expert's column of a table [M, E], as [M, 1]."""
        own = jax.lax.broadcasted_iota(jnp.int32, table.shape, 1) == tile.expert
        return jnp.where(own, table[...], jnp.zeros_like(table)).sum(axis=1, keepdims=True)

    smaller = 0
    for size in plan.first:

        @pl.when(tile.exists & (tile.rows > smaller) & (tile.rows <= size))
        def _(size: int = size) -> None:
            rows, placed = x, None
            if size < x.shape[0]:
                numbers = jax.lax.broadcasted_iota(jnp.int32, (x.shape[0], size), 1)
                placed = (of_expert(row_numbers) == numbers).astype(x.dtype)
                picked[...] = _transposed_product(placed, x[...]).astype(x.dtype)
                rows = picked

            def gate_and_up(number: Index, chunk: Chunk) -> None:
                result = _activation(projections[0].product(rows, chunk), limit, x.dtype)
                features[:size, _lanes(number, plan.gate_up_blocks // 2, result)] = result

            def down(number: Index, chunk: Chunk) -> None:
                result = projections[1].product(features.at[:size, :], chunk)
                if placed is not None:
                    result = _put_back(placed, result)
                own = of_expert(weights)
                lanes = _lanes(number, plan.down_blocks, result)
                out[:, lanes] += jnp.where(own == 0, jnp.zeros_like(result), result * own)

            streams[0].each_chunk(tile.slot, gate_and_up)
            # This condition always holds here. It splits the code: in one block with gate and up it would
            # be too long for the compiler to schedule well.
            pl.when(tile.exists)(lambda: streams[1].each_chunk(tile.slot, down))

        smaller = size


def _streamed_body(
    num_tiles: jax.Ref,
    tile_experts: jax.Ref,
    tile_counts: jax.Ref,
    x: jax.Ref,
    *refs: jax.Ref,
    projections: tuple[Projection, Projection],
    plan: Plan,
    limit: float,
) -> None:
    """One grid step of the streamed kernel: a tile of rows goes through its expert.

    In scalar memory:
        num_tiles int32 [1]; tile_experts, tile_counts int32 [tiles]: the schedule.
    In VMEM:
        x [rows, D']: the tile's rows, bfloat16 or float32, inputs in kernel order; rows is `plan.rows`.
    refs, in order:
        codes int32, scales int32 and columns float32 of gate and up, then of down, [E, C, …] in HBM: the
            arrays of `TiledWeights`.
        out float32 [rows, N] in VMEM: the tile's results.
        features [rows, F'] of x's dtype in VMEM: the activations between gate_up and down; F' is whole lane
            blocks.
        decoded [K', lanes] of `WEIGHT_DTYPE` in VMEM: a chunk's decoded weights, for the parts after the
            first one; K' is the larger number of inputs. Unused if a tile is a single part.
        buffers and semaphores of the weights: see `WeightStream`.
    """
    out, features, decoded = refs[6:9]
    streams = streams_of(refs[:6], refs[9:], projections)
    tile = tile_and_read_ahead(num_tiles, tile_experts, tile_counts, streams)

    part = plan.first[-1]
    in_one_part = plan.rows == part
    whole_parts, rest = jax.lax.div(tile.rows, part), jax.lax.rem(tile.rows, part)

    def in_parts(
        projection: Projection,
        source: jax.Ref,
        chunk: Chunk,
        store: Callable[[Index, int, jax.Array], None],
    ) -> None:
        """Multiplies the rows of `source` part by part, and calls `store(first row, size, results)` for each.

        The first part decodes the weights and keeps them for the other parts. It is the largest one, so that
        most of the decoding overlaps with multiplying.
        """
        stored = tiled.padded_inputs(projection.inputs)
        keep = None if in_one_part else decoded.at[:stored, : chunk.codes.shape[0] * LANES]

        def multiply(number: Index, size: int, *, decode: bool) -> None:
            first = number * part if isinstance(number, int) else pl.multiple_of(number * part, part)
            rows = source.at[pl.ds(first, size), :]
            if decode or projection.wide:
                store(first, size, projection.product(rows, chunk, keep))
            elif keep is not None:
                store(first, size, chunk.finished(product(rows[:, :stored], keep[...])))

        def multiply_rest(count: jax.Array, *, decode: bool) -> None:
            smaller = 0
            for size in plan.first:

                @pl.when((count > smaller) & (count <= size))
                def _(size: int = size) -> None:
                    multiply(0 if decode else whole_parts, size, decode=decode)

                smaller = size

        if in_one_part:
            multiply_rest(tile.rows, decode=True)
            return

        @pl.when(whole_parts == 0)
        def _() -> None:
            multiply_rest(rest, decode=True)

        @pl.when(whole_parts > 0)
        def _() -> None:
            multiply(0, part, decode=True)
            jax.lax.fori_loop(1, whole_parts, lambda i, _: multiply(i, part, decode=False), None)
            multiply_rest(rest, decode=False)

    def gate_and_up(number: Index, chunk: Chunk) -> None:
        def store(first: Index, size: int, result: jax.Array) -> None:
            result = _activation(result, limit, x.dtype)
            features[pl.ds(first, size), _lanes(number, plan.gate_up_blocks // 2, result)] = result

        in_parts(projections[0], x, chunk, store)

    def down(number: Index, chunk: Chunk) -> None:
        def store(first: Index, size: int, result: jax.Array) -> None:
            out[pl.ds(first, size), _lanes(number, plan.down_blocks, result)] = result

        in_parts(projections[1], features, chunk, store)

    @pl.when(tile.exists)
    def _() -> None:
        streams[0].each_chunk(tile.slot, gate_and_up)
        streams[1].each_chunk(tile.slot, down)


def _activation(result: jax.Array, limit: float, dtype: DTypeLike) -> jax.Array:
    """Applies the SwiGLU to results whose lane blocks alternate between gate and up → features of `dtype`."""
    pairs = range(0, result.shape[1], 2 * LANES)
    parts = [
        clamped_swiglu(result[:, i : i + LANES], result[:, i + LANES : i + 2 * LANES], limit).astype(dtype)
        for i in pairs
    ]
    return parts[0] if len(parts) == 1 else jnp.concatenate(parts, axis=1)


def _transposed_product(placed: jax.Array, right: jax.Array) -> jax.Array:
    """placedᵀ · right in float32; exact, because a row of placedᵀ has at most a single 1."""
    precision = jax.lax.Precision.HIGHEST if right.dtype == jnp.float32 else None
    dimensions = (((0,), (0,)), ((), ()))
    return jax.lax.dot_general(
        placed, right, dimensions, preferred_element_type=jnp.float32, precision=precision
    )


def _put_back(placed: jax.Array, result: jax.Array) -> jax.Array:
    """placed [M, rows], with at most a single 1 per row, times float32 results [rows, N] → float32 [M, N].

    A result that is not finite becomes NaN in its own row only. A plain product would multiply it by zero for
    the other rows, and make them NaN as well.
    """
    finite = jnp.abs(result) <= _LARGEST
    result = jnp.where(finite, result, 0)
    lost = jnp.dot(placed, jnp.where(finite, 0, 1).astype(placed.dtype), preferred_element_type=jnp.float32)
    if placed.dtype == jnp.float32:
        total = jnp.dot(
            placed, result, preferred_element_type=jnp.float32, precision=jax.lax.Precision.HIGHEST
        )
    else:
        # Two bfloat16 numbers hold 16 bits of a result, more than the final bfloat16 result keeps.
        high = result.astype(jnp.bfloat16)
        low = (result - high.astype(jnp.float32)).astype(jnp.bfloat16)
        high_product, low_product = (
            jnp.dot(placed, part, preferred_element_type=jnp.float32) for part in (high, low)
        )
        total = high_product + low_product
    return jnp.where(lost > 0, jnp.nan, total)


def _lanes(number: Index, blocks: int, result: jax.Array) -> pl.Slice:
    """The lanes of the result of chunk `number`, where every chunk has `blocks` lane blocks."""
    first = number * blocks * LANES
    return pl.ds(first if isinstance(first, int) else pl.multiple_of(first, LANES), result.shape[1])


def _arrays(weights: TiledWeights) -> tuple[jax.Array, jax.Array, jax.Array]:
    return weights.codes, weights.scales, weights.columns
