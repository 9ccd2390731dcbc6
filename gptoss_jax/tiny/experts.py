"""Experts during training: float weights, which are rounded to MXFP4 towards the end."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from checkpoints.config import MXFP4_BLOCK, ModelConfig
from gptoss_jax.model.gpt_oss import clamped_swiglu


def through_mxfp4(weights: jax.Array) -> jax.Array:
    """`weights` [..., K] rounded as `pallas_kernels.mxfp4.encode` does; the gradient passes straight through.

    The rounding is written out in jnp because `encode` works on the host.
    """
    blocks = weights.reshape(*weights.shape[:-1], -1, MXFP4_BLOCK)
    magnitude = jnp.abs(blocks)
    largest = magnitude.max(axis=-1, keepdims=True)
    fraction, exponent = jnp.frexp(jnp.maximum(largest, 2.0**-120))
    exponent = exponent - 3 + (fraction > 0.75)
    scaled = jnp.ldexp(magnitude, -exponent)
    # Steps of 0.5 below 2, of 1 below 4, of 2 up to 6; jnp.round takes ties to even, as the format does.
    step = jnp.where(scaled < 2, 0.5, jnp.where(scaled < 4, 1.0, 2.0))
    rounded = jnp.ldexp(jnp.sign(blocks) * jnp.round(scaled / step) * step, exponent).reshape(weights.shape)
    return weights + jax.lax.stop_gradient(rounded - weights)


class FloatLinear(nnx.Module):
    """A linear layer for each expert: float `weight` [E, …, out, in] and `bias` [E, …, out]."""

    def __init__(self, experts: int, outputs: tuple[int, ...], inputs: int, *, dtype: DTypeLike):
        self.weight = nnx.Param(jnp.zeros((experts, *outputs, inputs), dtype))
        self.bias = nnx.Param(jnp.zeros((experts, *outputs), dtype))


class FloatExperts(nnx.Module):
    """All experts of one layer.

    Every token goes through every expert, with a share of 0 for most. With a few small experts this is faster
    than sorting the tokens, and its gradient is simpler.
    """

    def __init__(self, config: ModelConfig, *, dtype: DTypeLike):
        experts, hidden, inner = config.num_experts, config.hidden_size, config.intermediate_size
        self.limit = config.swiglu_limit
        self.gate_up = FloatLinear(experts, (2, inner), hidden, dtype=dtype)
        self.down = FloatLinear(experts, (hidden,), inner, dtype=dtype)

    def __call__(self, x: jax.Array, shares: jax.Array, *, quantised: bool = False) -> jax.Array:
        """x [T, D] and each expert's share of each token, [T, E] with zeros → [T, D]."""
        tokens, experts = shares.shape
        gate_up, down = self.gate_up.weight[...], self.down.weight[...]
        if quantised:
            gate_up, down = through_mxfp4(gate_up), through_mxfp4(down)
        bias = self.gate_up.bias[...]

        def half(index: int) -> jax.Array:
            weight = gate_up[:, index].reshape(-1, x.shape[-1])  # [E·F, D]
            return x @ weight.T + bias[:, index].reshape(-1)

        hidden = clamped_swiglu(half(0), half(1), self.limit).reshape(tokens, experts, -1)
        hidden = (hidden * shares[..., None]).reshape(tokens, -1)
        return hidden @ down.swapaxes(1, 2).reshape(-1, x.shape[-1]) + shares @ self.down.bias[...]
