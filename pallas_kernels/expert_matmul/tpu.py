"""The experts of one layer on a TPU: one kernel for both maps, which reads weights once per tile of rows.

A grid step is a tile: some rows and their expert. While a tile is computed, all weights of the next tile's
expert arrive in VMEM, in chunks of lane blocks, so that computing and reading overlap over a whole expert.
The gate and up map comes first; the activation stays in VMEM for the down map. An expert without tokens has
no tile and costs nothing. Where a device has two cores (v5p), they take turns with the tiles.

Few tokens (`resident`): all of them lie in VMEM, so that nothing but weights moves. An expert is given every
token, and the route's weights, zero for those it was not chosen by, are multiplied in at the end: while
decoding takes the time, that takes hardly longer than its own tokens alone. Where the matrix units would need
longer (v5e and v5p, more than 32 tokens), an expert's own tokens are picked out by a product with a 0/1
matrix, and its results are put back by the transposed product, unless more than 32 chose it.

Many tokens (`streamed`): rows are sorted by expert before the kernel and arrive tile by tile; the results are
gathered by token after it. There each chunk is decoded once for a tile of several hundred rows.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from pallas_kernels.expert_matmul.decoding import WEIGHT_DTYPE, product
from pallas_kernels.expert_matmul.reference import clamped_swiglu
from pallas_kernels.expert_matmul.tiling import TiledExperts
from pallas_kernels.expert_matmul.tpu_weights import Block, Map, streams_of, tile_and_read_ahead
from pallas_kernels.mxfp4 import tiled
from pallas_kernels.mxfp4.tiled import LANES, TiledWeights
from pallas_kernels.platform import Chip, Choice
from pallas_kernels.routing import Route, schedule_tiles

MOST_RESIDENT_TOKENS = 64
_MOST_SHARED_ROWS = 32
"""Computing this many rows takes hardly longer than computing one: decoding takes the time."""

_VMEM_LIMIT = 56 * 2**20

CORES: dict[Chip, int] = {"v5e": 1, "v5p": 2, "v6e": 1, "7x": 1}
"""TensorCores that share a JAX device."""


class Plan(NamedTuple):
    """How the kernel is cut.

    `rows` of a tile. `first`: numbers of rows that are computed while weights are decoded, of which the
    smallest that suffices is taken; the last is also the size of the parts in which further rows follow.
    Lane blocks of a chunk of the gate and up map (an even number) and of the down map.
    """

    rows: int
    first: tuple[int, ...]
    gate_up_blocks: int
    down_blocks: int


def plan_for(num_tokens: int, rows_per_expert: float, chip: Chip) -> Plan:
    """The plan for a number of tokens, of which an expert gets `rows_per_expert` on average."""
    if num_tokens > MOST_RESIDENT_TOKENS and rows_per_expert > 16:
        if rows_per_expert <= 96:
            return Plan(128, (32, 64, 96, 128), 4, 4)
        # The larger the matrix unit, the more rows it takes to outweigh the decoding.
        return (
            Plan(512, (32, 64, 128, 256), 6, 6) if chip in ("v6e", "7x") else Plan(512, (32, 64, 128), 4, 4)
        )
    rows = 32
    if num_tokens <= MOST_RESIDENT_TOKENS:
        rows = max(16, 1 << (max(1, num_tokens) - 1).bit_length())
    # 7x reads so fast that its vector unit is just in time if no lane block is computed in vain (46 and 23
    # are all there are) and little drains in between. The others have time for shorter code, and for chunks
    # that keep the first tile waiting less.
    if chip == "7x":
        return Plan(rows, (rows,), 46, 23)
    if chip == "v6e":
        return Plan(rows, (rows,), 24, 23) if rows > 16 else Plan(rows, (rows,), 12, 12)
    # The matrix units of v5e and v5p need longer for 64 rows than the weights need to arrive.
    return Plan(rows, (_MOST_SHARED_ROWS, rows) if rows > _MOST_SHARED_ROWS else (rows,), 12, 12)


def expert_mlp(
    x: jax.Array,
    route: Route,
    experts: TiledExperts,
    limit: float,
    choice: Choice,
    num_experts: int | None = None,
) -> jax.Array:
    """As `reference.expert_mlp`, on tiled weights."""
    num_tokens, hidden = x.shape
    if num_tokens == 0:
        return x
    held = experts.down.codes.shape[0]
    plan = plan_for(num_tokens, route.experts.size / (num_experts or held), choice.chip)
    schedule = schedule_tiles(route.experts, held, plan.rows)
    run = functools.partial(
        launch,
        tile_experts=schedule.tile_experts,
        tile_counts=schedule.tile_counts,
        num_tiles=schedule.num_tiles,
        experts=experts,
        plan=plan,
        limit=limit,
        choice=choice,
    )
    stored = tiled.to_kernel_order(x)
    if num_tokens > MOST_RESIDENT_TOKENS:
        results = run(stored.at[schedule.tokens].get(mode="fill", fill_value=0), None)
        chosen = results.at[schedule.destinations].get(mode="fill", fill_value=0)[..., :hidden]
        highest = jax.lax.Precision.HIGHEST
        return jnp.einsum("tad,ta->td", chosen, route.weights, precision=highest).astype(x.dtype)
    # Tokens that lie beside each other are multiplied by zeros, which would not stop a NaN.
    routed = (route.experts < held).any(axis=1, keepdims=True)
    finite = jnp.isfinite(x).all(axis=1, keepdims=True)
    stored = jnp.where(routed & finite, stored, 0)
    # Per token and expert: its weight, and which of the expert's rows it is (-1: none).
    chosen = route.experts[..., None] == jnp.arange(held)
    weights = jnp.where(chosen, route.weights[..., None], 0).sum(axis=1)
    row_numbers = jnp.where(chosen, schedule.destinations[..., None] % plan.rows, -1).max(axis=1)
    missing = ((0, plan.rows - num_tokens), (0, 0))
    members = Members(jnp.pad(weights, missing), jnp.pad(row_numbers, missing, constant_values=-1))
    result = run(jnp.pad(stored, missing), members)[:num_tokens, :hidden].astype(x.dtype)
    return jnp.where(routed & ~finite, jnp.nan, result)


class Members(NamedTuple):
    """What the resident kernel knows of tokens and experts: their weights float32 [M, E], 0 for none, and the
    tokens' row numbers among each expert's rows, int32 [M, E], -1 for none."""

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
    choice: Choice,
) -> jax.Array:
    """The kernel itself, for the first `num_tiles`, int32 [], tiles of a schedule.

    Resident: x [M, D'] → [M, N]. Streamed (no `members`): x [P, D'] → [P, N], rows of tiles past `num_tiles`
    undefined. N is D padded to whole chunks; the results are float32.
    """
    gate_up, down = experts.gate_up, experts.down
    plan = plan._replace(
        gate_up_blocks=min(plan.gate_up_blocks, gate_up.codes.shape[1]),
        down_blocks=min(plan.down_blocks, down.codes.shape[1]),
    )
    maps = (
        Map.of(gate_up, plan.gate_up_blocks, choice.interpret),
        Map.of(down, plan.down_blocks, choice.interpret),
    )
    cores = CORES[choice.chip]
    outputs = maps[1].chunks * plan.down_blocks * LANES
    # A step past the last tile works on nothing; it names a tile that exists.
    last_tile = tile_experts.size - 1

    def of_tile(core: Any, step: Any, *_: Any) -> tuple[Any, int]:
        return jnp.minimum(step * cores + core, last_tile), 0

    scratch = [pltpu.VMEM((plan.rows, maps[0].chunks * plan.gate_up_blocks // 2 * LANES), x.dtype)]
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
        decoded = max(tiled.padded_inputs(linear.inputs) for linear in maps) if in_parts else 0
        lanes = max(plan.gate_up_blocks, plan.down_blocks) * LANES
        scratch.append(pltpu.VMEM((max(decoded, 32), lanes if in_parts else LANES), WEIGHT_DTYPE))
    for weights, linear in zip((gate_up, down), maps, strict=True):
        shapes = [(2, linear.chunks, linear.blocks, *array.shape[2:]) for array in _arrays(weights)]
        dtypes = [array.dtype for array in _arrays(weights)]
        scratch += [pltpu.VMEM(shape, dtype) for shape, dtype in zip(shapes, dtypes, strict=True)]
        scratch.append(pltpu.SemaphoreType.DMA((2, linear.chunks)))
    # Both cores zero their sums even if there is no tile for them.
    steps = jnp.maximum(pl.cdiv(num_tiles, cores), 1)
    result: jax.Array = pl.pallas_call(
        functools.partial(
            _streamed_body if members is None else _resident_body, maps=maps, plan=plan, limit=limit
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
            # The checks cost as much as starting a copy; the simulator looks for such errors instead.
            disable_bounds_checks=True,
        ),
        interpret=choice.interpret,
        name="expert_mlp",
    )(num_tiles.reshape(1), tile_experts, tile_counts, *inputs, *_arrays(gate_up), *_arrays(down))
    return result if members is None else result.sum(axis=0)


def _resident_body(
    num_tiles: Any,
    tile_experts: Any,
    tile_counts: Any,
    x: Any,
    weights: Any,
    row_numbers: Any,
    *refs: Any,
    maps: tuple[Map, Map],
    plan: Plan,
    limit: float,
) -> None:
    out, features, picked = refs[6:9]
    streams = streams_of(refs[:6], refs[9:], maps)
    tile = tile_and_read_ahead(num_tiles, tile_experts, tile_counts, streams)

    @pl.when(pl.program_id(1) == 0)
    def _() -> None:
        out[...] = jnp.zeros_like(out)

    def of_expert(table: Any) -> jax.Array:
        """The expert's column of a table [M, E], as [M, 1]."""
        own = jax.lax.broadcasted_iota(jnp.int32, table.shape, 1) == tile.expert
        return jnp.where(own, table[...], jnp.zeros_like(table)).sum(axis=1, keepdims=True)

    smaller = 0
    for size in plan.first:

        @pl.when(tile.exists & (tile.count > smaller) & (tile.count <= size))
        def _(size: int = size) -> None:
            rows, placed = x, None
            if size < x.shape[0]:
                numbers = jax.lax.broadcasted_iota(jnp.int32, (x.shape[0], size), 1)
                placed = (of_expert(row_numbers) == numbers).astype(x.dtype)
                picked[...] = _transposed_product(placed, x[...]).astype(x.dtype)
                rows = picked

            def first_map(chunk: Any, block: Block) -> None:
                result = _activation(maps[0].product(rows, block), limit, x.dtype)
                features[:size, _lanes(chunk, plan.gate_up_blocks // 2, result)] = result

            def second_map(chunk: Any, block: Block) -> None:
                result = maps[1].product(features.at[:size, :], block)
                if placed is not None:
                    result = _exact_product(placed, result)
                own = of_expert(weights)
                lanes = _lanes(chunk, plan.down_blocks, result)
                out[:, lanes] += jnp.where(own == 0, jnp.zeros_like(result), result * own)

            streams[0].each_chunk(tile.slot, first_map)
            # A condition that always holds: in one piece with the first map, the code is too long for the
            # compiler to schedule it well.
            pl.when(tile.exists)(lambda: streams[1].each_chunk(tile.slot, second_map))

        smaller = size


def _streamed_body(
    num_tiles: Any,
    tile_experts: Any,
    tile_counts: Any,
    x: Any,
    *refs: Any,
    maps: tuple[Map, Map],
    plan: Plan,
    limit: float,
) -> None:
    out, features, decoded = refs[6:9]
    streams = streams_of(refs[:6], refs[9:], maps)
    tile = tile_and_read_ahead(num_tiles, tile_experts, tile_counts, streams)

    part = plan.first[-1]
    in_one_part = plan.rows == part
    whole_parts, rest = jax.lax.div(tile.count, part), jax.lax.rem(tile.count, part)

    def in_parts(
        linear: Map, source: Any, block: Block, store: Callable[[Any, int, jax.Array], None]
    ) -> None:
        """Multiplies the rows part by part. The first part decodes, and the larger it is the better that
        hides; the others use what was decoded then."""
        stored = tiled.padded_inputs(linear.inputs)
        keep = None if in_one_part else decoded.at[:stored, : block.codes.shape[0] * LANES]

        def multiply(number: Any, size: int, *, decode: bool) -> None:
            first = number * part if isinstance(number, int) else pl.multiple_of(number * part, part)
            rows = source.at[pl.ds(first, size), :]
            if decode or linear.wide:
                store(first, size, linear.product(rows, block, keep))
            elif keep is not None:
                store(first, size, block.finished(product(rows[:, :stored], keep[...])))

        def multiply_rest(count: Any, *, decode: bool) -> None:
            smaller = 0
            for size in plan.first:

                @pl.when((count > smaller) & (count <= size))
                def _(size: int = size) -> None:
                    multiply(0 if decode else whole_parts, size, decode=decode)

                smaller = size

        if in_one_part:
            multiply_rest(tile.count, decode=True)
            return

        @pl.when(whole_parts == 0)
        def _() -> None:
            multiply_rest(rest, decode=True)

        @pl.when(whole_parts > 0)
        def _() -> None:
            multiply(0, part, decode=True)
            jax.lax.fori_loop(1, whole_parts, lambda i, _: multiply(i, part, decode=False), None)
            multiply_rest(rest, decode=False)

    def first_map(chunk: Any, block: Block) -> None:
        def store(first: Any, size: int, result: jax.Array) -> None:
            result = _activation(result, limit, x.dtype)
            features[pl.ds(first, size), _lanes(chunk, plan.gate_up_blocks // 2, result)] = result

        in_parts(maps[0], x, block, store)

    def second_map(chunk: Any, block: Block) -> None:
        def store(first: Any, size: int, result: jax.Array) -> None:
            out[pl.ds(first, size), _lanes(chunk, plan.down_blocks, result)] = result

        in_parts(maps[1], features, block, store)

    @pl.when(tile.exists)
    def _() -> None:
        streams[0].each_chunk(tile.slot, first_map)
        streams[1].each_chunk(tile.slot, second_map)


def _activation(result: jax.Array, limit: float, dtype: Any) -> jax.Array:
    """Gate and up results, alternating for 128 features at a time → features."""
    pairs = range(0, result.shape[1], 2 * LANES)
    parts = [
        clamped_swiglu(result[:, i : i + LANES], result[:, i + LANES : i + 2 * LANES], limit).astype(dtype)
        for i in pairs
    ]
    return parts[0] if len(parts) == 1 else jnp.concatenate(parts, axis=1)


def _transposed_product(placed: jax.Array, right: jax.Array) -> jax.Array:
    """placedᵀ times `right`, float32: exact where each row of `placed`ᵀ has a single 1."""
    precision = jax.lax.Precision.HIGHEST if right.dtype == jnp.float32 else None
    dimensions = (((0,), (0,)), ((), ()))
    return jax.lax.dot_general(
        placed, right, dimensions, preferred_element_type=jnp.float32, precision=precision
    )


def _exact_product(placed: jax.Array, result: jax.Array) -> jax.Array:
    """placed [M, rows], at most a single 1 in each row, times float32 results [rows, N]."""
    if placed.dtype == jnp.float32:
        return jnp.dot(
            placed, result, preferred_element_type=jnp.float32, precision=jax.lax.Precision.HIGHEST
        )
    # Two bfloat16 numbers hold 16 bits of a result, far more than the sum keeps in the end.
    high = result.astype(jnp.bfloat16)
    low = (result - high.astype(jnp.float32)).astype(jnp.bfloat16)
    high_product, low_product = (
        jnp.dot(placed, part, preferred_element_type=jnp.float32) for part in (high, low)
    )
    return high_product + low_product


def _lanes(chunk: Any, blocks: int, result: jax.Array) -> Any:
    """Where a chunk's result stands among those of the chunks of `blocks` lane blocks each."""
    first = chunk * blocks * LANES
    return pl.ds(first if isinstance(first, int) else pl.multiple_of(first, LANES), result.shape[1])


def _arrays(weights: TiledWeights) -> tuple[jax.Array, jax.Array, jax.Array]:
    return weights.codes, weights.scales, weights.columns
