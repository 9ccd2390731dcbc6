"""The operations of a layer by definition, in numpy and float64: what kernels are held to on a device."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

_CODES = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
"""The value of each MXFP4 code."""


class Expected(NamedTuple):
    """values: the result. terms: the sum of the magnitudes that it is the sum of."""

    values: np.ndarray
    terms: np.ndarray


def mxfp4(blocks: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """blocks uint8 [..., K/2], scales uint8 [..., K/32] → [..., K]; the low nibble comes first."""
    codes = np.stack([blocks & 15, blocks >> 4], axis=-1).reshape(*blocks.shape[:-1], -1)
    return _CODES[codes] * np.repeat(np.ldexp(1.0, scales.astype(np.int64) - 127), 32, axis=-1)


def attention(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, sinks: np.ndarray, visible: np.ndarray
) -> Expected:
    """q [B, T, H, h]; k, v [B, S, K, h]; sinks [H]; visible bool [B, T, S] → [B, T, H, h]."""
    heads, kv_heads = q.shape[2], k.shape[2]
    k, v = (np.repeat(each, heads // kv_heads, axis=2) for each in (k, v))
    scores = np.einsum("bthd,bshd->bhts", q, k) / np.sqrt(q.shape[-1])
    scores = np.where(visible[:, None], scores, -np.inf)
    sinks = sinks[None, :, None, None]
    highest = np.maximum(scores.max(axis=-1, keepdims=True), sinks)
    shares = np.exp(scores - highest)
    shares /= shares.sum(axis=-1, keepdims=True) + np.exp(sinks - highest)
    return Expected(*(np.einsum("bhts,bshd->bthd", shares, each) for each in (v, np.abs(v))))


def route(logits: np.ndarray, active: int) -> tuple[np.ndarray, np.ndarray]:
    """Logits [T, E] → the chosen experts int [T, A], best first, and their weights [T, A]."""
    chosen = np.argsort(-logits, axis=-1, kind="stable")[:, :active]
    shares = np.exp(np.take_along_axis(logits, chosen, axis=-1) - logits.max(axis=-1, keepdims=True))
    return chosen, shares / shares.sum(axis=-1, keepdims=True)


def experts(
    x: np.ndarray,
    chosen: np.ndarray,
    shares: np.ndarray,
    gate_up: tuple[np.ndarray, np.ndarray, np.ndarray],
    down: tuple[np.ndarray, np.ndarray, np.ndarray],
    limit: float,
) -> Expected:
    """x [T, D] through each token's experts int [T, A], weighted by shares [T, A] → [T, D].

    gate_up, down: blocks, scales and bias of all experts, as published; 0 is gate and 1 is up.
    """
    values, terms = np.zeros(x.shape), np.zeros(x.shape)
    for expert in range(len(gate_up[0])):
        tokens, choices = np.nonzero(chosen == expert)
        if not len(tokens):
            continue
        first = mxfp4(gate_up[0][expert], gate_up[1][expert])
        gate, up = (x[tokens] @ first[part].T + gate_up[2][expert, part] for part in (0, 1))
        gate, up = np.minimum(gate, limit), np.clip(up, -limit, limit)
        active = gate / (1 + np.exp(np.minimum(-1.702 * gate, 700.0))) * (up + 1)
        second = mxfp4(down[0][expert], down[1][expert])
        share = shares[tokens, choices][:, None]
        values[tokens] += share * (active @ second.T + down[2][expert])
        terms[tokens] += share * (np.abs(active) @ np.abs(second).T)
    return Expected(values, terms)


def times_the_bound(got: np.ndarray, right: Expected, rounded: bool) -> float:
    """The largest error as a multiple of what rounding explains; at most 1 if the result is right.

    rounded: True if operands between two products are rounded to bfloat16, whose significand has 8 bits: each
    is off by at most 2^-8 of itself, so a sum of terms is off by at most 2^-8 of their magnitudes; the result
    is rounded too, by an ulp at most, and may lie on an ulp's border. Beyond that, and in float32 alone, sums
    of n products are off by about the root of n times 2^-25 of their terms; 1e-5 of the largest is above that
    for every size here, by four times and more.
    """
    values, terms = right
    bound = np.full(values.shape, 1e-5 * max(np.abs(values).max(initial=0), np.abs(terms).max(initial=0)))
    if rounded:
        bound += 2.0**-8 * terms + 2 * np.ldexp(1.0, np.frexp(values)[1] - 8)
    errors = np.abs(got.astype(np.float64) - values) / bound
    return float("inf") if not np.isfinite(errors).all() else float(errors.max(initial=0))
