"""The plain layers: linear maps stored as published, and RMSNorm."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from gptoss_jax.sharding import TENSOR, sum_over


class Linear(nnx.Module):
    """x → x·Wᵀ + b, with `weight` [out, in] as published; products accumulate in float32.

    The weight may have columns of zeros behind its own.
    """

    def __init__(self, inputs: int, outputs: int, *, bias: bool = True, dtype: DTypeLike, rngs: nnx.Rngs):
        scale = inputs**-0.5
        self.weight = nnx.Param(scale * jax.random.normal(rngs.params(), (outputs, inputs), dtype))
        self.bias = nnx.Param(jnp.zeros(outputs, dtype)) if bias else None

    def __call__(self, x: jax.Array) -> jax.Array:
        """[…, in] → […, out], in x's dtype."""
        return self.unrounded(x).astype(x.dtype)

    def unrounded(self, x: jax.Array) -> jax.Array:
        """[…, in] → float32 […, out]: the sums as they were accumulated."""
        y = self._products(x)
        return y if self.bias is None else y + self.bias[...].astype(jnp.float32)

    def _products(self, x: jax.Array) -> jax.Array:
        weight = self.weight[...]
        if weight.shape[1] > x.shape[-1]:
            x = jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, weight.shape[1] - x.shape[-1])])
        return jnp.einsum("...i,oi->...o", x, weight, preferred_element_type=jnp.float32)


class SummedLinear(Linear):
    """As `Linear`, for inputs that are spread along the mesh axis `tensor`, and with them the columns of the
    weight: products are summed over the devices before the bias is added."""

    def _products(self, x: jax.Array) -> jax.Array:
        return sum_over(TENSOR, super()._products(x))


class RMSNorm(nnx.Module):
    """x / √(mean(x²) + ε) · scale, in float32 whatever x's dtype."""

    def __init__(self, size: int, epsilon: float, *, dtype: DTypeLike):
        self.scale = nnx.Param(jnp.ones(size, dtype))
        self.epsilon = epsilon

    def __call__(self, x: jax.Array) -> jax.Array:
        """[…, D] → […, D], in x's dtype."""
        wide = x.astype(jnp.float32)
        wide = wide * jax.lax.rsqrt(jnp.mean(jnp.square(wide), axis=-1, keepdims=True) + self.epsilon)
        return (wide * self.scale[...].astype(jnp.float32)).astype(x.dtype)
