"""The experts of one layer on an NVIDIA GPU (Hopper), on weights in the published layout.

Rows are grouped by expert into tiles. A first kernel computes gate and up with bias and activation, a second
one down with bias. Each program computes some output features of one tile, so the weights of an expert that
no token chose are never read, and those of the others are read once per tile (from the L2 cache if an expert
has several tiles). XLA sums each token's experts, weighted by the route, in one more kernel.

The weights are the left operand of the products and the tokens the right one. A matrix instruction takes at
least 16 rows, of which the weights have plenty, but only 8 columns, and a decode step has few tokens. Weights
go from shared memory to registers, are decoded there, and enter the matrix unit directly.

A byte holds weights 2k and 2k + 1. The even and the odd weights are separate products, with the even and the
odd features of the tokens. x is split into the two once; the activations are written in two halves.

A row of scales has 90 bytes, an alignment that rules out asynchronous copies, so each step loads the scales
of the next step itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu
from jax.typing import DTypeLike

from pallas_kernels.expert_matmul.gpu_decoding import BYTES_PER_BLOCK, LARGEST_NEAR, decode
from pallas_kernels.expert_matmul.reference import PackedLinear, clamped_swiglu
from pallas_kernels.platform import Interpret
from pallas_kernels.routing import Route, Schedule, schedule_tiles
from pallas_kernels.types import Index


class Plan(NamedTuple):
    """The sizes of a program.

    rows: tokens per tile. features: weight rows per program; in the first kernel half of them are gate, half
    up. step: bytes of a weight row per iteration. warps: warps per program. stages: iterations whose weights
    are in flight or in use at the same time. splits: how many programs share the columns of down.
    """

    rows: int
    features: int
    step: int
    warps: int
    stages: int
    splits: int = 1


def plan_for(num_pairs: int, num_experts: int, dtype: DTypeLike = jnp.bfloat16) -> Plan:
    """The plan for `num_pairs` (token, choice) pairs, chosen by an expert's average number of rows.

    With few rows the bandwidth is the limit: programs are small, many per multiprocessor, and smallest for a
    handful of pairs, so that all multiprocessors get about the same work. They have at most two warps: with
    four, the compiler uses warp-group instructions, whose register layout forces loads of two bytes at a
    time.
    """
    share = num_pairs / num_experts
    if num_pairs <= 8:
        return Plan(rows=16, features=16, step=64, warps=1, stages=4, splits=2)
    if share <= 8:  # an expert with more than 16 rows has two tiles; the second reads the L2 cache
        return Plan(rows=16, features=64, step=64, warps=2, stages=4)
    if share <= 24:
        return Plan(rows=32, features=64, step=64, warps=2, stages=4)
    if share <= 64 or dtype == jnp.float32:  # three operands instead of one fill shared memory faster
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
    interpret: Interpret = False,
) -> jax.Array:
    """See `pallas_kernels.expert_matmul.expert_mlp`.

    A float32 x enters the matrix units as the sum of three bfloat16 numbers. plan: the sizes to use, for
    measurements; None takes those of `plan_for`.
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
    """The schedule of a single token, experts [1, A].

    Its experts are distinct, so each pair is a tile of its own.
    """
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
    halves: jax.Array,
    schedule: Schedule,
    linear: PackedLinear,
    limit: float,
    plan: Plan,
    interpret: Interpret,
) -> jax.Array:
    """halves [2, T, D/2] → activations [2, P, F/2]; index 0 holds the even features, 1 the odd ones."""
    _, num_tokens, _ = halves.shape
    half = linear.blocks.shape[2] // 2
    width = plan.features // 2

    def kernel(
        x: jax.Ref,
        tokens: jax.Ref,
        experts: jax.Ref,
        counts: jax.Ref,
        blocks: jax.Ref,
        scales: jax.Ref,
        bias: jax.Ref,
        out: jax.Ref,
    ) -> None:
        """One program: some even or some odd features of one tile. All references are in device memory.

        x [2, T, D/2], bfloat16 or float32; tokens int32 [P]; experts, counts int32 [tiles]; blocks uint8
        [E, 2, F, D/2], scales uint8 [E, 2, F, D/32], bias [E, 2, F], float32 or bfloat16; out [2, P, F/2] of
        x's dtype.
        """
        tile, place, parity = pl.program_id(1), pl.program_id(0) // 2, pl.program_id(0) % 2

        @pl.when(counts[tile] > 0)
        def _() -> None:
            rows = tile * plan.rows + jnp.arange(plan.rows)
            token = tokens[pl.ds(tile * plan.rows, plan.rows)]
            # A program computes every other feature, so what it writes is contiguous in its half.
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
    inner: jax.Array, schedule: Schedule, linear: PackedLinear, plan: Plan, interpret: Interpret
) -> jax.Array:
    """inner [2, P, F/2] → float32 [splits, P, D], to be summed over splits; padding rows are undefined."""
    hidden = linear.blocks.shape[1]
    steps = pl.cdiv(pl.cdiv(linear.blocks.shape[-1], plan.step), plan.splits)

    def kernel(
        x: jax.Ref,
        experts: jax.Ref,
        counts: jax.Ref,
        blocks: jax.Ref,
        scales: jax.Ref,
        bias: jax.Ref,
        out: jax.Ref,
    ) -> None:
        """One program: some features of one tile, over its part of the columns. All in device memory.

        x [2, P, F/2], bfloat16 or float32; experts, counts int32 [tiles]; blocks uint8 [E, D, F/2], scales
        uint8 [E, D, F/32], bias [E, D], float32 or bfloat16; out float32 [splits, P, D].
        """
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
    """Some rows of the weights of a tile's expert.

    expert: a reference to the expert's number. indices: the rows' indices, one int32 array for each axis
    between E and K. exist: bool, True for rows that exist.
    """

    def __init__(self, expert: jax.Ref, indices: tuple[jax.Array, ...], exist: jax.Array):
        self._place = expert
        self._expert = expert[...]
        self._indices = indices
        self.exist = exist

    def load_vector(self, ref: jax.Ref) -> jax.Array:
        """Loads one number per row from ref [E, …, N]."""
        return plgpu.load(ref.at[self._expert, *self._indices], mask=self.exist, other=0)

    def load(self, ref: jax.Ref, columns: jax.Array) -> jax.Array:
        """Loads columns of the rows from ref [E, …, N, columns].

        Zeros where a row or a column does not exist.
        """
        mask = self.exist[:, None] & (columns < ref.shape[-1])[None, :]
        indices = (index[:, None] for index in self._indices)
        return plgpu.load(ref.at[self._expert, *indices, columns[None, :]], mask=mask, other=0)

    def unknown_zero(self) -> jax.Array:
        """Returns 0 in a way the compiler cannot see, so it cannot compute ahead what depends on it."""
        place: Any = self._place  # a part of a reference, for which jax has no public type
        return plgpu.load(place, volatile=True) - self._expert


Loader = Callable[[int, jax.Array], jax.Array]
"""Takes a half (0 even, 1 odd) and places in that half; returns the tile's operand [rows, places]."""


def _loader(x: jax.Ref, rows: jax.Array, real: jax.Array | None) -> Loader:
    """A loader from x [2, …, K/2]. Rows that are not `real` and places past the end load as zeros."""

    def load(half: int, places: jax.Array) -> jax.Array:
        mask = (places < x.shape[-1])[None, :]
        if real is not None:
            mask = real[:, None] & mask
        return plgpu.load(x.at[half, rows[:, None], places[None, :]], mask=mask, other=0)

    return load


def _bfloat16_parts(numbers: jax.Array) -> tuple[jax.Array, ...]:
    """bfloat16 arrays whose sum is `numbers`: one for bfloat16, three
    for the 24 significant bits of float32.
    """
    if numbers.dtype == jnp.bfloat16:
        return (numbers,)
    parts = []
    for _ in range(3):
        parts.append(numbers.astype(jnp.bfloat16))
        numbers = numbers - parts[-1].astype(jnp.float32)
    return tuple(parts)


def _product(
    load: Loader,
    blocks: jax.Ref,
    scales: jax.Ref,
    weights: _Rows,
    steps: tuple[Index, Index],
    plan: Plan,
    interpret: Interpret,
) -> jax.Array:
    """The rows of weights times the tile over the columns of the given steps → float32 [features, rows]."""
    scales_per_step = plan.step // BYTES_PER_BLOCK

    def load_scales(step: jax.Array | int) -> jax.Array:
        return weights.load(scales, step * scales_per_step + jnp.arange(scales_per_step))

    def run(first: Index, end: Index, *, far: bool) -> tuple[jax.Array, jax.Array]:
        """Returns the product, and the largest scales of each row."""

        def run_step(step: jax.Array, carried: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
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
        # Without the hidden zero, the compiler would compute the addresses of both runs at once, in twice
        # the registers.
        zero = weights.unknown_zero()
        return run(steps[0] + zero, steps[1] + zero, far=True)[0]

    total, largest = run(*steps, far=False)
    return jax.lax.cond(jnp.max(largest) > LARGEST_NEAR, run_again, lambda: total)
