"""Experts spread over two mesh axes: each device holds a slice of them. For use inside `jax.shard_map`.

The two axes are the two ways in which tokens may lie:

*reduced*: the devices of the axis have the same tokens (it is also the tensor-parallel one). Each runs its
own experts on them, and a sum over the axis puts the results together.

*gathered*: each device has its own tokens. Tokens and routes are gathered, each device runs its own experts
on all of them, and a scattering sum brings every token's result home. Where both axes are at work that comes
first, so that the other sum moves a device's own tokens only.

Every (token, expert) pair is computed exactly once, whatever the router does. An all-to-all that moves only
the rows that a device's experts need would have to fix how many those may be: jax's shapes are static. Either
it reserves room for the worst case, which is all tokens of all devices, what gathering holds anyway, or it
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


def spread_experts(
    experts: Experts,
    x: jax.Array,
    route: Route,
    num_experts: int,
    *,
    gather_axis: str,
    reduce_axis: str,
) -> jax.Array:
    """x [T, D] and its route: a device's own tokens, T the same on all devices of `gather_axis`, and the same
    tokens on all devices of `reduce_axis` → [T, D], likewise.

    `experts` runs on the device's slice of the experts: with n the product of the two axes' sizes, number
    (index on `gather_axis`) · (size of `reduce_axis`) + (index on `reduce_axis`) of n equal slices. Devices'
    results are summed in float32. An axis of size 1 costs nothing; two of them leave the call of `experts`
    alone. Raises ValueError if the devices do not divide the experts.
    """
    gathered, reduced = jax.lax.axis_size(gather_axis), jax.lax.axis_size(reduce_axis)
    devices = gathered * reduced
    if num_experts < devices or num_experts % devices:
        raise ValueError(
            f"{num_experts} experts do not divide over the {gathered} × {reduced} devices of the axes "
            f"{gather_axis!r} and {reduce_axis!r}"
        )
    if devices == 1:
        return experts(x, route)
    dtype = x.dtype
    if gathered > 1:
        x, route = jax.lax.all_gather((x, route), gather_axis, tiled=True)
    count = num_experts // devices
    index = jax.lax.axis_index(gather_axis) * reduced + jax.lax.axis_index(reduce_axis)
    result = experts(x, local_experts(route, index * count, count)).astype(jnp.float32)
    if gathered > 1:
        result = jax.lax.psum_scatter(result, gather_axis, tiled=True)
    if reduced > 1:
        result = jax.lax.psum(result, reduce_axis)  # of a device's own tokens only
    return result.astype(dtype)
