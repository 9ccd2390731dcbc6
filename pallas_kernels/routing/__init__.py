"""Routing: which experts each token goes to, with what weights, and in what order the rows are computed.

On TPUs each of the three operations here is one kernel launch. On GPUs `route` and `schedule_tiles` are one
launch each. Elsewhere, and for sizes that a kernel does not support, they run in plain JAX. `parallel` is for
experts that are spread over a mesh.
"""

from __future__ import annotations

import jax

from pallas_kernels.platform import Kernel, Operation
from pallas_kernels.routing import reference
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
    """Chooses each token's experts: those with the highest logits, weighted by a softmax over them alone.

    logits [T, E] of any float dtype, without NaN; of equal logits the first one wins. valid bool [T]: False
    for padding tokens, which get no expert; None: all tokens are real. This is the router of the published
    model. Raises ValueError if `experts_per_token` is not in 1 … E.
    """
    _check(logits, experts_per_token)
    return _ROUTE(logits, valid=valid, experts_per_token=experts_per_token)


def schedule_tiles(experts: jax.Array, num_experts: int, tile: int) -> Schedule:
    """The schedule of `experts` int32 [T, A] in tiles of `tile` rows.

    The id `num_experts` means no expert.
    """
    return _SCHEDULE_TILES(experts, num_experts=num_experts, tile=tile)


def route_and_schedule(
    logits: jax.Array, experts_per_token: int, tile: int, valid: jax.Array | None = None
) -> tuple[Route, Schedule]:
    """`route`, then `schedule_tiles` of the chosen experts; one launch on TPUs.

    Arguments and errors as there.
    """
    _check(logits, experts_per_token)
    return _ROUTE_AND_SCHEDULE(logits, valid=valid, experts_per_token=experts_per_token, tile=tile)


def _check(logits: jax.Array, experts_per_token: int) -> None:
    if not 1 <= experts_per_token <= logits.shape[1]:
        raise ValueError(
            f"experts_per_token is {experts_per_token}: it must be 1 … {logits.shape[1]}, the logits' experts"
        )


def _serves(num_tokens: int, experts_per_token: int, tile: int) -> bool:
    from pallas_kernels.routing import tpu  # imported on TPUs only, since importing Pallas takes time

    return tpu.serves(num_tokens, experts_per_token, tile)


def _one_after_the_other(
    logits: jax.Array, *, valid: jax.Array | None, experts_per_token: int, tile: int
) -> tuple[Route, Schedule]:
    routed = route(logits, experts_per_token, valid)
    return routed, schedule_tiles(routed.experts, logits.shape[1], tile)


_ROUTE = Operation(
    "route",
    reference.route,
    tpu=Kernel(
        "pallas_kernels.routing.tpu:route",
        serves=lambda logits, *, valid, experts_per_token: _serves(len(logits), experts_per_token, 1),
    ),
    gpu=Kernel(
        "pallas_kernels.routing.gpu:route", serves=lambda logits, *, valid, experts_per_token: len(logits) > 0
    ),
)
_SCHEDULE_TILES = Operation(
    "schedule_tiles",
    reference.schedule_tiles,
    tpu=Kernel(
        "pallas_kernels.routing.tpu:schedule_tiles",
        serves=lambda experts, *, num_experts, tile: _serves(experts.shape[0], experts.shape[1], tile),
    ),
    gpu=Kernel(
        "pallas_kernels.routing.gpu:schedule_tiles",
        serves=lambda experts, *, num_experts, tile: experts.size > 0,
    ),
)
_ROUTE_AND_SCHEDULE = Operation(
    "route_and_schedule",
    _one_after_the_other,
    tpu=Kernel(
        "pallas_kernels.routing.tpu:route_and_schedule",
        serves=lambda logits, *, valid, experts_per_token, tile: _serves(
            len(logits), experts_per_token, tile
        ),
    ),
)
