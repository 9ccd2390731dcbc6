"""Measures the two ceilings of a device: bytes moved per second and operations per second."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from gptoss_jax.bench.kernels.timing import time_calls

_COPIED = 1 << 32
_SIDE = 8192


def copy_bandwidth(num_bytes: int = _COPIED) -> float:
    """Bytes per second, read plus written, of a large elementwise operation."""
    source = jax.random.bits(jax.random.key(0), (num_bytes // 4,), jnp.uint32)
    return 2 * num_bytes / time_calls(lambda numbers: numbers ^ jnp.uint32(1), [(source,)]).seconds


def matmul_rate(side: int = _SIDE) -> float:
    """Operations per second of a large bfloat16 matrix product of random numbers."""
    left, right = jax.random.normal(jax.random.key(1), (2, side, side), jnp.bfloat16)
    return 2 * side**3 / time_calls(jnp.matmul, [(left, right)]).seconds
