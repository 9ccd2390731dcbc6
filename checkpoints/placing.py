"""From bytes on disk to arrays on devices: one copy, and only of what this process's devices hold."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from checkpoints.parameters import UINT8, ParameterSpec

Reader = Callable[[tuple[slice, ...], np.ndarray], None]
"""Reads the part of a stored array that an index names into an array of that part's shape."""

Shardings = Callable[[str], jax.sharding.Sharding]
"""Parameter name → where its shards go."""

_ALIGNMENT = 64  # of what a CPU device takes over without copying it


def place(spec: ParameterSpec, read: Reader, sharding: jax.sharding.Sharding, dtype: Any) -> jax.Array:
    """A stored parameter on its devices; each distinct shard is read once, straight into its own memory.

    Args:
        spec: shape and dtype as stored.
        read: see `Reader`.
        sharding: where it goes.
        dtype: what it becomes unless it is packed (uint8); None: as stored.
    """
    target = spec.dtype if dtype is None or spec.dtype == UINT8 else np.dtype(dtype)
    shards: dict[tuple[tuple[int, int], ...], np.ndarray] = {}

    def shard(index: tuple[slice, ...] | None) -> np.ndarray:
        bounds = tuple(part.indices(size)[:2] for part, size in zip(index or (), spec.shape, strict=True))
        if bounds not in shards:
            out = _aligned_empty(tuple(stop - start for start, stop in bounds), target)
            read(tuple(slice(start, stop) for start, stop in bounds), out)
            shards[bounds] = out
        return shards[bounds]

    return jax.make_array_from_callback(spec.shape, sharding, shard)


def _aligned_empty(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    size = math.prod(shape) * dtype.itemsize
    memory = np.empty(size + _ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT
    return memory[start : start + size].view(dtype).reshape(shape)


def sharding_of(name: str, shardings: Shardings | None) -> jax.sharding.Sharding:
    """The sharding asked for a parameter, or this process's first device."""
    return shardings(name) if shardings else jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
