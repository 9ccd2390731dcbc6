"""Grouped-query attention with sinks; sliding on even layers, full on odd ones."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from checkpoints.config import ModelConfig
from gptoss_jax.cache import LayerCache
from gptoss_jax.model.layers import Linear, RMSNorm
from gptoss_jax.model.rope import rotate
from pallas_kernels.attention import decode_pages, decode_ring, prefill, prefill_pages


class Attention(nnx.Module):
    """Norm, projections, rotary positions, attention and the output map of one layer."""

    def __init__(self, config: ModelConfig, layer: int, *, dtype: DTypeLike, rngs: nnx.Rngs):
        hidden, size = config.hidden_size, config.head_size
        self.window = config.window(layer)
        self.head_size = size
        self.norm = RMSNorm(hidden, config.norm_epsilon, dtype=dtype)
        self.query = Linear(hidden, config.num_heads * size, dtype=dtype, rngs=rngs)
        self.key = Linear(hidden, config.num_kv_heads * size, dtype=dtype, rngs=rngs)
        self.value = Linear(hidden, config.num_kv_heads * size, dtype=dtype, rngs=rngs)
        self.sinks = nnx.Param(jnp.zeros(config.num_heads, dtype))
        self.output = Linear(config.num_heads * size, hidden, dtype=dtype, rngs=rngs)

    def project(
        self, x: jax.Array, rotation: tuple[jax.Array, jax.Array]
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Queries [B, T, H, h], keys and values [B, T, K, h] of x [B, T, D], the first two turned."""
        x = self.norm(x)
        q, k, v = (
            part(x).reshape(*x.shape[:2], -1, self.head_size) for part in (self.query, self.key, self.value)
        )
        return rotate(q, *rotation), rotate(k, *rotation), v

    def __call__(
        self,
        x: jax.Array,
        positions: jax.Array,
        rotation: tuple[jax.Array, jax.Array],
        cache: LayerCache | None = None,
    ) -> tuple[jax.Array, LayerCache | None]:
        """Attends from T new tokens, x [B, T, D] at positions [B, T], to themselves and what the cache holds.

        Returns the layer's output [B, T, D], to be added to x, and the cache with the new tokens in it.
        """
        q, k, v = self.project(x, rotation)
        sinks = self.sinks[...]
        before, cache = cache, None if cache is None else cache.write(k, v, positions)
        if before is None or cache is None:
            mixed = prefill(q, k, v, positions, sinks, window=self.window)
        elif x.shape[1] == 1:
            mixed = self._decode(q[:, 0], positions[:, 0], cache)[:, None]
        elif self.window is None:
            mixed = prefill_pages(q, *cache.pool(), positions, sinks)
        else:  # several tokens on a ring: the early ones still see what the later ones overwrite
            mixed = prefill(q, k, v, positions, sinks, *before.ring(), window=self.window)
        return self.output(mixed.reshape(*x.shape[:2], -1)), cache

    def _decode(self, q: jax.Array, positions: jax.Array, cache: LayerCache) -> jax.Array:
        """One query of each sequence, q [B, H, h] at positions [B], over a cache that holds its own key."""
        if self.window is None:
            return decode_pages(q, *cache.pool(), positions + 1, self.sinks[...])
        return decode_ring(q, *cache.ring(), positions, self.sinks[...], window=self.window)
