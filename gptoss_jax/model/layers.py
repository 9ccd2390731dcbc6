"""Layers of the served model that are split over a mesh, or whose weights are padded for a TPU.

Each has the parameters and the results of a plain layer in `gptoss_jax.model.gpt_oss`. It runs inside
`jax.shard_map`, where it sees its device's part of the weights, or on a single device.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx

from gptoss_jax.model import gpt_oss
from gptoss_jax.sharding import axis_size, sum_over
from gptoss_jax.sizes import TENSOR


class ColumnParallelLinear(nnx.Module):
    """A linear layer whose outputs, the rows of the weight, are split along the mesh axis `tensor`.

    The weight may be padded with columns of zeros, for a TPU.
    """

    def __init__(self, linear: gpt_oss.Linear):
        self.weight, self.bias = linear.weight, linear.bias

    def __call__(self, x: jax.Array) -> jax.Array:
        """[…, in] → […, this device's part of out], in x's dtype."""
        weight = self.weight[...]
        padding = weight.shape[1] - x.shape[-1]
        x = jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, padding)]) if padding else x
        products = jnp.einsum("...i,oi->...o", x, weight, preferred_element_type=jnp.float32)
        return (products + self.bias[...].astype(jnp.float32)).astype(x.dtype)


class RowParallelLinear(nnx.Module):
    """A linear layer whose inputs, the columns of the weight, are split along the mesh axis `tensor`.

    Products are summed over the devices before the bias is added.
    """

    def __init__(self, linear: gpt_oss.Linear):
        self.weight, self.bias = linear.weight, linear.bias

    def __call__(self, x: jax.Array) -> jax.Array:
        """[…, this device's part of in] → […, out], in x's dtype."""
        products = jnp.einsum("...i,oi->...o", x, self.weight[...], preferred_element_type=jnp.float32)
        return (sum_over(TENSOR, products) + self.bias[...].astype(jnp.float32)).astype(x.dtype)


class VocabParallelEmbedding(nnx.Module):
    """An embedding whose rows are split along the mesh axis `tensor`; columns past D are padding."""

    def __init__(self, embedding: gpt_oss.Embedding, size: int):
        self.weight = embedding.weight
        self.size = size

    @jax.named_scope("embedding")
    def __call__(self, tokens: jax.Array) -> jax.Array:
        """int32 [B, T] → [B, T, D]."""
        weight = self.weight[...]
        if axis_size(TENSOR) == 1:
            return weight[tokens][..., : self.size]
        local = tokens - jax.lax.axis_index(TENSOR) * weight.shape[0]
        own = (local >= 0) & (local < weight.shape[0])
        rows = weight[jnp.where(own, local, 0)][..., : self.size]
        return sum_over(TENSOR, jnp.where(own[..., None], rows, 0))


class VocabParallelUnembedding(nnx.Module):
    """An unembedding whose rows are split along the mesh axis `tensor`."""

    def __init__(self, unembedding: gpt_oss.Unembedding):
        self.weight = unembedding.weight

    @jax.named_scope("unembedding")
    def __call__(self, x: jax.Array) -> jax.Array:
        """[…, D] → float32 logits […, this device's part of V]."""
        return jnp.einsum("...d,vd->...v", x, self.weight[...], preferred_element_type=jnp.float32)
