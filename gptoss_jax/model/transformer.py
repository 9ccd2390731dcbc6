"""gpt-oss: a decoder-only transformer of alternating sliding and full attention, each followed by experts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from checkpoints.config import ModelConfig
from gptoss_jax.cache import Cache, Places, places_to_decode, places_to_prefill
from gptoss_jax.model.attention import Attention
from gptoss_jax.model.layers import Linear, RMSNorm
from gptoss_jax.model.moe import Experts, MixtureOfExperts
from gptoss_jax.model.rope import rotations
from gptoss_jax.sharding import TENSOR, axis_size, sum_over


class Embedding(nnx.Module):
    """Token id → row of `weight` [V, D]; columns past D are padding."""

    def __init__(self, rows: int, size: int, *, dtype: DTypeLike, rngs: nnx.Rngs):
        self.size = size
        self.weight = nnx.Param(jax.random.normal(rngs.params(), (rows, size), dtype))

    def __call__(self, tokens: jax.Array) -> jax.Array:
        """int32 [B, T] → [B, T, D]. On a mesh each device along `tensor` has some of the rows."""
        weight = self.weight[...]
        if axis_size(TENSOR) == 1:
            return weight[tokens][..., : self.size]
        local = tokens - jax.lax.axis_index(TENSOR) * weight.shape[0]
        own = (local >= 0) & (local < weight.shape[0])
        rows = weight[jnp.where(own, local, 0)][..., : self.size]
        return sum_over(TENSOR, jnp.where(own[..., None], rows, 0))


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
        entries: jax.Array | None,
        places: Places | None,
    ) -> tuple[jax.Array, jax.Array | None]:
        """x [B, T, D] → [B, T, D], and the layer's cache entries with the new tokens in them."""
        mixed, entries = self.attention(x, positions, rotation, entries, places)
        x = x + mixed
        return x + self.moe(x, positions >= 0), entries


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

    def __call__(self, tokens: jax.Array, positions: jax.Array) -> jax.Array:
        """Runs T tokens of each of B sequences, which see each other and nothing else.

        tokens, positions int32 [B, T]; a negative position marks padding, which nothing sees and no expert
        computes. Returns hidden states [B, T, D], ready for `logits`.
        """
        return self._run(tokens, positions, (None,) * len(self.layers), None)[0]

    def prefill(
        self,
        tokens: jax.Array,
        positions: jax.Array,
        cache: Cache,
        table: jax.Array,
        slots: jax.Array,
        fresh: jax.Array,
    ) -> tuple[jax.Array, Cache]:
        """Runs T new tokens of each of n sequences, which also see what the cache holds of their sequence.

        tokens, positions int32 [n, T], positions consecutive, EMPTY behind a row's tokens. table int32
        [n, M]: each sequence's pages; slots int32 [n]: its row of rings; fresh bool [n]: it starts here.
        Returns hidden states [n, T, D] and the cache with the new tokens in it.
        """
        places, held = places_to_prefill(cache, table, positions, slots, fresh)
        return self._run_cached(tokens, positions, cache, places, held)

    def decode(
        self, tokens: jax.Array, positions: jax.Array, cache: Cache, table: jax.Array
    ) -> tuple[jax.Array, Cache]:
        """Runs one new token of each of the first B slots: tokens, positions int32 [B], table int32 [B, M].

        Slots at position EMPTY are idle. Returns hidden states [B, D] and the cache with the tokens in it.
        """
        places, held = places_to_decode(cache, table, positions)
        hidden, cache = self._run_cached(tokens[:, None], positions[:, None], cache, places, held)
        return hidden[:, 0], cache

    def _run_cached(
        self, tokens: jax.Array, positions: jax.Array, cache: Cache, places: Places, held: jax.Array
    ) -> tuple[jax.Array, Cache]:
        unused_pools, unused_rings = iter(cache.pools), iter(cache.rings)
        slides = [layer.attention.window is not None for layer in self.layers]
        entries = [next(unused_rings) if sliding else next(unused_pools) for sliding in slides]
        hidden, after = self._run(tokens, positions, entries, places)
        pools, rings = (
            tuple(one for one, sliding in zip(after, slides, strict=True) if sliding is which)
            for which in (False, True)
        )
        return hidden, Cache(pools, rings, held)

    def _run(
        self,
        tokens: jax.Array,
        positions: jax.Array,
        entries: Sequence[jax.Array | None],
        places: Places | None,
    ) -> tuple[jax.Array, list[Any]]:
        x = self.embedding(tokens)
        rotation = rotations(positions, self.config)
        after = []
        for layer, one in zip(self.layers, entries, strict=True):
            x, one = layer(x, positions, rotation, one, places)
            after.append(one)
        return self.norm(x), after

    def logits(self, hidden: jax.Array) -> jax.Array:
        """Hidden states […, D] → float32 logits […, V]; on a mesh, of this device's part of it."""
        return jnp.einsum(
            "...d,vd->...v", hidden, self.unembedding.weight[...], preferred_element_type=jnp.float32
        )
