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

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu

from pallas_kernels.expert_matmul.gpu_decoding import BYTES_PER_BLOCK, LARGEST_NEAR, decode
from pallas_kernels.expert_matmul.reference import PackedLinear, clamped_swiglu
from pallas_kernels.routing import Route, Schedule, schedule_tiles


class Plan(NamedTuple):
    """A program's sizes: `rows` of tokens; `features`, weight rows (in the first kernel half of them gate,
    half up); `step`, bytes of a weight row at a time; `warps`; `stages`, how many steps' weights are on their
    way or in use. `splits`: so many programs share the columns of the down map.
    """

    rows: int
    features: int
    step: int
    warps: int
    stages: int
    splits: int = 1


def plan_for(num_pairs: int, num_experts: int, dtype: Any = jnp.bfloat16) -> Plan:
    """The plan for a number of (token, choice) pairs, by the rows that an expert gets on average.

    Few rows are bound by bandwidth: small programs, many to a multiprocessor, and for a handful of pairs the
    smallest ones, so that all multiprocessors get about the same. Two warps at most, for with four the
    compiler takes warp-group instructions, whose register layout has it load two bytes at a time.
    """
    share = num_pairs / num_experts
    if num_pairs <= 8:
        return Plan(rows=16, features=16, step=64, warps=1, stages=4, splits=2)
    if share <= 8:  # an expert with more than 16 rows takes two tiles, the second from the cache
        return Plan(rows=16, features=64, step=64, warps=2, stages=4)
    if share <= 24:
        return Plan(rows=32, features=64, step=64, warps=2, stages=4)
    if share <= 64 or dtype == jnp.float32:  # three operands instead of one fill shared memory sooner
        return Plan(rows=64, features=128, step=64, warps=4, stages=3)
    return Plan(rows=128, features=256, step=64, warps=8, stages=3)


def expert_mlp(
    x: jax.Array,
    route: Route,
    gate_up: PackedLinear,
    down: PackedLinear,
    limit: float,
    num_experts: int | None = None,
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
    held = gate_up.blocks.shape[0]
    plan = plan or plan_for(route.experts.size, num_experts or held, x.dtype)
    if num_tokens == 1:
        schedule = _tile_a_pair(route.experts, held, plan.rows)
    else:
        schedule = schedule_tiles(route.experts, held, plan.rows)
    halves = x.reshape(num_tokens, hidden // 2, 2).transpose(2, 0, 1)
    inner = _gate_up(halves, schedule, gate_up, limit, plan, interpret)
    results = _down(inner, schedule, down, plan, interpret)
    chosen = results.at[:, schedule.destinations].get(mode="fill", fill_value=0)
    return jnp.einsum("stad,ta->td", chosen, route.weights, precision="highest").astype(x.dtype)


def _tile_a_pair(experts: jax.Array, num_experts: int, rows: int) -> Schedule:
    """The schedule of one token, experts [1, A]: each of its pairs is a tile, for no expert comes twice."""
    somewhere = experts[0] < num_experts
    row = jnp.arange(experts.size, dtype=jnp.int32) * rows
    return Schedule(
        destinations=jnp.where(somewhere, row, experts.size * rows)[None],
        tokens=(jnp.arange(experts.size * rows, dtype=jnp.int32) % rows > 0).astype(jnp.int32),
        tile_experts=experts[0],
        tile_counts=somewhere.astype(jnp.int32),
        num_tiles=jnp.int32(experts.size),
    )


def _gate_up(
    halves: jax.Array, schedule: Schedule, linear: PackedLinear, limit: float, plan: Plan, interpret: bool
) -> jax.Array:
    """halves [2, T, D/2] → activations [2, P, F/2], even and odd features apart."""
    _, num_tokens, _ = halves.shape
    half = linear.blocks.shape[2] // 2
    width = plan.features // 2

    def kernel(
        x: Any, tokens: Any, experts: Any, counts: Any, blocks: Any, scales: Any, bias: Any, out: Any
    ) -> None:
        tile, place, parity = pl.program_id(1), pl.program_id(0) // 2, pl.program_id(0) % 2

        @pl.when(counts[tile] > 0)
        def _() -> None:
            rows = tile * plan.rows + jnp.arange(plan.rows)
            token = tokens[pl.ds(tile * plan.rows, plan.rows)]
            # Programs take every other feature: what they write is contiguous in its half.
            which, columns = jnp.arange(plan.features) // width, jnp.arange(plan.features) % width
            columns = place * width + columns
            weights = _Rows(experts.at[tile], (which, columns * 2 + parity), columns < half)
            load = _loader(x, token, token < num_tokens)
            steps = 0, pl.cdiv(blocks.shape[-1], plan.step)
            both = _product(load, blocks, scales, weights, steps, plan, interpret)
            both += weights.load_vector(bias).astype(jnp.float32)[:, None]
            both = both.reshape(2, width, plan.rows)
            part = jax.lax.broadcasted_iota(jnp.int32, both.shape, 0)
            gate, up = (jnp.sum(jnp.where(part == number, both, 0), axis=0) for number in (0, 1))
            columns = place * width + jnp.arange(width)
            inner = clamped_swiglu(gate, up, limit).astype(out.dtype)
            plgpu.store(
                out.at[parity, rows[None, :], columns[:, None]], inner, mask=(columns < half)[:, None]
            )

    return pl.pallas_call(
        kernel,
        grid=(2 * pl.cdiv(half, width), schedule.tile_experts.size),
        out_shape=jax.ShapeDtypeStruct((2, schedule.tokens.size, half), halves.dtype),
        compiler_params=plgpu.CompilerParams(num_warps=plan.warps, num_stages=plan.stages),
        interpret=interpret,
        name="expert_gate_up",
    )(halves, schedule.tokens, schedule.tile_experts, schedule.tile_counts, *linear)


def _down(
    inner: jax.Array, schedule: Schedule, linear: PackedLinear, plan: Plan, interpret: bool
) -> jax.Array:
    """inner [2, P, F/2] → float32 [splits, P, D], to be added up; rows of padding hold anything."""
    hidden = linear.blocks.shape[1]
    steps = pl.cdiv(pl.cdiv(linear.blocks.shape[-1], plan.step), plan.splits)

    def kernel(x: Any, experts: Any, counts: Any, blocks: Any, scales: Any, bias: Any, out: Any) -> None:
        tile, place, split = pl.program_id(1), pl.program_id(0), pl.program_id(2)

        @pl.when(counts[tile] > 0)
        def _() -> None:
            rows = tile * plan.rows + jnp.arange(plan.rows)
            features = place * plan.features + jnp.arange(plan.features)
            weights = _Rows(experts.at[tile], (features,), features < hidden)
            load = _loader(x, rows, None)
            bounds = split * steps, (split + 1) * steps
            product = _product(load, blocks, scales, weights, bounds, plan, interpret)
            shift = jnp.where(split == 0, weights.load_vector(bias).astype(jnp.float32), 0)
            plgpu.store(
                out.at[split, rows[None, :], features[:, None]],
                product + shift[:, None],
                mask=weights.exist[:, None],
            )

    return pl.pallas_call(
        kernel,
        grid=(pl.cdiv(hidden, plan.features), schedule.tile_experts.size, plan.splits),
        out_shape=jax.ShapeDtypeStruct((plan.splits, schedule.tokens.size, hidden), jnp.float32),
        compiler_params=plgpu.CompilerParams(num_warps=plan.warps, num_stages=plan.stages),
        interpret=interpret,
        name="expert_down",
    )(inner, schedule.tile_experts, schedule.tile_counts, *linear)


class _Rows:
    """Rows of the weights of a tile's expert.

    expert: where its number stands. indices: of the rows, one array for each axis between E and K. exist:
    which of the rows do.
    """

    def __init__(self, expert: Any, indices: tuple[jax.Array, ...], exist: jax.Array):
        self._place = expert
        self._expert = expert[...]
        self._indices = indices
        self.exist = exist

    def load_vector(self, ref: Any) -> jax.Array:
        """One number of each row, from ref [E, …, N]."""
        return plgpu.load(ref.at[self._expert, *self._indices], mask=self.exist, other=0)

    def load(self, ref: Any, columns: jax.Array) -> jax.Array:
        """The rows' columns, from ref [E, …, N, columns]; zeros where there is none."""
        mask = self.exist[:, None] & (columns < ref.shape[-1])[None, :]
        indices = (index[:, None] for index in self._indices)
        return plgpu.load(ref.at[self._expert, *indices, columns[None, :]], mask=mask, other=0)

    def unknown_zero(self) -> jax.Array:
        """0, but the compiler does not know it: what is added to it cannot be computed beforehand."""
        return plgpu.load(self._place, volatile=True) - self._expert


Loader = Callable[[int, jax.Array], jax.Array]
"""(half, places along the half) → the tile's operand [rows, places]."""


def _loader(x: Any, rows: jax.Array, real: jax.Array | None) -> Loader:
    """Loads from x [2, …, K/2]; rows that are not `real` and places past the end are zeros."""

    def load(half: int, places: jax.Array) -> jax.Array:
        mask = (places < x.shape[-1])[None, :]
        if real is not None:
            mask = real[:, None] & mask
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


def _product(
    load: Loader,
    blocks: Any,
    scales: Any,
    weights: _Rows,
    steps: tuple[Any, Any],
    plan: Plan,
    interpret: bool,
) -> jax.Array:
    """The rows of weights times the tile, float32 [features, rows], over the columns of some steps."""
    scales_per_step = plan.step // BYTES_PER_BLOCK

    def load_scales(step: jax.Array | int) -> jax.Array:
        return weights.load(scales, step * scales_per_step + jnp.arange(scales_per_step))

    def run(first: Any, end: Any, *, far: bool) -> tuple[jax.Array, jax.Array]:
        """The product, and the largest scales of each row."""

        def run_step(step: jax.Array, carried: tuple[Any, Any, Any]) -> tuple[Any, Any, Any]:
            total, largest, step_scales = carried
            next_scales = load_scales(step + 1)
            places = step * plan.step + jnp.arange(plan.step)
            codes = weights.load(blocks, places)
            for half, decoded in enumerate(decode(codes, step_scales, far=far, interpret=interpret)):
                for part in _bfloat16_parts(load(half, places)):
                    total += jnp.dot(decoded, part.T, preferred_element_type=jnp.float32)
            return total, jnp.maximum(largest, step_scales.astype(jnp.int32)), next_scales

        zeros = jnp.zeros((plan.features, plan.rows), jnp.float32)
        none = jnp.zeros((plan.features, scales_per_step), jnp.int32)
        total, largest, _ = jax.lax.fori_loop(first, end, run_step, (zeros, none, load_scales(first)))
        return total, largest

    def run_again() -> jax.Array:
        # Its addresses would be computed beside those of the first run, in twice the registers.
        zero = weights.unknown_zero()
        return run(steps[0] + zero, steps[1] + zero, far=True)[0]

    total, largest = run(*steps, far=False)
    return jax.lax.cond(jnp.max(largest) > LARGEST_NEAR, run_again, lambda: total)
