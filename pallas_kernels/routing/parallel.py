"""Expert parallelism over two mesh axes, for use inside `jax.shard_map`: each device holds a slice of the
experts.

The axes differ in how tokens are distributed along them:

*reduce axis*: all devices along it have the same tokens (it is also the tensor-parallel axis). Each device
runs its own experts on them, and a sum over the axis combines the results.

*gather axis*: each device has its own tokens. Tokens and routes are gathered, each device runs its own
experts on all of them, and a reduce-scatter returns each token's result to its device. With both axes, the
reduce-scatter comes first, so that the other sum moves only a device's own tokens.

Every (token, expert) pair is computed exactly once, whatever the route. There is no all-to-all, which would
move only the rows that a device's experts need. Shapes in jax are static, so its buffers would either have
room for the worst case, all tokens of all devices, as gathering does; or have a capacity and drop the tokens
beyond it, which changes the model's answers. The output buffer of `jax.lax.ragged_all_to_all` is static as
well.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

from pallas_kernels.routing.reference import Route

Experts = Callable[[jax.Array, Route], jax.Array]
"""Runs this device's experts on x [T, D] and a route with local ids → [T, D]."""


def local_experts(route: Route, first: jax.Array | int, count: int) -> Route:
    """The route on a device that holds the `count` experts from `first` on.

    Their ids become 0 … count − 1. Every other id becomes `count`, which means no expert. Weights are
    unchanged, so the devices' results sum to the result of all experts.
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
    """Runs experts that are spread over two mesh axes on each device's own tokens.

    x [T, D] and route: the device's own tokens. T is the same on all devices along `gather_axis`; the tokens
    are the same on all devices along `reduce_axis`. experts: runs this device's slice of the `num_experts`
    experts. With n devices along both axes there are n equal slices, and the device has the slice number
    (index on `gather_axis`) · (size of `reduce_axis`) + (index on `reduce_axis`).

    Returns [T, D] in x's dtype, summed over devices in float32. An axis of size 1 costs nothing. Raises
    ValueError if n does not divide `num_experts`.
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
