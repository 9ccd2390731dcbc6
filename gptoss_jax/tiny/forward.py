"""The plain model's layers over packed rows: a tree of branches instead of one sequence.

Same parameters, same arithmetic; what differs is what a token may see (its branch and the shared prefix),
and what a training step on a CPU needs to be fast: sliding layers compute only their window, and every expert
sees every token.
"""

from __future__ import annotations

from typing import cast

import jax
import jax.numpy as jnp
from flax import nnx

from gptoss_jax.model.gpt_oss import Attention, GptOss, MixtureOfExperts, rotations
from gptoss_jax.tiny.experts import FloatExperts

_FAR = 1 << 20
"""The position of the keys before the first block, which no query sees."""


def _softmax_with_sink(parts: list[tuple[jax.Array, jax.Array]], sinks: jax.Array) -> list[jax.Array]:
    """Attention shares over several sets of keys: (scores, visible) pairs [..., S], sinks [...]."""
    masked = [jnp.where(visible, scores, -jnp.inf) for scores, visible in parts]
    highest = sinks
    for scores in masked:
        highest = jnp.maximum(highest, scores.max(axis=-1))
    highest = jax.lax.stop_gradient(highest)
    shares = [jnp.exp(scores - highest[..., None]) for scores in masked]
    total = jnp.exp(sinks - highest)
    for share in shares:
        total = total + share.sum(axis=-1)
    return [share / total[..., None] for share in shares]


def _full(
    q: jax.Array, k: jax.Array, v: jax.Array, sinks: jax.Array, positions: jax.Array, segments: jax.Array
) -> jax.Array:
    """q [B, T, K, G, h], k and v [B, T, K, h], sinks [K, G] → [B, T, K, G, h]."""
    query, key = segments[:, :, None], segments[:, None, :]
    visible = ((key == 0) | (key == query)) & (positions[:, None, :] <= positions[:, :, None])
    scores = jnp.einsum("btkgh,bskh->bkgts", q, k)
    (shares,) = _softmax_with_sink([(scores, visible[:, None, None])], sinks[None, :, :, None])
    return jnp.einsum("bkgts,bskh->btkgh", shares, v)


def _sliding(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    sinks: jax.Array,
    positions: jax.Array,
    segments: jax.Array,
    window: int,
) -> jax.Array:
    """As `_full`, within the last `window` keys. T must be a multiple of `window`.

    A block of `window` queries looks at its own block and the one before, and, because a branch may begin far
    from the prefix it continues, at the last `window` keys of the prefix.
    """
    batch, length, kv_heads, groups, size = q.shape
    blocks = length // window

    def in_blocks(x: jax.Array) -> jax.Array:
        return x.reshape(batch, blocks, window, *x.shape[2:])

    def with_previous(x: jax.Array, filler: int) -> jax.Array:
        x = in_blocks(x)
        return jnp.concatenate(
            [jnp.concatenate([jnp.full_like(x[:, :1], filler), x[:, :-1]], axis=1), x], axis=2
        )

    tail = (segments == 0).sum(axis=1)[:, None] - window + jnp.arange(window)  # [B, W], may be negative
    chosen = (tail[:, :, None] == jnp.arange(length)).astype(q.dtype)  # a gather as a matmul
    tail_k, tail_v = (jnp.einsum("bws,bskh->bwkh", chosen, x) for x in (k, v))

    queries = in_blocks(q)
    near_k, near_v = with_previous(k, 0), with_previous(v, 0)
    query_position, query_segment = in_blocks(positions)[..., None], in_blocks(segments)[..., None]
    distance = query_position - with_previous(positions, _FAR)[:, :, None, :]
    near = (
        (with_previous(segments, -2)[:, :, None, :] == query_segment) & (distance >= 0) & (distance < window)
    )
    tail_position = tail[:, None, None, :]
    far = (query_segment > 0) & (tail_position >= 0) & (query_position - tail_position < window)
    scores = jnp.einsum("bnwkgh,bnskh->bkgnws", queries, near_k)
    tail_scores = jnp.einsum("bnwkgh,bskh->bkgnws", queries, tail_k)
    shares, tail_shares = _softmax_with_sink(
        [(scores, near[:, None, None]), (tail_scores, far[:, None, None])], sinks[None, :, :, None, None]
    )
    mixed = jnp.einsum("bkgnws,bnskh->bnwkgh", shares, near_v) + jnp.einsum(
        "bkgnws,bskh->bnwkgh", tail_shares, tail_v
    )
    return mixed.reshape(batch, length, kv_heads, groups, size)


def _attention(
    layer: Attention,
    x: jax.Array,
    rotation: tuple[jax.Array, jax.Array],
    positions: jax.Array,
    segments: jax.Array,
) -> jax.Array:
    q, k, v = layer.project(x, rotation)
    batch, length, heads, size = q.shape
    kv_heads = k.shape[2]
    q = q.reshape(batch, length, kv_heads, heads // kv_heads, size) * size**-0.5
    sinks = layer.sinks[...].reshape(kv_heads, heads // kv_heads)
    if layer.window is None:
        mixed = _full(q, k, v, sinks, positions, segments)
    else:
        mixed = _sliding(q, k, v, sinks, positions, segments, layer.window)
    return layer.output(mixed.reshape(batch, length, heads * size))


def _experts(layer: MixtureOfExperts, x: jax.Array, quantised: bool) -> tuple[jax.Array, jax.Array]:
    """The layer's output, and its routing's imbalance (1: none; Switch Transformers, equation 4)."""
    rows = layer.norm(x).reshape(-1, x.shape[-1])
    logits = layer.router(rows)
    remaining, lowest = logits, logits.max(axis=-1, keepdims=True)
    for _ in range(layer.experts_per_token):  # top_k would bring scatters into the gradient
        lowest = remaining.max(axis=-1, keepdims=True)
        remaining = jnp.where(remaining >= lowest, -jnp.inf, remaining)
    chosen = logits >= jax.lax.stop_gradient(lowest)
    shares = jax.nn.softmax(jnp.where(chosen, logits, -jnp.inf), axis=-1)
    experts = logits.shape[-1]
    spread = jax.nn.softmax(logits, axis=-1).mean(axis=0) * chosen.mean(axis=0)
    imbalance = experts * spread.sum() / layer.experts_per_token
    float_experts = cast(FloatExperts, layer.experts)
    return float_experts(rows, shares, quantised=quantised).reshape(x.shape), imbalance


def hidden_states(
    model: GptOss,
    tokens: jax.Array,
    positions: jax.Array,
    segments: jax.Array,
    *,
    quantised: bool = False,
) -> tuple[jax.Array, jax.Array]:
    """Hidden states [B, T, D] of packed rows (see `packing.Batch`), and the layers' mean imbalance.

    `model` has `FloatExperts`. `quantised`: True rounds their weights to MXFP4.
    """
    x = model.embedding(tokens)
    rotation = rotations(positions, model.config)
    imbalances = []
    for layer in model.layers:
        x = x + _attention(layer.attention, x, rotation, positions, segments)
        mixed, imbalance = _experts(layer.moe, x, quantised)
        x = x + mixed
        imbalances.append(imbalance)
    return model.norm(x), jnp.stack(imbalances).mean()


def model_with(graph: nnx.GraphDef, parameters: dict[str, jax.Array]) -> GptOss:
    """The model of structure `graph` around float parameters named by their paths in it."""
    return nnx.merge(
        graph, nnx.from_flat_state([(_path(name), nnx.Param(value)) for name, value in parameters.items()])
    )


def _path(name: str) -> tuple[str | int, ...]:
    return tuple(int(part) if part.isdigit() else part for part in name.split("."))
