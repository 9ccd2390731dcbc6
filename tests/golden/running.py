"""Runs our model the ways it can be run: all at once, or in chunks with a cache."""

from __future__ import annotations

import functools

import jax
import numpy as np
from flax import nnx

from gptoss_jax.cache import EMPTY, Cache, new_cache
from gptoss_jax.model import Transformer


# Compiled quickly, not well: a step here takes seconds to compile and milliseconds to run.
@functools.partial(jax.jit, static_argnums=0, compiler_options={"xla_backend_optimization_level": 0})
def _step(
    graph: nnx.GraphDef, state: nnx.State, tokens: jax.Array, positions: jax.Array, cache: Cache | None
) -> tuple[jax.Array, Cache | None]:
    model = nnx.merge(graph, state)
    hidden, cache = model(tokens, positions, cache)
    return model.logits(hidden), cache


def full_pass(model: Transformer, tokens: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """Logits [B, T, V] of tokens at positions, int32 [B, T], that see each other without a cache."""
    logits, _ = _step(*nnx.split(model), tokens, positions, None)
    return np.asarray(logits)


def cached_pass(
    model: Transformer, tokens: np.ndarray, positions: np.ndarray, chunk: int, singles: int = 0
) -> np.ndarray:
    """The same, `chunk` tokens at a time through a cache, the last `singles` of them one by one.

    Rows of the last chunk that are left over are padding, so every chunk runs the same compiled step.
    """
    batch, length = tokens.shape
    graph, state = nnx.split(model)
    cache = new_cache(model.config, batch, length, model.dtype)
    parts = []
    start = 0
    while start < length:
        size = min(chunk, length - singles - start) if start < length - singles else 1
        width = chunk if start < length - singles else 1
        padding = ((0, 0), (0, width - size))
        part = slice(start, start + size)
        logits, cache = _step(
            graph,
            state,
            np.pad(tokens[:, part], padding),
            np.pad(positions[:, part], padding, constant_values=EMPTY),
            cache,
        )
        parts.append(np.asarray(logits)[:, :size])
        start += size
    return np.concatenate(parts, axis=1)
