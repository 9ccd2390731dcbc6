"""Rotary positions with YaRN, as published: theta 150,000, factor 32, the correction range not truncated."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np

from checkpoints.config import ModelConfig


def yarn_frequencies(config: ModelConfig) -> tuple[np.ndarray, float]:
    """The angle per position of each pair of dimensions, float32 [h/2], and the factor on cos and sin.

    YaRN keeps the frequencies that turn more than `beta_fast` times within the original length, divides
    those that turn less than `beta_slow` times by the factor, and blends in between (Peng et al., 2023,
    section 3.2). A factor of 1 or less means plain RoPE.
    """
    half = config.head_size // 2
    frequencies = config.rope_theta ** -(np.arange(half, dtype=np.float64) / half)
    if config.yarn_factor <= 1:
        return frequencies.astype(np.float32), 1.0

    def dimension_turning(turns: float) -> float:
        wavelengths = config.yarn_original_length / (turns * 2 * math.pi)
        return half * math.log(wavelengths) / math.log(config.rope_theta)

    low = max(dimension_turning(config.yarn_beta_fast), 0.0)
    high = min(dimension_turning(config.yarn_beta_slow), config.head_size - 1.0)
    interpolated = np.clip((np.arange(half) - low) / max(high - low, 1e-3), 0.0, 1.0)
    frequencies = frequencies * (1 - interpolated) + frequencies / config.yarn_factor * interpolated
    return frequencies.astype(np.float32), 0.1 * math.log(config.yarn_factor) + 1.0


def rotations(positions: jax.Array, config: ModelConfig) -> tuple[jax.Array, jax.Array]:
    """cos and sin of every angle at int32 positions [B, T]: two float32 arrays [B, T, h/2]."""
    frequencies, factor = yarn_frequencies(config)
    angles = positions[..., None].astype(jnp.float32) * frequencies
    return jnp.cos(angles) * factor, jnp.sin(angles) * factor


def rotate(x: jax.Array, cos: jax.Array, sin: jax.Array) -> jax.Array:
    """Turns x [B, T, heads, h] by the angles [B, T, h/2]; dimension i pairs with i + h/2. Keeps x's dtype."""
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    cos, sin = cos[:, :, None], sin[:, :, None]
    turned = jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
    return turned.astype(x.dtype)
