"""What an operation tells the inspector about itself: `<operation>/cases.py` has `cases(chip) -> list[Case]`.

This module imports nothing of the inspector and not libtpu, so that `cases.py` files are cheap to import.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np

Model = Literal["20b", "120b"]

STEP_BATCHES = (1, 8, 64)
"""Sequences in the decode steps that the inspector adds up."""
STEP_CONTEXT = 8192
"""Keys that every sequence of such a step has behind it."""


@dataclasses.dataclass(frozen=True)
class Call:
    """One call of a kernel: `fn(*args)` is compiled, `scalars` decide what it executes.

    args: `jax.ShapeDtypeStruct`s, in whatever pytrees `fn` takes.
    scalars: the values of the compiled call's first operands, in order: grid sizes that are not constants,
    then prefetched arrays. They stand for what other code computes on the device; `args` gives only their
    shapes.
    """

    fn: Callable[..., Any]
    args: Sequence[Any]
    scalars: Sequence[np.ndarray | int]


@dataclasses.dataclass(frozen=True)
class Case:
    """One kernel at one real shape.

    operation, name: what `--kernel` finds it by and how it is listed, e.g. "expert_matmul", "decode 16 a
    group". kernel: the `name=` of its `pallas_call`. build: makes the call; runs only for the cases that
    are asked for. grid_steps: steps of the grid in that call, whose overhead and body the count is divided
    by. floor_bytes: bytes that must move at least (packed weights of chosen experts, keys and values of the
    context). flops: useful floating point operations of the call (2 a multiply-add; padding does not
    count). weights: weights that the call reads (0 where that is no question). step_calls: how often a
    decode step of `model` with `batch` sequences and `STEP_CONTEXT` keys calls it; 0 for a case that only
    shows the kernel.
    """

    operation: str
    name: str
    model: Model
    kernel: str
    build: Callable[[], Call]
    grid_steps: int
    floor_bytes: int
    flops: int
    weights: int = 0
    batch: int = 0
    step_calls: int = 0


def uniform_routing(tokens: int, num_experts: int, experts_per_token: int) -> np.ndarray:
    """A typical routing, int32 [T, A]: random, with as many experts active as uniform routing expects.

    The expected number is E · (1 − (1 − A/E)^T), rounded; the same arguments give the same routing.
    """
    expected = round(num_experts * (1 - (1 - experts_per_token / num_experts) ** tokens))
    for seed in itertools.count():
        scores = np.random.default_rng(seed).random((tokens, num_experts))
        chosen = np.argsort(scores, axis=1)[:, :experts_per_token].astype(np.int32)
        if len(np.unique(chosen)) == expected:
            return chosen
    raise AssertionError("unreachable")
