"""Prefill on TPUs with jax's splash attention.

Splash attention takes sinks and skips blocks of keys that no query sees, but its mask must be known when the
program is traced. So the keys get a fixed order: `before` keys of the ring, which end just before the chunk's
first token, then the chunk's. Tokens that do not exist belong to another segment, so no query attends to
them.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as splash
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks

from pallas_kernels.attention.layout import LANES, unpack
from pallas_kernels.attention.reference import LOWEST_SINK
from pallas_kernels.platform import Chip, Interpret

_LARGEST_BLOCK = 512


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
    interpret: Interpret,
    chip: Chip,
) -> jax.Array:
    """See `pallas_kernels.attention.prefill`."""
    del chip  # splash attention chooses the same tiles for every chip
    length = q.shape[1]
    padded = pl.cdiv(length, LANES) * LANES
    padding = ((0, 0), (0, padded - length), (0, 0), (0, 0))
    q, k, v = (jnp.pad(x, padding) for x in (q, k, v))
    exists = jnp.pad(positions, padding[:2], constant_values=-1) >= 0
    keys_exist = exists
    before = 0
    if ring is not None and cached_positions is not None and window is not None and window > 1:
        before = pl.cdiv(window - 1, LANES) * LANES
        old_k, old_v, old_exist = _keys_before(ring, cached_positions, positions[:, :1], before, q.shape[-1])
        k = jnp.concatenate([old_k.astype(k.dtype), k], axis=1)
        v = jnp.concatenate([old_v.astype(v.dtype), v], axis=1)
        keys_exist = jnp.concatenate([old_exist, exists], axis=1)

    shape = (padded, before + padded)
    mask = masks.LocalMask(shape, (None if window is None else window - 1, 0), before)
    kernel = splash.make_splash_mha(
        masks.MultiHeadMask([mask] * q.shape[2]),
        block_sizes=splash.BlockSizes(block_q=_block(shape[0]), block_kv=_block(shape[1])),
        head_shards=1,
        q_seq_shards=1,
        interpret=interpret,  # type: ignore[arg-type]  # goes to `pallas_call`
    )
    sinks = jnp.maximum(sinks.astype(jnp.float32), LOWEST_SINK)

    def one(q: jax.Array, k: jax.Array, v: jax.Array, exists: jax.Array, keys_exist: jax.Array) -> jax.Array:
        # Queries that do not exist belong to a segment without keys, so they see nothing.
        segments = splash.SegmentIds(jnp.where(exists, 1, 2), keys_exist.astype(jnp.int32))
        heads_first = (x.swapaxes(0, 1) for x in (q, k, v))
        return kernel(*heads_first, segments, sinks).swapaxes(0, 1)

    scaled = (q.astype(jnp.float32) * q.shape[-1] ** -0.5).astype(q.dtype)
    return jax.vmap(one)(scaled, k, v, exists, keys_exist)[:, :length].astype(q.dtype)


def _block(length: int) -> int:
    """The largest of the blocks 512, 256 and 128 that divides `length`, a multiple of 128."""
    return next(block for block in (_LARGEST_BLOCK, 256, LANES) if length % block == 0)


def _keys_before(
    ring: jax.Array, cached_positions: jax.Array, first: jax.Array, count: int, size: int
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Returns keys and values [B, count, K, h] at the `count` positions before int32 first [B, 1].

    Also bool [B, count]: True where the ring holds the position. Other keys and values are zeros.
    """
    wanted = first - count + jnp.arange(count)
    index = wanted % ring.shape[3]
    exist = (jnp.take_along_axis(cached_positions, index, axis=1) == wanted) & (wanted >= 0)
    entries = jnp.take_along_axis(ring, index[:, None, None, :, None], axis=3)
    entries = jnp.where(exist[:, :, None, None, None], jnp.moveaxis(entries, 3, 1), 0)
    return *unpack(entries, size), exist
