"""Attention in float64, one query of one head at a time; and random inputs for it."""

from __future__ import annotations

import ml_dtypes
import numpy as np


def one_query(q: np.ndarray, keys: np.ndarray, values: np.ndarray, sink: float) -> np.ndarray:
    """q [h] over keys, values [n, h]; the sink joins the denominator."""
    if not len(keys):
        return np.zeros(q.size)
    scores = keys.astype(np.float64) @ q.astype(np.float64) / np.sqrt(q.size)
    highest = max([float(sink), *scores])
    shares = np.exp(scores - highest)
    return shares @ values.astype(np.float64) / (shares.sum() + np.exp(float(sink) - highest))


def attention(
    q: np.ndarray, rows: list[list[np.ndarray]], sinks: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """q [B, H, h]; rows[b][k] [n, 2h], the keys and values that sequence b sees on KV head k.

    Returns the result [B, H, h] and Σ share · |value|, to which rounding errors of shares are relative.
    """
    batch, heads, size = q.shape
    group = heads // len(rows[0])
    out, size_of_terms = np.zeros(q.shape), np.zeros(q.shape)
    for b in range(batch):
        for head in range(heads):
            seen = rows[b][head // group]
            keys, values = seen[:, :size], seen[:, size:]
            out[b, head] = one_query(q[b, head], keys, values, sinks[head])
            size_of_terms[b, head] = one_query(
                q[b, head], keys, np.abs(values.astype(np.float64)), sinks[head]
            )
    return out, size_of_terms


def assert_within_bound(actual: np.ndarray, expected: np.ndarray, size_of_terms: np.ndarray) -> None:
    """float32: 1e-5 of the terms. bfloat16: what bf16 shares can lose, 2⁻⁸ of the terms, and 2 ulp of the
    result.

    A share rounded to bf16, whose significand has 8 bits, is off by at most 2⁻⁸ of itself, and so is the
    weighted sum, relative to Σ share · |value|. An ulp of bf16 is at most 2⁻⁷ of a number.
    """
    actual = np.asarray(actual)
    if actual.dtype == np.float32:
        tolerance = 1e-5 * size_of_terms + 1e-30
    else:
        assert actual.dtype == ml_dtypes.bfloat16
        tolerance = 2.0**-8 * size_of_terms + 2 * 2.0**-7 * np.abs(expected) + 1e-30
    error = np.abs(actual.astype(np.float64) - expected)
    assert np.isfinite(error).all()
    assert (error <= tolerance).all(), f"{(error / tolerance).max():.2f} times the bound"


def rounded(x: np.ndarray, stored: str | None) -> np.ndarray:
    """x after storing it in another dtype and reading it back."""
    return x if stored is None else x.astype(stored).astype(x.dtype)


def random(
    generator: np.random.Generator, shape: tuple[int, ...], dtype: str, scale: float = 1.0
) -> np.ndarray:
    values = generator.standard_normal(shape) * scale
    return values.astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else np.float32)
