"""How keys and values lie in memory: several heads' keys in one row of 128 lanes, their values in another.

A TPU's memory is made of tiles with 128 lanes; a row of 64 numbers takes as much as one of 128. So an
*entry*, what a cache holds of one token, is not two arrays [K, h] but one array [U, R, L] of U units. A
unit serves J KV heads:

    J · h ≤ 128, R = 2:   row 0   [ K of head 0 │ K of head 1 │ … ]      L = J · h
                          row 1   [ V of head 0 │ V of head 1 │ … ]
    one head alone, R = 1:        [ K           │ V           ]          L = 2 · h

The second form is for h < 128 where a device holds a single KV head. Either way nothing is padded for h =
64, and for J heads one row of keys is one operand of the matrix unit, full width. Arrays of entries keep
their tokens in front of the lanes: [N, U, R, P, L] is a pool of N pages of P tokens, [B, U, R, W, L] are
the rings of B sequences.

Entries may be stored in 8 bits, float8_e4m3fn or float8_e5m2: they are raised to the queries' dtype when they
are read. Tiles have 32 rows then, so pages (and rings, to be fast) are multiples of 32 tokens on TPUs.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

LANES = 128


class EntryLayout(NamedTuple):
    """The shape [U, R, L] of a token's entry."""

    units: int
    rows: int
    lanes: int


def entry_layout(kv_heads: int, head_size: int, shards: int = 1) -> EntryLayout:
    """The layout for K heads of size h, shared out to that many devices by units.

    Raises ValueError if the heads cannot be shared out evenly.
    """
    if kv_heads % shards:
        raise ValueError(f"kv_heads is {kv_heads}: it must be a multiple of the number of shards, {shards}")
    each = kv_heads // shards
    joint = max(n for n in range(1, each + 1) if each % n == 0 and (n == 1 or n * head_size <= LANES))
    if joint == 1 and head_size < LANES:
        return EntryLayout(kv_heads, 1, 2 * head_size)
    return EntryLayout(kv_heads // joint, 2, joint * head_size)


def saturated(x: jax.Array, dtype: DTypeLike) -> jax.Array:
    """x in another dtype. What is beyond the largest number of 8 bits (448 for e4m3fn) becomes that number:
    a plain conversion would make it NaN or infinite. NaN stays NaN.
    """
    if x.dtype == dtype or jnp.dtype(dtype).itemsize > 1:
        return x.astype(dtype)
    most = float(jnp.finfo(dtype).max)
    return jnp.clip(x, -most, most).astype(dtype)


def pack(keys: jax.Array, values: jax.Array, layout: EntryLayout) -> jax.Array:
    """Keys and values […, K, h] → entries […, U, R, L]."""
    units, rows, lanes = layout
    leading = keys.shape[:-2]
    if rows == 1:
        return jnp.concatenate([keys, values], axis=-1)[..., None, :]
    row = (*leading, units, lanes)
    return jnp.stack([keys.reshape(row), values.reshape(row)], axis=-2)


def unpack(entries: jax.Array, head_size: int) -> tuple[jax.Array, jax.Array]:
    """Entries […, U, R, L] → keys and values […, K, h]."""
    if entries.shape[-2] == 1:
        keys, values = jnp.split(entries[..., 0, :], 2, axis=-1)
    else:
        keys, values = entries[..., 0, :], entries[..., 1, :]
    shape = (*entries.shape[:-3], -1, head_size)
    return keys.reshape(shape), values.reshape(shape)


def heads_per_unit(layout: EntryLayout, head_size: int) -> int:
    """J: how many KV heads a unit serves."""
    return layout.rows * layout.lanes // (2 * head_size)
