"""Experts spread over a mesh axis: each device holds a slice of them. For use inside `jax.shard_map`.

Two forms, for the two ways in which tokens may lie on that axis:

*reduced*: every device has all tokens (decoding, where the axis is also the tensor-parallel one). Each runs
its own experts on them, and a sum over the axis puts the results together.

*gathered*: each device has its own tokens (prefill, data parallelism). Tokens and routes are gathered, each
device runs its own experts on all of them, and a scattering sum brings every token's result home.

Both compute every (token, expert) pair exactly once, whatever the router does. An all-to-all that moves only
the rows that a device's experts need would have to fix how many those may be: jax's shapes are static. Either
it reserves room for the worst case, which is all tokens of all devices, what *gathered* holds anyway, or it
sets a capacity and drops what does not fit, which changes the model's answers. `jax.lax.ragged_all_to_all`
has ragged sizes, but its output buffer is static too, with the same choice to make.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

from pallas_kernels.routing.reference import Route

Experts = Callable[[jax.Array, Route], jax.Array]
"""Runs this device's experts: x [T, D] and a route whose ids are local → [T, D]."""


def local_experts(route: Route, first: jax.Array | int, count: int) -> Route:
    """The route as seen by a device that holds the `count` experts from `first` on.

    Their ids become 0 … count − 1; all other experts become nowhere, the id `count`. Weights stay, so that
    the devices' results add up to the whole.
    """
    ids = route.experts - first
    return Route(jnp.where((ids >= 0) & (ids < count), ids, count).astype(jnp.int32), route.weights)


def reduced_experts(experts: Experts, x: jax.Array, route: Route, num_experts: int, axis: str) -> jax.Array:
    """x [T, D] and its route, the same on every device of `axis` → [T, D], likewise.

    `experts` runs on the device's slice: num_experts / (size of the axis) experts, in the order of the axis.
    Results are summed in float32. Raises ValueError if the axis does not divide the experts.
    """
    partial = experts(x, _local(route, num_experts, axis))
    return jax.lax.psum(partial.astype(jnp.float32), axis).astype(x.dtype)


def gathered_experts(experts: Experts, x: jax.Array, route: Route, num_experts: int, axis: str) -> jax.Array:
    """As `reduced_experts`, for x [T, D] and a route of this device's own tokens; T is the same on all."""
    everyone, routes = jax.lax.all_gather((x, route), axis, tiled=True)
    partial = experts(everyone, _local(routes, num_experts, axis))
    return jax.lax.psum_scatter(partial.astype(jnp.float32), axis, tiled=True).astype(x.dtype)


def _local(route: Route, num_experts: int, axis: str) -> Route:
    size = jax.lax.axis_size(axis)
    if num_experts < size or num_experts % size:
        raise ValueError(f"{num_experts} experts do not divide over the {size} devices of axis {axis!r}")
    count = num_experts // size
    return local_experts(route, jax.lax.axis_index(axis) * count, count)
