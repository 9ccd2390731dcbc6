"""The bytes that a decode step must read at least, which give a lower bound of its time."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from checkpoints.config import ModelConfig
from gptoss_jax.model import Transformer


@dataclasses.dataclass(frozen=True)
class StepBytes:
    """Bytes that one decode step reads: dense weights, weights of
    chosen experts, and keys and values (cache).
    """

    dense: float
    experts: float
    cache: float

    @property
    def total(self) -> float:
        """The sum."""
        return self.dense + self.experts + self.cache


def distinct_experts(experts: int, active: int, tokens: int) -> float:
    """The expected number of distinct experts that `tokens` tokens
    choose, `active` each, uniformly at random.
    """
    return experts * (1 - (1 - active / experts) ** tokens)


def step_bytes(
    model: Transformer, sequences: int, context: float, kv_dtype: DTypeLike | None = None
) -> StepBytes:
    """The bytes that a step of `sequences` sequences of `context` tokens reads. Weights count as stored."""
    config = model.config
    dense = experts = 0.0
    for path, leaf in nnx.to_flat_state(nnx.state(model)):
        name, size = ".".join(map(str, path)), float(leaf.get_value().nbytes)
        if name == "embedding.weight":  # a look-up reads one row per sequence
            dense += sequences * size / leaf.get_value().shape[0]
        elif ".moe.experts." in name:
            experts += size
        else:
            dense += size
    share = distinct_experts(config.num_experts, config.experts_per_token, sequences) / config.num_experts
    cache = sequences * cache_bytes(config, context, kv_dtype or model.dtype)
    return StepBytes(dense, share * experts, cache)


def cache_bytes(config: ModelConfig, context: float, dtype: DTypeLike) -> float:
    """Bytes of keys and values that a step reads for one sequence.

    On sliding layers only those in the window.
    """
    entry = 2 * config.num_kv_heads * config.head_size * jnp.dtype(dtype).itemsize
    windows = [config.window(index) for index in range(config.num_layers)]
    return sum(entry * (context if window is None else min(window, context)) for window in windows)
