"""The experts' MLP on MXFP4 weights: two grouped matmuls with a clamped SwiGLU between them."""

from __future__ import annotations

import jax

from pallas_kernels.expert_matmul import reference
from pallas_kernels.expert_matmul.reference import PackedLinear, clamped_swiglu
from pallas_kernels.expert_matmul.tiling import (
    TiledExperts,
    WeightLayout,
    code_format_for,
    tile_experts,
    untile_experts,
)
from pallas_kernels.mxfp4.tiled import TiledWeights
from pallas_kernels.platform import Kernel, Operation
from pallas_kernels.routing import Route

__all__ = [
    "PackedLinear",
    "TiledExperts",
    "WeightLayout",
    "clamped_swiglu",
    "code_format_for",
    "expert_mlp",
    "tile_experts",
    "untile_experts",
]

ExpertWeights = PackedLinear | TiledWeights
"""One projection of a layer's experts, in the published layout or in that of the TPU kernel."""


def expert_mlp(
    x: jax.Array,
    route: Route,
    gate_up: ExpertWeights,
    down: ExpertWeights,
    limit: float,
    *,
    num_experts: int | None = None,
) -> jax.Array:
    """Runs each token through its experts and sums their results, weighted by the route.

    x [T, D] float32 or bfloat16; route: the experts of the T tokens; gate_up projects D → (2, F), down
    projects F → D; `limit` clamps the activation. Matmuls take operands of x's dtype and accumulate in
    float32. Returns [T, D] in x's dtype, zeros for tokens without experts. No token is ever dropped.

    The TPU kernel reads tiled weights (see `tile_experts`); the GPU kernel and the reference read published
    ones. Weights in the other layout run on the reference, which is correct but slow.

    num_experts: how many experts the whole model has; None: as many as gate_up and down hold. Give it on a
    device that holds a slice of the experts: few rows then arrive per expert, and the kernels choose their
    block sizes accordingly. It changes the speed, never the result.

    Raises ValueError if only one of gate_up and down is tiled.
    """
    if isinstance(gate_up, TiledWeights) != isinstance(down, TiledWeights):
        raise ValueError("one of gate_up and down is tiled: both or neither must be")
    return _EXPERT_MLP(x, route, gate_up, down, limit=limit, num_experts=num_experts)


def _of_any_layout(
    x: jax.Array,
    route: Route,
    gate_up: ExpertWeights,
    down: ExpertWeights,
    *,
    limit: float,
    num_experts: int | None,
) -> jax.Array:
    """The reference. It reads published weights, so tiled ones are converted back first."""
    if isinstance(gate_up, TiledWeights) and isinstance(down, TiledWeights):
        gate_up, down = untile_experts(TiledExperts(gate_up, down))
    assert isinstance(gate_up, PackedLinear) and isinstance(down, PackedLinear)
    return reference.expert_mlp(x, route, gate_up, down, limit=limit, num_experts=num_experts)


_EXPERT_MLP = Operation(
    "expert_mlp",
    _of_any_layout,
    tpu=Kernel(
        "pallas_kernels.expert_matmul.tpu:expert_mlp",
        serves=lambda x, route, gate_up, down, **_: isinstance(down, TiledWeights),
    ),
    gpu=Kernel(
        "pallas_kernels.expert_matmul.gpu:expert_mlp",
        serves=lambda x, route, gate_up, down, **_: isinstance(down, PackedLinear),
    ),
)
