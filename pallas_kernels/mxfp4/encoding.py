"""float → MXFP4 in numpy, on the host; for trained models and for tests."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from pallas_kernels.mxfp4.format import BLOCK_SIZE, SCALE_BIAS

_LARGEST_CODE = 6.0
_TOO_LARGE = 1.75 * 2.0**127
"""Magnitudes from this one on would round to 2^128, which is infinite in float32."""


def encode(weights: npt.ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    """The MXFP4 blocks and scales nearest to `weights`.

    A block's scale is the smallest power of two (from 2^-127 on) that makes its largest magnitude at most 6,
    the largest code, so no weight saturates. Each weight then rounds to the nearest code, and a tie to the
    code with an even mantissa. Weights that MXFP4 can represent are encoded exactly, signs of zeros included.

    Args:
        weights: real numbers [..., K], K a multiple of 32, converted to float32.

    Returns:
        blocks uint8 [..., K/2] and scales uint8 [..., K/32].

    Raises:
        ValueError: K is not a multiple of 32, or a weight is NaN or at least 1.75 × 2^127 in magnitude.
    """
    weights = np.asarray(weights, dtype=np.float32)
    if weights.ndim == 0 or weights.shape[-1] % BLOCK_SIZE:
        raise ValueError(
            f"weights are {list(weights.shape)}: the last axis must be a multiple of {BLOCK_SIZE}"
        )
    grouped = weights.reshape(*weights.shape[:-1], weights.shape[-1] // BLOCK_SIZE, BLOCK_SIZE)
    magnitude = np.abs(grouped)
    largest = magnitude.max(axis=-1)
    if not (largest < _TOO_LARGE).all():
        raise ValueError(
            "weights hold a NaN or a magnitude of at least 1.75 * 2^127, which MXFP4 cannot represent"
        )

    # largest = fraction · 2^exponent with fraction in [0.5, 1): largest / 2^(exponent - 3) is in [4, 8).
    fraction, exponent = np.frexp(largest)
    exponent = exponent - 3 + (fraction * 8 > _LARGEST_CODE)
    exponent = np.where(largest == 0, -SCALE_BIAS, np.maximum(exponent, -SCALE_BIAS)).astype(np.int32)

    scaled = np.ldexp(magnitude, -exponent[..., None])
    # The code is the number of midpoints below the weight; at a midpoint the even code wins.
    codes = np.zeros(scaled.shape, np.uint8)
    for midpoint, odd_below in ((0.25, 0), (0.75, 1), (1.25, 0), (1.75, 1), (2.5, 0), (3.5, 1), (5.0, 0)):
        codes += scaled >= midpoint if odd_below else scaled > midpoint
    codes |= np.signbit(grouped).astype(np.uint8) << 3

    codes = codes.reshape(*weights.shape[:-1], weights.shape[-1] // 2, 2)
    return codes[..., 0] | (codes[..., 1] << 4), (exponent + SCALE_BIAS).astype(np.uint8)
