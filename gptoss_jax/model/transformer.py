"""gpt-oss: a decoder-only transformer of alternating sliding and full attention, each followed by experts."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from checkpoints.config import ModelConfig
from gptoss_jax.cache import Cache, LayerCache
from gptoss_jax.model.attention import Attention
from gptoss_jax.model.layers import Linear, RMSNorm
from gptoss_jax.model.moe import Experts, MixtureOfExperts
from gptoss_jax.model.rope import rotations


class Embedding(nnx.Module):
    """Token id → row of `weight` [V, D]."""

    def __init__(self, rows: int, size: int, *, dtype: DTypeLike, rngs: nnx.Rngs):
        self.weight = nnx.Param(jax.random.normal(rngs.params(), (rows, size), dtype))

    def __call__(self, tokens: jax.Array) -> jax.Array:
        """int32 [B, T] → [B, T, D]."""
        return self.weight[...][tokens]


class Layer(nnx.Module):
    """x + attention(x), then x + experts(x)."""

    def __init__(
        self,
        config: ModelConfig,
        index: int,
        *,
        dtype: DTypeLike,
        rngs: nnx.Rngs,
        experts: Callable[..., nnx.Module],
    ):
        self.attention = Attention(config, index, dtype=dtype, rngs=rngs)
        self.moe = MixtureOfExperts(config, dtype=dtype, rngs=rngs, experts=experts)

    def __call__(
        self,
        x: jax.Array,
        positions: jax.Array,
        rotation: tuple[jax.Array, jax.Array],
        cache: LayerCache | None,
    ) -> tuple[jax.Array, LayerCache | None]:
        """x [B, T, D] → [B, T, D], and the layer's cache with the new tokens in it."""
        mixed, cache = self.attention(x, positions, rotation, cache)
        x = x + mixed
        return x + self.moe(x, positions >= 0), cache


class Transformer(nnx.Module):
    """The whole model. `dtype` is that of activations and of every weight but the packed experts.

    `experts` is the class that holds and runs a layer's experts; training replaces it by float weights.
    """

    def __init__(
        self,
        config: ModelConfig,
        *,
        dtype: DTypeLike = jnp.float32,
        rngs: nnx.Rngs,
        experts: Callable[..., nnx.Module] = Experts,
    ):
        self.config = config
        self.dtype = jnp.dtype(dtype)
        self.embedding = Embedding(config.vocabulary_size, config.hidden_size, dtype=dtype, rngs=rngs)
        self.layers = nnx.List(
            [
                Layer(config, index, dtype=dtype, rngs=rngs, experts=experts)
                for index in range(config.num_layers)
            ]
        )
        self.norm = RMSNorm(config.hidden_size, config.norm_epsilon, dtype=dtype)
        self.unembedding = Linear(
            config.hidden_size, config.vocabulary_size, bias=False, dtype=dtype, rngs=rngs
        )

    def __call__(
        self, tokens: jax.Array, positions: jax.Array, cache: Cache | None = None
    ) -> tuple[jax.Array, Cache | None]:
        """Runs T new tokens of each of B sequences.

        tokens, positions int32 [B, T]; a negative position marks padding, which nothing sees and no expert
        computes. Without a cache the tokens see each other alone; with one they also see what it holds.
        Returns hidden states [B, T, D], ready for `logits`, and the cache with the new tokens in it.
        """
        x = self.embedding(tokens)
        rotation = rotations(positions, self.config)
        layers: list[LayerCache] = []
        for index, layer in enumerate(self.layers):
            x, layer_cache = layer(x, positions, rotation, None if cache is None else cache[index])
            if layer_cache is not None:
                layers.append(layer_cache)
        return self.norm(x), None if cache is None else tuple(layers)

    def logits(self, hidden: jax.Array) -> jax.Array:
        """Hidden states […, D] → float32 logits […, V]."""
        return jnp.einsum(
            "...d,vd->...v", hidden, self.unembedding.weight[...], preferred_element_type=jnp.float32
        )
