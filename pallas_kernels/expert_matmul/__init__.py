"""The expert computation on MXFP4 weights: two grouped matmuls with a clamped SwiGLU between them."""

from __future__ import annotations

import jax

from pallas_kernels.expert_matmul import gpu, reference, tpu
from pallas_kernels.expert_matmul.reference import PackedLinear, clamped_swiglu
from pallas_kernels.expert_matmul.tiling import (
    Arrangement,
    TiledExperts,
    form_for,
    tile_experts,
    untile_experts,
)
from pallas_kernels.mxfp4.tiled import TiledWeights
from pallas_kernels.platform import call_once, choose
from pallas_kernels.routing import Route

__all__ = [
    "Arrangement",
    "PackedLinear",
    "TiledExperts",
    "clamped_swiglu",
    "expert_mlp",
    "form_for",
    "tile_experts",
    "untile_experts",
]


def expert_mlp(
    x: jax.Array,
    route: Route,
    gate_up: PackedLinear | TiledWeights,
    down: PackedLinear | TiledWeights,
    limit: float,
    *,
    num_experts: int | None = None,
) -> jax.Array:
    """Runs each token through its experts and adds the results by the route's weights.

    x [T, D] float32 or bfloat16; route for T tokens; gate_up maps D → (2, F), down maps F → D; `limit` clamps
    the activation. Matmuls take operands of x's dtype and accumulate in float32; the result is [T, D] in x's
    dtype. Tokens routed nowhere come back as zeros. No token is ever dropped.

    The TPU kernel reads tiled weights (`tile_experts`), the GPU kernel and the reference published ones.
    Weights of the other arrangement work too, by the reference: right, but slow.

    `num_experts`: of the whole model, where the weights are only this device's slice of them and most of the
    route leads nowhere, so that the kernels expect as few rows for an expert as come. Results do not depend
    on it. None: the weights are all there are.
    """
    options = {"limit": limit, "num_experts": num_experts}
    choice = choose("expert_mlp", ("reference", "tpu", "gpu"))
    if isinstance(gate_up, TiledWeights) and isinstance(down, TiledWeights):
        if choice.implementation == "tpu":
            return call_once(tpu.expert_mlp, x, route, TiledExperts(gate_up, down), choice=choice, **options)
        published = untile_experts(TiledExperts(gate_up, down))
        return call_once(reference.expert_mlp, x, route, *published, **options)
    if isinstance(gate_up, TiledWeights) or isinstance(down, TiledWeights):
        raise ValueError("one of gate_up and down is tiled: both or neither must be")
    if choice.implementation == "gpu":
        return call_once(gpu.expert_mlp, x, route, gate_up, down, interpret=bool(choice.interpret), **options)
    return call_once(reference.expert_mlp, x, route, gate_up, down, **options)
