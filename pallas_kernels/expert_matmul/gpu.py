"""The experts of one layer on an NVIDIA GPU (Hopper), on weights in the published layout.

Rows are grouped by expert in tiles. One kernel computes the gate and up maps with bias and activation, a
second the down map with bias; each program holds some output features of one tile, so an expert that no token
chose is never touched, and an expert's weights are read once per tile of rows (from the L2 cache where it has
several). Adding up a token's experts by the route's weights is a gather that XLA fuses into one more kernel.

The weights are the left operand of the products and the tokens the right one: a matrix instruction always
takes 16 or 64 weight rows, which are plenty, but as few as 16 columns, and a decode step has few tokens. So
weights go from shared memory to registers, are decoded there, and enter the matrix unit without a further
stop.

A byte holds weights 2k and 2k + 1. Even and odd ones are separate products, with the even and the odd
features of the tokens, which are kept apart: x is taken apart once, the activations between the maps are
written so.

Scales are 90 bytes a row, too oddly aligned for asynchronous copies: each step loads the scales of the next.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu

from pallas_kernels.expert_matmul.gpu_decoding import BYTES_PER_BLOCK, decode
from pallas_kernels.expert_matmul.reference import PackedLinear, clamped_swiglu
from pallas_kernels.routing import Route, Schedule, schedule_tiles


class Plan(NamedTuple):
    """A program's sizes: `rows` of tokens; `features` of outputs (of gate and of up each); `step` bytes of a
    weight row at a time; its `warps`; `stages`, how many steps' weights are on their way or in use.
    """

    rows: int
    features: int
    step: int
    warps: int
    stages: int


def plan_for(num_pairs: int, num_experts: int, dtype: Any = jnp.bfloat16) -> Plan:
    """The plan for a number of (token, choice) pairs, by the rows that an expert gets on average.

    Few rows are bound by bandwidth: small programs, many to a multiprocessor. Two warps at most, for with
    four the compiler takes warp-group instructions, whose register layout has it load two bytes at a time.
    """
    share = num_pairs / num_experts
    if num_pairs <= 16:
        return Plan(rows=16, features=16, step=128, warps=1, stages=4)
    if share <= 4:
        return Plan(rows=16, features=64, step=64, warps=2, stages=4)
    if share <= 12:
        return Plan(rows=32, features=64, step=64, warps=2, stages=4)
    if share <= 64 or dtype == jnp.float32:  # three operands instead of one fill shared memory sooner
        return Plan(rows=64, features=64, step=64, warps=4, stages=3)
    return Plan(rows=128, features=128, step=64, warps=8, stages=3)


def expert_mlp(
    x: jax.Array,
    route: Route,
    gate_up: PackedLinear,
    down: PackedLinear,
    limit: float,
    *,
    plan: Plan | None = None,
    interpret: bool = False,
) -> jax.Array:
    """As `reference.expert_mlp`. A float32 x enters the matrix units as the sum of three bfloat16 numbers.

    `plan`: another than the table's, for measurements.
    """
    num_tokens, hidden = x.shape
    if num_tokens == 0:
        return x
    num_experts = gate_up.blocks.shape[0]
    plan = plan or plan_for(route.experts.size, num_experts, x.dtype)
    schedule = schedule_tiles(route.experts, num_experts, plan.rows)
    halves = x.reshape(num_tokens, hidden // 2, 2).transpose(2, 0, 1)
    inner = _gate_up(halves, schedule, gate_up, limit, plan, interpret)
    results = _down(inner, schedule, down, plan, interpret)
    chosen = results.at[schedule.destinations].get(mode="fill", fill_value=0)
    return jnp.einsum("tad,ta->td", chosen, route.weights, precision="highest").astype(x.dtype)


def _gate_up(
    halves: jax.Array, schedule: Schedule, linear: PackedLinear, limit: float, plan: Plan, interpret: bool
) -> jax.Array:
    """halves [2, T, D/2] → activations [2, P, F/2], even and odd features apart."""
    _, num_tokens, _ = halves.shape
    half = linear.blocks.shape[2] // 2
    tiles = schedule.tile_experts.size

    def kernel(
        x: Any, tokens: Any, experts: Any, counts: Any, blocks: Any, scales: Any, bias: Any, out: Any
    ) -> None:
        tile, place, parity = pl.program_id(1), pl.program_id(0) // 2, pl.program_id(0) % 2

        @pl.when(counts[tile] > 0)
        def _() -> None:
            expert = experts[tile]
            rows = tile * plan.rows + jnp.arange(plan.rows)
            token = tokens[pl.ds(tile * plan.rows, plan.rows)]
            # Programs take every other feature: what they write is contiguous in its half.
            columns = place * plan.features + jnp.arange(plan.features)
            features, known = columns * 2 + parity, columns < half
            load = _loader(x, token, token < num_tokens)
            products = _products(
                load, blocks, scales, [(expert, 0), (expert, 1)], features, known, plan, interpret
            )
            gate, up = (
                product
                + plgpu.load(bias.at[expert, number, features], mask=known, other=0).astype(jnp.float32)[
                    :, None
                ]
                for number, product in enumerate(products)
            )
            inner = clamped_swiglu(gate, up, limit).astype(out.dtype)
            plgpu.store(out.at[parity, rows[None, :], columns[:, None]], inner, mask=known[:, None])

    return pl.pallas_call(
        kernel,
        grid=(2 * pl.cdiv(half, plan.features), tiles),
        out_shape=jax.ShapeDtypeStruct((2, schedule.tokens.size, half), halves.dtype),
        compiler_params=plgpu.CompilerParams(num_warps=plan.warps, num_stages=plan.stages),
        interpret=interpret,
        name="expert_gate_up",
    )(halves, schedule.tokens, schedule.tile_experts, schedule.tile_counts, *linear)


def _down(
    inner: jax.Array, schedule: Schedule, linear: PackedLinear, plan: Plan, interpret: bool
) -> jax.Array:
    """inner [2, P, F/2] → results float32 [P, D]; rows of padding hold anything."""
    hidden = linear.blocks.shape[1]
    tiles = schedule.tile_experts.size

    def kernel(x: Any, experts: Any, counts: Any, blocks: Any, scales: Any, bias: Any, out: Any) -> None:
        tile, place = pl.program_id(1), pl.program_id(0)

        @pl.when(counts[tile] > 0)
        def _() -> None:
            expert = experts[tile]
            rows = tile * plan.rows + jnp.arange(plan.rows)
            features = place * plan.features + jnp.arange(plan.features)
            known = features < hidden
            load = _loader(x, rows, None)
            (product,) = _products(load, blocks, scales, [(expert,)], features, known, plan, interpret)
            shift = plgpu.load(bias.at[expert, features], mask=known, other=0).astype(jnp.float32)
            plgpu.store(
                out.at[rows[None, :], features[:, None]], product + shift[:, None], mask=known[:, None]
            )

    return pl.pallas_call(
        kernel,
        grid=(pl.cdiv(hidden, plan.features), tiles),
        out_shape=jax.ShapeDtypeStruct((schedule.tokens.size, hidden), jnp.float32),
        compiler_params=plgpu.CompilerParams(num_warps=plan.warps, num_stages=plan.stages),
        interpret=interpret,
        name="expert_down",
    )(inner, schedule.tile_experts, schedule.tile_counts, *linear)


Loader = Callable[[int, jax.Array, jax.Array], jax.Array]
"""(half, places along the half, which of them exist) → the tile's operand [rows, places]."""


def _loader(x: Any, rows: jax.Array, real: jax.Array | None) -> Loader:
    """Loads from x [2, …, K/2]; rows that are not `real` are zeros."""

    def load(half: int, places: jax.Array, exist: jax.Array) -> jax.Array:
        mask = exist[None, :] if real is None else real[:, None] & exist[None, :]
        return plgpu.load(x.at[half, rows[:, None], places[None, :]], mask=mask, other=0)

    return load


def _bfloat16_parts(numbers: jax.Array) -> tuple[jax.Array, ...]:
    """bfloat16 arrays that add up to `numbers`: itself, or the three that hold a float32's 24 bits."""
    if numbers.dtype == jnp.bfloat16:
        return (numbers,)
    parts = []
    for _ in range(3):
        parts.append(numbers.astype(jnp.bfloat16))
        numbers = numbers - parts[-1].astype(jnp.float32)
    return tuple(parts)


def _products(
    load: Loader,
    blocks: Any,
    scales: Any,
    maps: Sequence[tuple[Any, ...]],
    features: jax.Array,
    known: jax.Array,
    plan: Plan,
    interpret: bool,
) -> tuple[jax.Array, ...]:
    """For each of `maps` (indices that lead to one [outputs, K]): its `features` times the tile, float32
    [features, rows]."""
    size = blocks.shape[-1]
    scales_per_step = plan.step // BYTES_PER_BLOCK

    def load_scales(step: jax.Array | int) -> tuple[jax.Array, ...]:
        places = step * scales_per_step + jnp.arange(scales_per_step)
        mask = known[:, None] & (places < scales.shape[-1])[None, :]
        return tuple(
            plgpu.load(scales.at[*lead, features[:, None], places[None, :]], mask=mask, other=0)
            for lead in maps
        )

    def run_step(step: jax.Array, carried: tuple[Any, Any]) -> tuple[Any, Any]:
        totals, step_scales = carried
        next_scales = load_scales(step + 1)
        places = step * plan.step + jnp.arange(plan.step)
        exist = places < size
        operands = [_bfloat16_parts(load(half, places, exist)) for half in (0, 1)]
        sums = []
        for lead, total, scale in zip(maps, totals, step_scales, strict=True):
            codes = plgpu.load(
                blocks.at[*lead, features[:, None], places[None, :]],
                mask=known[:, None] & exist[None, :],
                other=0,
            )
            for weights, parts in zip(decode(codes, scale, interpret=interpret), operands, strict=True):
                for part in parts:
                    total += jnp.dot(weights, part.T, preferred_element_type=jnp.float32)
            sums.append(total)
        return tuple(sums), next_scales

    zeros = jnp.zeros((plan.features, plan.rows), jnp.float32)
    start = tuple(zeros for _ in maps), load_scales(0)
    totals, _ = jax.lax.fori_loop(0, pl.cdiv(size, plan.step), run_step, start)
    return totals
