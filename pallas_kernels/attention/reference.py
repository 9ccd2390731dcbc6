"""Attention in plain JAX, scores and softmax in float32: what the kernels must equal, and what runs on a
CPU.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from pallas_kernels.attention.layout import saturated, unpack

LOWEST_SINK = -1e30
"""A sink below this is as good as none; -inf itself would make the softmax of no keys NaN."""


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
    sink = jnp.maximum(sinks.astype(jnp.float32), LOWEST_SINK)
    sink = sink.reshape(kv_heads, heads // kv_heads)[None, :, :, None]
    highest = jax.lax.stop_gradient(jnp.maximum(scores.max(axis=-1), sink))  # finite: the sink is
    shares = jnp.exp(scores - highest[..., None])
    total = shares.sum(axis=-1) + jnp.exp(sink - highest)
    shares = (shares / total[..., None]).astype(v.dtype)
    out = jnp.einsum("bkgts,bskh->btkgh", shares, v, preferred_element_type=jnp.float32)
    return out.reshape(batch, length, heads, size).astype(q.dtype)


def sees(query_positions: jax.Array, key_positions: jax.Array, window: int | jax.Array | None) -> jax.Array:
    """bool [B, T, S]: may the query at [B, T] see the key at [B, S]? Itself, the past, and within `window`
    only its last keys, itself included; a negative position is a token that does not exist."""
    query, key = query_positions[:, :, None], key_positions[:, None, :]
    visible = (key >= 0) & (key <= query)
    return visible if window is None else visible & (key > query - window)


def attend_entries(
    q: jax.Array,
    entries: jax.Array,
    sinks: jax.Array,
    query_positions: jax.Array,
    key_positions: jax.Array,
    window: int | jax.Array | None,
) -> jax.Array:
    """q [B, T, H, h] attends to entries [B, S, U, R, L] at positions [B, S]; entries at negative ones may
    hold anything, NaN included.
    """
    kept = jnp.where((key_positions >= 0)[:, :, None, None, None], entries, 0)
    k, v = unpack(kept.astype(q.dtype), q.shape[-1])
    return attend(q, k, v, sinks, sees(query_positions, key_positions, window))


def decode_pages(
    q: jax.Array, pages: jax.Array, table: jax.Array, lengths: jax.Array, sinks: jax.Array
) -> jax.Array:
    """See `pallas_kernels.attention.decode_pages`."""
    return prefill_pages(q[:, None], pages, table, lengths[:, None] - 1, sinks)[:, 0]


def prefill_pages(
    q: jax.Array, pages: jax.Array, table: jax.Array, positions: jax.Array, sinks: jax.Array
) -> jax.Array:
    """See `pallas_kernels.attention.prefill_pages`."""
    _, units, rows, page, lanes = pages.shape
    batch, columns = table.shape
    entries = jnp.moveaxis(pages.at[table].get(mode="clip"), 4, 2).reshape(batch, -1, units, rows, lanes)
    keys = jnp.arange(columns * page)
    held = jnp.where(keys <= positions.max(axis=1, keepdims=True), keys, -1)
    return attend_entries(q, entries, sinks, positions, held, None)


def decode_ring(
    q: jax.Array,
    ring: jax.Array,
    held: jax.Array,
    positions: jax.Array,
    sinks: jax.Array,
    *,
    window: int | jax.Array,
) -> jax.Array:
    """See `pallas_kernels.attention.decode_ring`."""
    entries = jnp.moveaxis(ring[: q.shape[0]], 3, 1)
    return attend_entries(q[:, None], entries, sinks, positions[:, None], held, window)[:, 0]


def prefill(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    positions: jax.Array,
    sinks: jax.Array,
    ring: jax.Array | None = None,
    held: jax.Array | None = None,
    *,
    window: int | None,
) -> jax.Array:
    """See `pallas_kernels.attention.prefill`."""
    key_positions = positions
    if ring is not None and held is not None:
        held = held_before(held, positions)
        old_k, old_v = unpack(
            jnp.where((held >= 0)[:, :, None, None, None], jnp.moveaxis(ring, 3, 1), 0), q.shape[-1]
        )
        k = jnp.concatenate([old_k.astype(k.dtype), k], axis=1)
        v = jnp.concatenate([old_v.astype(v.dtype), v], axis=1)
        key_positions = jnp.concatenate([held, positions], axis=1)
    return attend(q, k, v, sinks, sees(positions, key_positions, window))


def held_before(held: jax.Array, positions: jax.Array) -> jax.Array:
    """What a ring holds from before a chunk, int32 [B, W]: -1 for positions that the chunk, int32 [B, T], has
    itself. A ring holds such where tokens were taken back.
    """
    return jnp.where(held < positions[:, :1], held, -1)


def store_entries(pool: jax.Array, entries: jax.Array, pages: jax.Array, rows: jax.Array) -> jax.Array:
    """See `pallas_kernels.attention.store_entries`.

    As a scatter of single rows into a matrix: for one with more dimensions XLA picks a memory layout of its
    own on TPUs, and copies the whole pool to it and back.
    """
    count, units, parts, length, lanes = pool.shape
    part = jnp.arange(units * parts)
    row = (pages[..., None] * (units * parts) + part) * length + rows[..., None]
    exists = (pages >= 0) & (pages < count)
    row = jnp.where(exists[..., None], row, pool.size // lanes)  # out of range: dropped
    matrix = pool.reshape(-1, lanes)
    stored = matrix.at[row.reshape(-1)].set(saturated(entries, pool.dtype).reshape(-1, lanes), mode="drop")
    return stored.reshape(pool.shape)
