"""The mixture of experts: a router, and experts whose weights stay packed in MXFP4."""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import Mesh
from jax.typing import DTypeLike

from checkpoints.config import MXFP4_BLOCK, ModelConfig
from gptoss_jax.model.layers import Linear, RMSNorm
from gptoss_jax.sharding import EXPERT, TENSOR, axis_size, split
from pallas_kernels.expert_matmul import PackedLinear, expert_mlp, tiling
from pallas_kernels.mxfp4.tiled import Form, TiledWeights
from pallas_kernels.routing import Route, route, spread_experts

Arrangements = tuple[tiling.Arrangement, tiling.Arrangement]
"""How the TPU kernel's gate_up and down are stored."""


class PackedMap(nnx.Module):
    """One linear map per expert, in MXFP4: `blocks` and `scales` uint8, `bias` in the model's dtype."""

    def __init__(
        self, experts: int, outputs: tuple[int, ...], inputs: int, *, dtype: DTypeLike, rngs: nnx.Rngs
    ):
        shape = (experts, *outputs)
        # Random codes at a scale of 2^-6 are about as large as a fresh linear layer's weights.
        self.blocks = nnx.Param(jax.random.bits(rngs.params(), (*shape, inputs // 2), jnp.uint8))
        self.scales = nnx.Param(jnp.full((*shape, inputs // MXFP4_BLOCK), 121, jnp.uint8))
        self.bias = nnx.Param(jnp.zeros(shape, dtype))

    def arrays(self) -> PackedLinear:
        """The arrays as the kernels take them."""
        return PackedLinear(self.blocks[...], self.scales[...], self.bias[...])


class Experts(nnx.Module):
    """All experts of one layer: gate and up, clamped SwiGLU, down."""

    def __init__(self, config: ModelConfig, *, dtype: DTypeLike, rngs: nnx.Rngs):
        experts, hidden, inner = config.num_experts, config.hidden_size, config.intermediate_size
        self.limit, self.total = config.swiglu_limit, experts
        self.gate_up = PackedMap(experts, (2, inner), hidden, dtype=dtype, rngs=rngs)
        self.down = PackedMap(experts, (hidden,), inner, dtype=dtype, rngs=rngs)

    def __call__(self, x: jax.Array, routed: Route) -> jax.Array:
        """x [T, D] and its route → [T, D]; on a mesh, the part of it that this device's experts give."""
        return expert_mlp(
            x, routed, self.gate_up.arrays(), self.down.arrays(), self.limit, num_experts=self.total
        )


class TiledMap(nnx.Module):
    """One linear map per expert as the TPU kernel reads it; see `pallas_kernels.mxfp4.tiled`."""

    def __init__(self, weights: TiledWeights):
        self.codes = nnx.Param(weights.codes)
        self.scales = nnx.Param(weights.scales)
        self.columns = nnx.Param(weights.columns)
        self.inputs = weights.inputs
        self.form = weights.form
        self.wide = weights.wide

    def arrays(self) -> TiledWeights:
        """The arrays as the kernels take them."""
        return TiledWeights(
            self.codes[...], self.scales[...], self.columns[...], self.inputs, self.form, self.wide
        )


class TiledExperts(nnx.Module):
    """As `Experts`, with weights rearranged for the TPU kernel; their values are the same.

    How the scales are stored depends on their values, unless `arrangements` of gate_up and down are given.
    """

    def __init__(
        self,
        experts: Experts,
        form: Form,
        mesh: Mesh | None = None,
        arrangements: Arrangements | None = None,
    ):
        maps = experts.gate_up.arrays(), experts.down.arrays()
        if arrangements is None:
            arrangements = tiling.arrangement_of(maps[0], form), tiling.arrangement_of(maps[1], form)
        tiled = _tiled(maps, form, arrangements, mesh)
        self.limit, self.total = experts.limit, experts.total
        self.gate_up = TiledMap(tiled.gate_up)
        self.down = TiledMap(tiled.down)

    def __call__(self, x: jax.Array, routed: Route) -> jax.Array:
        """x [T, D] and its route → [T, D]; on a mesh, the part of it that this device's experts give."""
        return expert_mlp(
            x, routed, self.gate_up.arrays(), self.down.arrays(), self.limit, num_experts=self.total
        )


def _tiled(
    maps: tuple[PackedLinear, PackedLinear], form: Form, arrangements: Arrangements, mesh: Mesh | None
) -> tiling.TiledExperts:
    """The maps as the TPU kernel reads them, each device's experts on that device."""
    tile = functools.partial(tiling.tile_experts, form=form, arrangements=arrangements)
    if mesh is None:
        return tile(*maps)
    by_expert = split("experts")
    spread = jax.shard_map(tile, mesh=mesh, in_specs=by_expert, out_specs=by_expert, check_vma=False)
    return jax.jit(spread)(*maps)


class MixtureOfExperts(nnx.Module):
    """Norm, router and experts of one layer."""

    def __init__(
        self,
        config: ModelConfig,
        *,
        dtype: DTypeLike,
        rngs: nnx.Rngs,
        experts: Callable[..., nnx.Module] = Experts,
    ):
        self.num_experts, self.experts_per_token = config.num_experts, config.experts_per_token
        self.norm = RMSNorm(config.hidden_size, config.norm_epsilon, dtype=dtype)
        self.router = Linear(config.hidden_size, config.num_experts, dtype=dtype, rngs=rngs)
        self.experts = experts(config, dtype=dtype, rngs=rngs)

    def __call__(self, x: jax.Array, valid: jax.Array) -> jax.Array:
        """x [B, T, D] → [B, T, D], to be added to x; no expert runs for tokens not `valid`, bool [B, T]."""
        rows = self.norm(x).reshape(-1, x.shape[-1])
        # Unrounded: in bfloat16 two experts may tie, and the wrong one changes everything after it.
        routed = route(self.router.unrounded(rows), self.experts_per_token, valid.reshape(-1))
        if axis_size(EXPERT) * axis_size(TENSOR) == 1:
            return self.experts(rows, routed).reshape(x.shape)
        mixed = spread_experts(
            self.experts, rows, routed, self.num_experts, gather_axis=EXPERT, reduce_axis=TENSOR
        )
        return mixed.reshape(x.shape)
