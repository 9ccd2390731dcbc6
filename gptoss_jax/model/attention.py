"""Grouped-query attention with sinks; sliding on even layers, full on odd ones."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from checkpoints.config import ModelConfig
from gptoss_jax.cache import Places, take_rings, write_pages, write_rings
from gptoss_jax.model.layers import Linear, RMSNorm, SummedLinear
from gptoss_jax.model.rope import rotate
from pallas_kernels.attention import decode_pages, decode_ring, prefill, prefill_pages


class Attention(nnx.Module):
    """Norm, projections, rotary positions, attention and the output map of one layer.

    On a mesh each device along `tensor` has some of the heads, and the output map sums over them.
    """

    def __init__(self, config: ModelConfig, layer: int, *, dtype: DTypeLike, rngs: nnx.Rngs):
        hidden, size = config.hidden_size, config.head_size
        self.window = config.window(layer)
        self.head_size = size
        self.norm = RMSNorm(hidden, config.norm_epsilon, dtype=dtype)
        self.query = Linear(hidden, config.num_heads * size, dtype=dtype, rngs=rngs)
        self.key = Linear(hidden, config.num_kv_heads * size, dtype=dtype, rngs=rngs)
        self.value = Linear(hidden, config.num_kv_heads * size, dtype=dtype, rngs=rngs)
        self.sinks = nnx.Param(jnp.zeros(config.num_heads, dtype))
        self.output = SummedLinear(config.num_heads * size, hidden, dtype=dtype, rngs=rngs)

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
        entries: jax.Array | None = None,
        places: Places | None = None,
    ) -> tuple[jax.Array, jax.Array | None]:
        """Attends from T new tokens, x [B, T, D] at positions [B, T], to themselves and what the cache holds.

        `entries`: the layer's pool or rings; `places`: where the tokens go. Returns the layer's output
        [B, T, D], to be added to x, and the entries with the new tokens in them.
        """
        q, k, v = self.project(x, rotation)
        sinks = self.sinks[...]
        if entries is None or places is None:
            mixed = prefill(q, k, v, positions, sinks, window=self.window)
        elif self.window is None:
            entries = write_pages(entries, k, v, places)
            if places.slots is None:
                mixed = decode_pages(q[:, 0], entries, places.table, positions[:, 0] + 1, sinks)[:, None]
            else:
                mixed = prefill_pages(q, entries, places.table, positions, sinks)
        elif places.slots is None:
            entries = write_rings(entries, k, v, places)
            mixed = decode_ring(q[:, 0], entries, places.held, positions[:, 0], sinks, window=self.window)
            mixed = mixed[:, None]
        else:  # several tokens on a ring: the early ones still see what the later ones overwrite
            before = take_rings(entries, places.slots)
            mixed = prefill(q, k, v, positions, sinks, before, places.before, window=self.window)
            entries = write_rings(entries, k, v, places)
        return self.output(mixed.reshape(*x.shape[:2], -1)), entries
