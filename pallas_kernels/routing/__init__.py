"""Routing: which experts a token visits, with what weight, and in what order their rows are computed.

On TPUs one kernel does each of the three operations here, `route_and_schedule` in a single launch; on GPUs
`route` and `schedule_tiles` are a launch each; elsewhere, and for sizes that a kernel does not take, it is
plain JAX. `parallel` is for experts spread over a mesh.
"""

from __future__ import annotations

import jax

from pallas_kernels import platform
from pallas_kernels.platform import call_once
from pallas_kernels.routing import gpu, reference, tpu
from pallas_kernels.routing.parallel import local_experts, spread_experts
from pallas_kernels.routing.reference import Groups, Route, Schedule, group_by_expert, schedule_rows

__all__ = [
    "Groups",
    "Route",
    "Schedule",
    "group_by_expert",
    "local_experts",
    "route",
    "route_and_schedule",
    "schedule_rows",
    "schedule_tiles",
    "spread_experts",
]


def route(logits: jax.Array, experts_per_token: int, valid: jax.Array | None = None) -> Route:
    """Chooses each token's experts: the top logits, and a softmax over those chosen alone.

    logits [T, E] of any float dtype, without NaN; of equal ones the first wins. `valid` bool [T] marks real
    tokens (None: all); the others are routed nowhere. Source: the router of the published model. Raises
    ValueError if `experts_per_token` is not in 1 … E.
    """
    _check(logits, experts_per_token)
    choice = _choose("route", logits.shape[0], experts_per_token, 1)
    if choice.implementation == "tpu":
        return call_once(
            tpu.route, logits, valid=valid, experts_per_token=experts_per_token, interpret=choice.interpret
        )
    if choice.implementation == "gpu":
        return call_once(
            gpu.route, logits, valid=valid, experts_per_token=experts_per_token, interpret=choice.interpret
        )
    return call_once(reference.route, logits, valid=valid, experts_per_token=experts_per_token)


def schedule_tiles(experts: jax.Array, num_experts: int, tile: int) -> Schedule:
    """The schedule of `experts` int32 [T, A] in tiles of `tile` rows; the id `num_experts` means nowhere."""
    num_tokens, experts_per_token = experts.shape
    choice = _choose("schedule_tiles", num_tokens, experts_per_token, tile)
    if choice.implementation == "tpu":
        return call_once(
            tpu.schedule_tiles, experts, num_experts=num_experts, tile=tile, interpret=choice.interpret
        )
    if choice.implementation == "gpu":
        return call_once(
            gpu.schedule_tiles, experts, num_experts=num_experts, tile=tile, interpret=choice.interpret
        )
    return call_once(reference.schedule_tiles, experts, num_experts=num_experts, tile=tile)


def route_and_schedule(
    logits: jax.Array, experts_per_token: int, tile: int, valid: jax.Array | None = None
) -> tuple[Route, Schedule]:
    """`route`, and `schedule_tiles` of what it chose, in one launch where there is a kernel."""
    _check(logits, experts_per_token)
    choice = _choose("route_and_schedule", logits.shape[0], experts_per_token, tile)
    if choice.implementation == "tpu":
        return call_once(
            tpu.route_and_schedule,
            logits,
            valid=valid,
            experts_per_token=experts_per_token,
            tile=tile,
            interpret=choice.interpret,
        )
    routed = route(logits, experts_per_token, valid)
    return routed, schedule_tiles(routed.experts, logits.shape[1], tile)


def _check(logits: jax.Array, experts_per_token: int) -> None:
    if not 1 <= experts_per_token <= logits.shape[1]:
        raise ValueError(
            f"experts_per_token is {experts_per_token}: it must be 1 … {logits.shape[1]}, the logits' experts"
        )


def _choose(operation: str, num_tokens: int, experts_per_token: int, tile: int) -> platform.Choice:
    choice = platform.choose(operation, ("reference", "tpu", "gpu"))
    served = {
        "reference": True,
        "tpu": tpu.serves(num_tokens, experts_per_token, tile),
        "gpu": num_tokens * experts_per_token > 0,
    }
    return choice if served[choice.implementation] else choice._replace(implementation="reference")
