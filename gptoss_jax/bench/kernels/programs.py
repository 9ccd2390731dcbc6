"""The programs to time, lower and compile: the expert layer in several forms, and routing."""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from gptoss_jax.bench.kernels.inputs import ACTIVE, LIMIT, Model, random_projections, random_tokens
from pallas_kernels.expert_matmul import PackedLinear, gpu
from pallas_kernels.expert_matmul.reference import clamped_swiglu
from pallas_kernels.platform import using
from pallas_kernels.routing import Route, Schedule, group_by_expert, route_and_schedule

Projections = tuple[PackedLinear, PackedLinear]


def experts(x: jax.Array, route: Route, projections: Projections) -> jax.Array:
    """The expert layer on this project's kernels, with its schedule."""
    with using("gpu"):
        return gpu.expert_mlp(x, route, *projections, LIMIT)


def experts_with(plan: gpu.Plan) -> Callable[[jax.Array, Route, Projections], jax.Array]:
    """The expert layer with a given plan instead of the table's."""

    def run(x: jax.Array, route: Route, projections: Projections) -> jax.Array:
        with using("gpu"):
            return gpu.expert_mlp(x, route, *projections, LIMIT, plan=plan)

    return run


def routing(logits: jax.Array, tile: int) -> tuple[Route, Schedule]:
    """Route and schedule from the router's logits."""
    with using("gpu"):
        return route_and_schedule(logits, ACTIVE, tile)


def ragged(x: jax.Array, route: Route, projections: Projections) -> jax.Array:
    """The expert layer by `jax.lax.ragged_dot`.

    The projections' `blocks` are bfloat16 weights [E, in, out].
    """
    gate_up, down = projections
    count = down.blocks.shape[0]
    groups = group_by_expert(route.experts, count)
    ids = jnp.minimum(route.experts.reshape(-1)[groups.pairs], count - 1)
    product = functools.partial(jax.lax.ragged_dot, preferred_element_type=jnp.float32)
    both = product(x[groups.pairs // ACTIVE], gate_up.blocks, groups.counts)
    gate, up = jnp.split(both + gate_up.bias.reshape(count, -1)[ids], 2, axis=-1)
    inner = clamped_swiglu(gate, up, LIMIT).astype(x.dtype)
    results = product(inner, down.blocks, groups.counts) + down.bias[ids]
    weighted = results * route.weights.reshape(-1)[groups.pairs][:, None]
    return jnp.zeros(x.shape, jnp.float32).at[groups.pairs // ACTIVE].add(weighted).astype(x.dtype)


def ragged_projections(key: jax.Array, model: Model) -> Projections:
    """Random bfloat16 weights of one layer in the form of `ragged`."""

    def dense(key: jax.Array, inputs: int, outputs: int) -> PackedLinear:
        weights = jax.random.normal(key, (model.experts, inputs, outputs), jnp.bfloat16) * inputs**-0.5
        return PackedLinear(weights, jnp.zeros(0), jnp.zeros((model.experts, outputs), jnp.bfloat16))

    gate_up, down = jax.random.split(key)
    return dense(gate_up, model.hidden, 2 * model.inner), dense(down, model.inner, model.hidden)


def shapes(
    model: Model, tokens: int, dtype: DTypeLike = jnp.bfloat16
) -> tuple[jax.ShapeDtypeStruct, Route, Projections]:
    """The arguments of `experts`, as shapes."""
    key = jax.random.key(0)
    projections = jax.eval_shape(functools.partial(random_projections, model=model), key)
    x, route = jax.eval_shape(functools.partial(random_tokens, model=model, tokens=tokens), key)
    return jax.ShapeDtypeStruct(x.shape, dtype), route, projections
