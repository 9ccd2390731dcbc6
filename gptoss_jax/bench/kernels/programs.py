"""The programs that are timed, lowered and compiled: the expert layer in each of its forms, and routing."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from gptoss_jax.bench.kernels.inputs import ACTIVE, LIMIT, Model, random_maps, random_tokens
from pallas_kernels.expert_matmul import PackedLinear, gpu
from pallas_kernels.expert_matmul.reference import clamped_swiglu
from pallas_kernels.platform import using
from pallas_kernels.routing import Route, group_by_expert, route_and_schedule

Maps = tuple[PackedLinear, PackedLinear]


def experts(x: jax.Array, route: Route, maps: Maps) -> jax.Array:
    """The kernels of this project, schedule included."""
    with using("gpu"):
        return gpu.expert_mlp(x, route, *maps, LIMIT)


def experts_with(plan: gpu.Plan) -> Callable[[jax.Array, Route, Maps], jax.Array]:
    """The same with another plan than the table's, to find out whether it is faster."""

    def run(x: jax.Array, route: Route, maps: Maps) -> jax.Array:
        with using("gpu"):
            return gpu.expert_mlp(x, route, *maps, LIMIT, plan=plan)

    return run


def routing(logits: jax.Array, tile: int) -> Any:
    """Experts, weights and schedule from the router's logits."""
    with using("gpu"):
        return route_and_schedule(logits, ACTIVE, tile)


def ragged(x: jax.Array, route: Route, maps: Maps) -> jax.Array:
    """The expert layer by `jax.lax.ragged_dot`; the maps' `blocks` are bfloat16 weights [E, in, out]."""
    gate_up, down = maps
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


def ragged_maps(key: jax.Array, model: Model) -> Maps:
    """Random bfloat16 weights of one layer in the form of `ragged`."""

    def dense(key: jax.Array, inputs: int, outputs: int) -> PackedLinear:
        weights = jax.random.normal(key, (model.experts, inputs, outputs), jnp.bfloat16) * inputs**-0.5
        return PackedLinear(weights, jnp.zeros(0), jnp.zeros((model.experts, outputs), jnp.bfloat16))

    gate_up, down = jax.random.split(key)
    return dense(gate_up, model.hidden, 2 * model.inner), dense(down, model.inner, model.hidden)


def shapes(model: Model, tokens: int, dtype: Any = jnp.bfloat16) -> tuple[Any, Route, Maps]:
    """The arguments of `experts` as shapes only."""
    key = jax.random.key(0)
    maps = jax.eval_shape(functools.partial(random_maps, model=model), key)
    x, route = jax.eval_shape(functools.partial(random_tokens, model=model, tokens=tokens), key)
    return jax.ShapeDtypeStruct(x.shape, dtype), route, maps
