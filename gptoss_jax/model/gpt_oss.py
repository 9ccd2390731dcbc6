"""The published gpt-oss model, top to bottom: a decoder-only transformer with a mixture of experts.

Each layer adds to a residual stream of D numbers per token: first the result of attention to the tokens so
far, then the result of a few experts. This file is written to be read, not to be fast. It has no cache, no
mesh and no kernel. It is the oracle for the modules that do: they serve the same parameters, and tests
compare them with this file, and this file with `transformers`.

Dimension letters, in comments and einsums: B batch, T query tokens, S key positions, D hidden, H query heads,
K KV heads, G = H/K query heads per KV head, h head size, F expert intermediate, E experts, A active experts
per token, V vocabulary.

Sources: the gpt-oss model card (OpenAI, 2025, arXiv:2508.10925) and OpenAI's reference implementation; YaRN
(Peng et al., 2023, arXiv:2309.00071); the OCP Microscaling Formats specification 1.0 for MXFP4.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.typing import DTypeLike

from checkpoints.config import MXFP4_BLOCK, ModelConfig
from pallas_kernels.swiglu import SWIGLU_ALPHA

FP4_MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""The values of the codes 0 … 7; the codes 8 … 15 have the same values, negative."""


class RMSNorm(nnx.Module):
    """x / √(mean(x²) + ε) · scale, computed in float32 whatever x's dtype is."""

    def __init__(self, size: int, epsilon: float, *, dtype: DTypeLike):
        self.scale = nnx.Param(jnp.ones(size, dtype))
        self.epsilon = epsilon

    def __call__(self, x: jax.Array) -> jax.Array:
        """[…, D] → […, D], in x's dtype."""
        wide = x.astype(jnp.float32)
        wide = wide * jax.lax.rsqrt(jnp.mean(jnp.square(wide), axis=-1, keepdims=True) + self.epsilon)
        return (wide * self.scale[...].astype(jnp.float32)).astype(x.dtype)


class Linear(nnx.Module):
    """x·Wᵀ + b with `weight` [out, in] as published; products accumulate in float32."""

    def __init__(self, inputs: int, outputs: int, *, dtype: DTypeLike, rngs: nnx.Rngs):
        self.weight = nnx.Param(inputs**-0.5 * jax.random.normal(rngs.params(), (outputs, inputs), dtype))
        self.bias = nnx.Param(jnp.zeros(outputs, dtype))

    def __call__(self, x: jax.Array) -> jax.Array:
        """[…, in] → […, out], in x's dtype."""
        return self.unrounded(x).astype(x.dtype)

    def unrounded(self, x: jax.Array) -> jax.Array:
        """[…, in] → float32 […, out]: the accumulated sums, not rounded to x's dtype."""
        products = jnp.einsum("...i,oi->...o", x, self.weight[...], preferred_element_type=jnp.float32)
        return products + self.bias[...].astype(jnp.float32)


class Embedding(nnx.Module):
    """Looks up the row of `weight` [V, D] for each token id."""

    def __init__(self, config: ModelConfig, *, dtype: DTypeLike, rngs: nnx.Rngs):
        shape = config.vocabulary_size, config.hidden_size
        self.weight = nnx.Param(jax.random.normal(rngs.params(), shape, dtype))

    def __call__(self, tokens: jax.Array) -> jax.Array:
        """int32 [B, T] → [B, T, D]."""
        return self.weight[...][tokens]


class Unembedding(nnx.Module):
    """Projects to logits over the vocabulary, with `weight` [V, D], which is not tied to the embedding's."""

    def __init__(self, config: ModelConfig, *, dtype: DTypeLike, rngs: nnx.Rngs):
        scale, shape = config.hidden_size**-0.5, (config.vocabulary_size, config.hidden_size)
        self.weight = nnx.Param(scale * jax.random.normal(rngs.params(), shape, dtype))

    def __call__(self, x: jax.Array) -> jax.Array:
        """[…, D] → float32 logits […, V]."""
        return jnp.einsum("...d,vd->...v", x, self.weight[...], preferred_element_type=jnp.float32)


# Rotary positions with YaRN.


def yarn_frequencies(config: ModelConfig) -> tuple[np.ndarray, float]:
    """Returns the angle per position of each pair of dimensions, float32 [h/2] in radians, and a factor on
    cos and sin.

    RoPE rotates pair i by θ^(-2i/h) per position. YaRN keeps the pairs that rotate more than `yarn_beta_fast`
    times within the length of the original training, slows the pairs that rotate less than `yarn_beta_slow`
    times by `yarn_factor`, and blends linearly between the two; the ends of the blend are not rounded to
    whole pairs. A `yarn_factor` of 1 or less is plain RoPE, with the factor 1.
    """
    pairs = config.head_size // 2
    frequencies = config.rope_theta ** -(np.arange(pairs, dtype=np.float64) / pairs)
    if config.yarn_factor <= 1:
        return frequencies.astype(np.float32), 1.0

    def pair_rotating(times: float) -> float:
        """The pair, as a fraction, that rotates `times` times within the original length."""
        wavelength = config.yarn_original_length / times
        return pairs * math.log(wavelength / (2 * math.pi)) / math.log(config.rope_theta)

    first = max(pair_rotating(config.yarn_beta_fast), 0.0)
    last = min(pair_rotating(config.yarn_beta_slow), config.head_size - 1.0)
    slowed = np.clip((np.arange(pairs) - first) / max(last - first, 1e-3), 0.0, 1.0)
    frequencies = frequencies * (1 - slowed) + frequencies / config.yarn_factor * slowed
    return frequencies.astype(np.float32), 0.1 * math.log(config.yarn_factor) + 1.0


def rotations(positions: jax.Array, config: ModelConfig) -> tuple[jax.Array, jax.Array]:
    """cos and sin of every angle at int32 positions [B, T]: two float32 arrays [B, T, h/2]."""
    frequencies, factor = yarn_frequencies(config)
    angles = positions[..., None].astype(jnp.float32) * frequencies
    return jnp.cos(angles) * factor, jnp.sin(angles) * factor


def rotate(x: jax.Array, cos: jax.Array, sin: jax.Array) -> jax.Array:
    """Rotates x [B, T, heads, h] by angles with cos and sin [B, T, h/2]; dimension i pairs with i + h/2.

    Keeps x's dtype.
    """
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    cos, sin = cos[:, :, None], sin[:, :, None]
    rotated = jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
    return rotated.astype(x.dtype)


# Grouped-query attention with sinks and windows.


def visible_keys(queries: jax.Array, keys: jax.Array, window: int | None) -> jax.Array:
    """Returns bool [B, T, S]: True where the query at int32 positions [B, T] sees the key at positions [B,
    S].

    A query sees its own key and the keys before it. window: only the last `window` of them, its own included;
    None: all of them.
    """
    distance = queries[:, :, None] - keys[:, None, :]
    return (distance >= 0) if window is None else (distance >= 0) & (distance < window)


def attend(q: jax.Array, k: jax.Array, v: jax.Array, sinks: jax.Array, visible: jax.Array) -> jax.Array:
    """Attention of q [B, T, H, h] to k, v [B, S, K, h] → [B, T, H, h] in q's dtype.

    visible bool [B, T, S]: True where a query sees a key. sinks [H]: a learned logit per head, which joins
    the softmax like one more key but has no value, so it only takes weight from the other keys. Scores and
    softmax are float32.
    """
    batch, length, heads, size = q.shape
    kv_heads = k.shape[2]
    q = q.reshape(batch, length, kv_heads, heads // kv_heads, size)  # query head k·G + g reads KV head k
    scores = jnp.einsum("btkgh,bskh->bkgts", q, k, preferred_element_type=jnp.float32) / math.sqrt(size)
    scores = jnp.where(visible[:, None, None], scores, -jnp.inf)
    sink = sinks.astype(jnp.float32).reshape(1, kv_heads, heads // kv_heads, 1, 1)
    sink = jnp.broadcast_to(sink, (*scores.shape[:-1], 1))
    weights = jax.nn.softmax(jnp.concatenate([scores, sink], axis=-1), axis=-1)[..., :-1].astype(v.dtype)
    out = jnp.einsum("bkgts,bskh->btkgh", weights, v, preferred_element_type=jnp.float32)
    return out.reshape(batch, length, heads, size).astype(q.dtype)


class Attention(nnx.Module):
    """Norm, projections, rotary positions, attention and the output projection of one layer.

    Layers alternate: even ones see the last `config.sliding_window` keys, odd ones see all keys.
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
        self.output = Linear(config.num_heads * size, hidden, dtype=dtype, rngs=rngs)

    def project(
        self, x: jax.Array, rotation: tuple[jax.Array, jax.Array]
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        """x [B, T, D] → queries [B, T, H, h], keys and values [B, T, K, h]; queries and keys are rotated."""
        x = self.norm(x)
        q, k, v = (
            linear(x).reshape(*x.shape[:2], -1, self.head_size)
            for linear in (self.query, self.key, self.value)
        )
        return rotate(q, *rotation), rotate(k, *rotation), v

    def __call__(
        self, x: jax.Array, positions: jax.Array, rotation: tuple[jax.Array, jax.Array]
    ) -> jax.Array:
        """x [B, T, D] at int32 positions [B, T] → [B, T, D], to be added to x."""
        q, k, v = self.project(x, rotation)
        mixed = attend(q, k, v, self.sinks[...], visible_keys(positions, positions, self.window))
        return self.output(mixed.reshape(*x.shape[:2], -1))


# The mixture of experts, its weights in MXFP4.


def decode_mxfp4(blocks: jax.Array, scales: jax.Array) -> jax.Array:
    """Decodes uint8 blocks […, in/2] and scales […, in/32] to float32 weights […, in].

    A byte holds two 4-bit codes, the low nibble first, and 32 codes share a scale s with the value 2^(s -
    127). The result is exact, except that XLA flushes subnormal numbers (scales 0 and 1) to zero.
    """
    codes = jnp.stack([blocks & 15, blocks >> 4], axis=-1).reshape(*blocks.shape[:-1], -1)
    values = jnp.array(FP4_MAGNITUDES + tuple(-value for value in FP4_MAGNITUDES), jnp.float32)[codes]
    return jnp.ldexp(values, jnp.repeat(scales.astype(jnp.int32) - 127, MXFP4_BLOCK, axis=-1))


def clamped_swiglu(gate: jax.Array, up: jax.Array, limit: float) -> jax.Array:
    """gate · sigmoid(1.702 · gate) · (up + 1), with gate clamped to at most `limit` and up to ±`limit`."""
    gate = jnp.minimum(gate, limit)
    up = jnp.clip(up, -limit, limit)
    return gate * jax.nn.sigmoid(SWIGLU_ALPHA * gate) * (up + 1)


class ExpertLinear(nnx.Module):
    """One linear layer per expert, with weights in MXFP4.

    blocks uint8 [E, …, out, in/2]; scales uint8 [E, …, out, in/32]; bias [E, …, out].
    """

    def __init__(
        self, experts: int, outputs: tuple[int, ...], inputs: int, *, dtype: DTypeLike, rngs: nnx.Rngs
    ):
        shape = experts, *outputs
        # With a scale of 2^-6, random codes are about as large as the weights of a new linear layer.
        self.blocks = nnx.Param(jax.random.bits(rngs.params(), (*shape, inputs // 2), jnp.uint8))
        self.scales = nnx.Param(jnp.full((*shape, inputs // MXFP4_BLOCK), 121, jnp.uint8))
        self.bias = nnx.Param(jnp.zeros(shape, dtype))

    def of(self, experts: jax.Array, dtype: DTypeLike) -> tuple[jax.Array, jax.Array]:
        """Weights [A, …, out, in] of `dtype` and float32 biases [A, …,
        out] of the given experts, int32 [A].
        """
        weights = decode_mxfp4(self.blocks[...][experts], self.scales[...][experts])
        return weights.astype(dtype), self.bias[...][experts].astype(jnp.float32)


class Experts(nnx.Module):
    """All experts of a layer. Each has gate, up and down projections around a clamped SwiGLU."""

    def __init__(self, config: ModelConfig, *, dtype: DTypeLike, rngs: nnx.Rngs):
        experts, hidden, inner = config.num_experts, config.hidden_size, config.intermediate_size
        self.limit = config.swiglu_limit
        self.gate_up = ExpertLinear(experts, (2, inner), hidden, dtype=dtype, rngs=rngs)  # 0 gate, 1 up
        self.down = ExpertLinear(experts, (hidden,), inner, dtype=dtype, rngs=rngs)

    def __call__(self, x: jax.Array, experts: jax.Array, weights: jax.Array) -> jax.Array:
        """Runs x [T, D] through each token's experts int32 [T, A], weighted by float32 [T, A] → [T, D]."""

        def one_token(token: tuple[jax.Array, jax.Array, jax.Array]) -> jax.Array:
            x, experts, weights = token
            (gate, up), (gate_bias, up_bias) = (
                jnp.unstack(part, axis=1) for part in self.gate_up.of(experts, x.dtype)
            )
            gate = jnp.einsum("d,afd->af", x, gate, preferred_element_type=jnp.float32) + gate_bias
            up = jnp.einsum("d,afd->af", x, up, preferred_element_type=jnp.float32) + up_bias
            activations = clamped_swiglu(gate, up, self.limit).astype(x.dtype)
            down, down_bias = self.down.of(experts, x.dtype)
            out = jnp.einsum("af,adf->ad", activations, down, preferred_element_type=jnp.float32) + down_bias
            return jnp.einsum("a,ad->d", weights, out).astype(x.dtype)

        # Token by token, so that memory holds the decoded experts of a single token.
        return jax.lax.map(one_token, (x, experts, weights))


class MixtureOfExperts(nnx.Module):
    """Norm, router and experts of one layer."""

    def __init__(self, config: ModelConfig, *, dtype: DTypeLike, rngs: nnx.Rngs):
        self.experts_per_token = config.experts_per_token
        self.norm = RMSNorm(config.hidden_size, config.norm_epsilon, dtype=dtype)
        self.router = Linear(config.hidden_size, config.num_experts, dtype=dtype, rngs=rngs)
        self.experts = Experts(config, dtype=dtype, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """x [B, T, D] → [B, T, D], to be added to x."""
        tokens = self.norm(x).reshape(-1, x.shape[-1])
        # Not rounded: in bfloat16 two experts could tie, and the wrong one would change the result.
        logits = self.router.unrounded(tokens)
        chosen, experts = jax.lax.top_k(logits, self.experts_per_token)
        weights = jax.nn.softmax(chosen, axis=-1)  # over the chosen experts alone
        return self.experts(tokens, experts, weights).reshape(x.shape)


class Layer(nnx.Module):
    """x + attention(x), then x + experts(x)."""

    def __init__(self, config: ModelConfig, index: int, *, dtype: DTypeLike, rngs: nnx.Rngs):
        self.attention = Attention(config, index, dtype=dtype, rngs=rngs)
        self.moe = MixtureOfExperts(config, dtype=dtype, rngs=rngs)

    def __call__(
        self, x: jax.Array, positions: jax.Array, rotation: tuple[jax.Array, jax.Array]
    ) -> jax.Array:
        """x [B, T, D] at int32 positions [B, T] → [B, T, D]."""
        x = x + self.attention(x, positions, rotation)
        return x + self.moe(x)


class GptOss(nnx.Module):
    """The whole model.

    dtype: float32 or bfloat16, for activations and for all parameters except the packed experts. New models
    have random parameters; `gptoss_jax.model.load_plain` reads a checkpoint.
    """

    def __init__(self, config: ModelConfig, *, dtype: DTypeLike = jnp.float32, rngs: nnx.Rngs):
        self.config = config
        self.dtype = jnp.dtype(dtype)
        self.embedding = Embedding(config, dtype=dtype, rngs=rngs)
        self.layers = nnx.List(
            [Layer(config, index, dtype=dtype, rngs=rngs) for index in range(config.num_layers)]
        )
        self.norm = RMSNorm(config.hidden_size, config.norm_epsilon, dtype=dtype)
        self.unembedding = Unembedding(config, dtype=dtype, rngs=rngs)

    def __call__(self, tokens: jax.Array, positions: jax.Array | None = None) -> jax.Array:
        """Returns the logits float32 [B, T, V] of the token after each of `tokens`, int32 [B, T].

        positions int32 [B, T]: the tokens' positions; None: 0 … T − 1.
        """
        if positions is None:
            positions = jnp.broadcast_to(jnp.arange(tokens.shape[1], dtype=jnp.int32), tokens.shape)
        rotation = rotations(positions, self.config)
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x, positions, rotation)
        return self.unembedding(self.norm(x))
