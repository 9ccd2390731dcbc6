"""Attention in plain JAX, with scores and softmax in float32.

Kernels are tested against it, and CPUs run it.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from pallas_kernels.attention.layout import saturated, unpack

LOWEST_SINK = -1e30
"""Sinks are raised to this.

It adds nothing to a softmax, while -inf would make a softmax over no keys NaN.
"""


def attend(q: jax.Array, k: jax.Array, v: jax.Array, sinks: jax.Array, visible: jax.Array) -> jax.Array:
    """Softmax attention with sinks: one learned logit per head, which adds to the softmax's denominator only.

    q [B, T, H, h]; k, v [B, S, K, h]; sinks [H]. visible bool [B, T, S]: True where a query sees a key.
    Returns [B, T, H, h] in q's dtype. Scores and softmax are float32.
    """
    batch, length, heads, size = q.shape
    kv_heads = k.shape[2]
    q = q.reshape(batch, length, kv_heads, heads // kv_heads, size)
    scores = jnp.einsum("btkgh,bskh->bkgts", q, k, preferred_element_type=jnp.float32) * size**-0.5
    scores = jnp.where(visible[:, None, None], scores, -jnp.inf)
    sink = jnp.maximum(sinks.astype(jnp.float32), LOWEST_SINK)
    sink = sink.reshape(kv_heads, heads // kv_heads)[None, :, :, None]
    highest = jax.lax.stop_gradient(jnp.maximum(scores.max(axis=-1), sink))  # finite: the sink is
    weights = jnp.exp(scores - highest[..., None])
    total = weights.sum(axis=-1) + jnp.exp(sink - highest)
    weights = (weights / total[..., None]).astype(v.dtype)
    out = jnp.einsum("bkgts,bskh->btkgh", weights, v, preferred_element_type=jnp.float32)
    return out.reshape(batch, length, heads, size).astype(q.dtype)


def sees(query_positions: jax.Array, key_positions: jax.Array, window: int | jax.Array | None) -> jax.Array:
    """Returns bool [B, T, S]: True where the query at position [B, T] sees the key at position [B, S].

    A query sees the keys at its own position and before it; with a window only the last `window` of them, its
    own included. None: all of them. A key at a negative position does not exist, and no query sees it.
    """
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
    """Attention of q [B, T, H, h] at int32 positions [B, T] to entries [B, S, U, R, L] at positions [B, S].

    Entries at negative positions may hold anything, NaN included. Returns [B, T, H, h] in q's dtype.
    """
    kept = jnp.where((key_positions >= 0)[:, :, None, None, None], entries, 0)
    k, v = unpack(kept.astype(q.dtype), q.shape[-1])
    return attend(q, k, v, sinks, sees(query_positions, key_positions, window))


def decode_pages(
    q: jax.Array, pages: jax.Array, block_table: jax.Array, lengths: jax.Array, sinks: jax.Array
) -> jax.Array:
    """See `pallas_kernels.attention.decode_pages`."""
    return prefill_pages(q[:, None], pages, block_table, lengths[:, None] - 1, sinks)[:, 0]


def prefill_pages(
    q: jax.Array, pages: jax.Array, block_table: jax.Array, positions: jax.Array, sinks: jax.Array
) -> jax.Array:
    """See `pallas_kernels.attention.prefill_pages`."""
    _, units, rows, page, lanes = pages.shape
    batch, columns = block_table.shape
    entries = jnp.moveaxis(pages.at[block_table].get(mode="clip"), 4, 2).reshape(
        batch, -1, units, rows, lanes
    )
    keys = jnp.arange(columns * page)
    key_positions = jnp.where(keys <= positions.max(axis=1, keepdims=True), keys, -1)
    return attend_entries(q, entries, sinks, positions, key_positions, None)


def decode_ring(
    q: jax.Array,
    ring: jax.Array,
    cached_positions: jax.Array,
    positions: jax.Array,
    sinks: jax.Array,
    *,
    window: int | jax.Array,
) -> jax.Array:
    """See `pallas_kernels.attention.decode_ring`."""
    entries = jnp.moveaxis(ring[: q.shape[0]], 3, 1)
    return attend_entries(q[:, None], entries, sinks, positions[:, None], cached_positions, window)[:, 0]


def prefill(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    positions: jax.Array,
    sinks: jax.Array,
    ring: jax.Array | None = None,
    cached_positions: jax.Array | None = None,
    *,
    window: int | None,
) -> jax.Array:
    """See `pallas_kernels.attention.prefill`."""
    key_positions = positions
    if ring is not None and cached_positions is not None:
        cached_positions = positions_before(cached_positions, positions)
        old_k, old_v = unpack(
            jnp.where((cached_positions >= 0)[:, :, None, None, None], jnp.moveaxis(ring, 3, 1), 0),
            q.shape[-1],
        )
        k = jnp.concatenate([old_k.astype(k.dtype), k], axis=1)
        v = jnp.concatenate([old_v.astype(v.dtype), v], axis=1)
        key_positions = jnp.concatenate([cached_positions, positions], axis=1)
    return attend(q, k, v, sinks, sees(positions, key_positions, window))


def positions_before(cached_positions: jax.Array, positions: jax.Array) -> jax.Array:
    """A ring's positions int32 [B, W] before a chunk at int32 positions [B, T]; -1 for the chunk's own and
    later.

    A ring holds such positions if the engine took tokens back.
    """
    return jnp.where(cached_positions < positions[:, :1], cached_positions, -1)


def store_entries(pool: jax.Array, entries: jax.Array, pages: jax.Array, rows: jax.Array) -> jax.Array:
    """See `pallas_kernels.attention.store_entries`.

    It is a scatter of single rows into a matrix. For a scatter with more dimensions XLA would choose another
    memory layout on TPUs, and copy the whole pool to that layout and back.
    """
    count, units, parts, length, lanes = pool.shape
    part = jnp.arange(units * parts)
    row = (pages[..., None] * (units * parts) + part) * length + rows[..., None]
    exists = (pages >= 0) & (pages < count)
    row = jnp.where(exists[..., None], row, pool.size // lanes)  # out of range, so `mode="drop"` drops it
    matrix = pool.reshape(-1, lanes)
    stored = matrix.at[row.reshape(-1)].set(saturated(entries, pool.dtype).reshape(-1, lanes), mode="drop")
    return stored.reshape(pool.shape)
