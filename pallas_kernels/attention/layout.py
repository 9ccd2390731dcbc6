"""How keys and values lie in memory: several heads' keys in one row of 128 lanes, their values in another.

A TPU's memory consists of tiles with 128 lanes, so a row of 64 numbers takes as much room as a row of 128. An
*entry*, the keys and values of one token, is therefore not two arrays [K, h] but one array [U, R, L] of U
units. A unit holds J KV heads:

    J · h ≤ 128, R = 2:   row 0   [ K of head 0 │ K of head 1 │ … ]      L = J · h
                          row 1   [ V of head 0 │ V of head 1 │ … ]
    one head alone, R = 1:        [ K           │ V           ]          L = 2 · h

The second form is for h < 128 on a device that holds a single KV head. Neither form pads h = 64, and a row of
keys is an operand of the matrix unit at its full width. In arrays of entries the tokens come just before the
lanes: [N, U, R, P, L] is a pool of N pages of P tokens, [B, U, R, W, L] the rings of B sequences.

Entries may be stored in 8 bits, as float8_e4m3fn or float8_e5m2; reading converts them to the queries' dtype.
Tiles of 8-bit numbers have 32 rows, so on TPUs the tokens of a page must be a multiple of 32, and those of a
ring should be.
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
    """The layout for `kv_heads` heads of size `head_size`, whose units are split over `shards` devices.

    Raises ValueError if `shards` does not divide `kv_heads`.
    """
    if kv_heads % shards:
        raise ValueError(f"kv_heads is {kv_heads}: it must be a multiple of the number of shards, {shards}")
    each = kv_heads // shards
    joint = max(n for n in range(1, each + 1) if each % n == 0 and (n == 1 or n * head_size <= LANES))
    if joint == 1 and head_size < LANES:
        return EntryLayout(kv_heads, 1, 2 * head_size)
    return EntryLayout(kv_heads // joint, 2, joint * head_size)


def saturated(x: jax.Array, dtype: DTypeLike) -> jax.Array:
    """Converts x to `dtype`. For 8-bit dtypes, numbers beyond the largest one (448 for e4m3fn) become that
    one; a plain conversion would make them NaN or infinite. NaN stays NaN.
    """
    if x.dtype == dtype or jnp.dtype(dtype).itemsize > 1:
        return x.astype(dtype)
    largest = float(jnp.finfo(dtype).max)
    return jnp.clip(x, -largest, largest).astype(dtype)


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
    """J: how many KV heads a unit holds."""
    return layout.rows * layout.lanes // (2 * head_size)
