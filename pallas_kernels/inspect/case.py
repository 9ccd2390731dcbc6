"""A case of the inspector: a kernel at a real shape. `cases/` has the cases of each operation."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np

Model = Literal["20b", "120b"]

STEP_BATCHES = (1, 8, 64)
"""Sequences in the decode steps that the inspector sums."""
STEP_CONTEXT = 8192
"""Keys of each sequence in such a step."""


@dataclasses.dataclass(frozen=True)
class Call:
    """One call of a kernel: `fn(*args)` is compiled, and `scalars` determine what it executes.

    args: the arguments of `fn`, pytrees with `jax.ShapeDtypeStruct`s as leaves.
    scalars: the values of the compiled call's first operands, in order: grid sizes that are not constants,
    then
        prefetched arrays. Other code computes them on the device; `args` has only their shapes.
    """

    fn: Callable[..., object]
    args: Sequence[object]
    scalars: Sequence[np.ndarray | int]


@dataclasses.dataclass(frozen=True)
class Case:
    """One kernel at one real shape.

    operation, name: the case's name in tables and for `--kernel`, for example "expert_matmul" and "decode
    step". model: the model whose shape it has. kernel: the `name=` of the `pallas_call`. build: makes the
    call; it runs only for selected cases. grid_steps: steps of the call's grid, by which the counts are
    divided. floor_bytes: the bytes that must move at least: packed weights of chosen experts, keys and values
    of the context. flops: useful floating point operations of the call, 2 per multiply-add, without padding.
    weights: weights that the call reads; 0 for kernels without weights. batch, step_calls: a decode step of
    `model` with `batch` sequences of `STEP_CONTEXT` keys calls the kernel
        `step_calls` times; 0 if the case belongs to no decode step.
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
    """A typical route, int32 [T, A]: random, with as many active experts as uniform routing has on average.

    The expected number is E · (1 − (1 − A/E)^T), rounded; the same arguments give the same routing.
    """
    expected = round(num_experts * (1 - (1 - experts_per_token / num_experts) ** tokens))
    for seed in itertools.count():
        scores = np.random.default_rng(seed).random((tokens, num_experts))
        chosen = np.argsort(scores, axis=1)[:, :experts_per_token].astype(np.int32)
        if len(np.unique(chosen)) == expected:
            return chosen
    raise AssertionError("unreachable")
