"""The mixture of experts of the served model: kernels on MXFP4
weights, with the experts split over a mesh.
"""

from __future__ import annotations

import functools

import jax
from flax import nnx
from jax.sharding import Mesh

from gptoss_jax.model import gpt_oss
from gptoss_jax.sharding import axis_size, split
from gptoss_jax.sizes import EXPERT, TENSOR
from pallas_kernels.expert_matmul import PackedLinear, expert_mlp, tiling
from pallas_kernels.mxfp4.tiled import CodeFormat, TiledWeights
from pallas_kernels.routing import Route, route, spread_experts

WeightLayouts = tuple[tiling.WeightLayout, tiling.WeightLayout]
"""The layouts of gate_up and down for the TPU kernel."""


class PackedExperts(nnx.Module):
    """A layer's experts, with weights in the published layout."""

    def __init__(self, experts: gpt_oss.Experts, num_experts: int):
        self.limit, self.num_experts = experts.limit, num_experts
        self.gate_up, self.down = experts.gate_up, experts.down

    @property
    def weights(self) -> tuple[PackedLinear, PackedLinear]:
        """gate_up and down as operands of the kernels."""
        gate_up, down = (
            PackedLinear(linear.blocks[...], linear.scales[...], linear.bias[...])
            for linear in (self.gate_up, self.down)
        )
        return gate_up, down

    @jax.named_scope("experts")
    def __call__(self, x: jax.Array, routed: Route) -> jax.Array:
        """x [T, D] and its route → [T, D]; on a mesh, only the results of this device's experts."""
        return expert_mlp(x, routed, *self.weights, self.limit, num_experts=self.num_experts)


class TiledLinear(nnx.Module):
    """One linear layer per expert, in the layout of the TPU kernel; see `pallas_kernels.mxfp4.tiled`."""

    def __init__(self, weights: TiledWeights):
        self.codes = nnx.Param(weights.codes)
        self.scales = nnx.Param(weights.scales)
        self.columns = nnx.Param(weights.columns)
        self.inputs = weights.inputs
        self.form = weights.form
        self.wide = weights.wide

    @property
    def weights(self) -> TiledWeights:
        """The arrays as an operand of the kernel."""
        return TiledWeights(
            self.codes[...], self.scales[...], self.columns[...], self.inputs, self.form, self.wide
        )


class TiledExperts(nnx.Module):
    """As `PackedExperts`, with the same weights tiled for the TPU kernel.

    layouts: those of gate_up and down; None chooses them by the scales' values.
    """

    def __init__(
        self,
        experts: PackedExperts,
        form: CodeFormat,
        mesh: Mesh | None = None,
        layouts: WeightLayouts | None = None,
    ):
        packed = experts.weights
        if layouts is None:
            layouts = tiling.layout_of(packed[0], form), tiling.layout_of(packed[1], form)
        tiled = _tiled(packed, form, layouts, mesh)
        self.limit, self.num_experts = experts.limit, experts.num_experts
        self.gate_up = TiledLinear(tiled.gate_up)
        self.down = TiledLinear(tiled.down)

    @jax.named_scope("experts")
    def __call__(self, x: jax.Array, routed: Route) -> jax.Array:
        """x [T, D] and its route → [T, D]; on a mesh, only the results of this device's experts."""
        weights = self.gate_up.weights, self.down.weights
        return expert_mlp(x, routed, *weights, self.limit, num_experts=self.num_experts)


def _tiled(
    packed: tuple[PackedLinear, PackedLinear], form: CodeFormat, layouts: WeightLayouts, mesh: Mesh | None
) -> tiling.TiledExperts:
    """Tiles the weights for the TPU kernel, each device its own experts."""
    tile = functools.partial(tiling.tile_experts, form=form, layouts=layouts)
    if mesh is None:
        return tile(*packed)
    by_expert = split("experts")
    spread = jax.shard_map(tile, mesh=mesh, in_specs=by_expert, out_specs=by_expert, check_vma=False)
    return jax.jit(spread)(*packed)


class ExpertParallelMoE(nnx.Module):
    """Norm, router and experts of one layer.

    The experts are split along the mesh axes `expert` and `tensor`.
    """

    def __init__(self, moe: gpt_oss.MixtureOfExperts, num_experts: int):
        self.num_experts, self.experts_per_token = num_experts, moe.experts_per_token
        self.norm, self.router = moe.norm, moe.router
        self.experts: PackedExperts | TiledExperts = PackedExperts(moe.experts, num_experts)

    @jax.named_scope("moe")
    def __call__(self, x: jax.Array, valid: jax.Array) -> jax.Array:
        """x [B, T, D] → [B, T, D], to be added to x. valid bool [B, T]:
        False for padding, which no expert computes.
        """
        rows = self.norm(x).reshape(-1, x.shape[-1])
        with jax.named_scope("router"):
            logits = self.router.unrounded(rows)
            routed = route(logits, self.experts_per_token, valid.reshape(-1))
        if axis_size(EXPERT) * axis_size(TENSOR) == 1:
            return self.experts(rows, routed).reshape(x.shape)
        mixed = spread_experts(
            self.experts, rows, routed, self.num_experts, gather_axis=EXPERT, reduce_axis=TENSOR
        )
        return mixed.reshape(x.shape)
