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


def attend(q: jax.Array, k: jax.Array, v: jax.Array, sinks: jax.Array, visible: jax.Array) -> jax.Array:
    """Softmax attention whose denominator also holds one learned logit per head, the sink, without a value.

    q [B, T, H, h]; k, v [B, S, K, h]; sinks [H]; visible bool [B, T, S]. Returns [B, T, H, h] in q's dtype.
    Scores and softmax are float32.
    """
    batch, length, heads, size = q.shape
    kv_heads = k.shape[2]
    q = q.reshape(batch, length, kv_heads, heads // kv_heads, size)
    scores = jnp.einsum("btkgh,bskh->bkgts", q, k, preferred_element_type=jnp.float32) * size**-0.5
    scores = jnp.where(visible[:, None, None], scores, -jnp.inf)
    sink = sinks.astype(jnp.float32).reshape(kv_heads, heads // kv_heads)[None, :, :, None]
    highest = jax.lax.stop_gradient(jnp.maximum(scores.max(axis=-1), sink))  # finite: the sink is
    shares = jnp.exp(scores - highest[..., None])
    total = shares.sum(axis=-1) + jnp.exp(sink - highest)
    shares = (shares / total[..., None]).astype(v.dtype)
    out = jnp.einsum("bkgts,bskh->btkgh", shares, v, preferred_element_type=jnp.float32)
    return out.reshape(batch, length, heads, size).astype(q.dtype)


def sees(query_positions: jax.Array, key_positions: jax.Array, window: int | None) -> jax.Array:
    """bool [B, T, S]: may the query at [B, T] see the key at [B, S]? Itself, the past, and within `window`
    only its last keys, itself included; a negative position is a token that does not exist."""
    query, key = query_positions[:, :, None], key_positions[:, None, :]
    visible = (key >= 0) & (key <= query)
    return visible if window is None else visible & (key > query - window)


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
        key_positions = positions
        if cache is not None:
            before, cache = cache, cache.write(k, v, positions)
            if self.window is None or x.shape[1] == 1:
                k, v, key_positions = cache.keys, cache.values, cache.positions
            else:  # several tokens on a ring: the early ones still see what the later ones overwrite
                k = jnp.concatenate([before.keys, k], axis=1)
                v = jnp.concatenate([before.values, v], axis=1)
                key_positions = jnp.concatenate([before.positions, positions], axis=1)
        mixed = attend(q, k, v, self.sinks[...], sees(positions, key_positions, self.window))
        return self.output(mixed.reshape(*x.shape[:2], -1)), cache
