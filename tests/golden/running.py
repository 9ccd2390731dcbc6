"""Runs the plain model, or the served one in chunks over a cache."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from gptoss_jax.model import GptOss, Transformer
from gptoss_jax.model.kv_cache import EMPTY, KVCache, new_cache
from gptoss_jax.sizes import CacheShape

QUICKLY = {"xla_backend_optimization_level": 0}
"""Compiled quickly, not well: a step here takes seconds to compile and milliseconds to run."""

PAGE = 16


@functools.partial(jax.jit, static_argnums=0, compiler_options=QUICKLY)
def _full(graph: nnx.GraphDef, state: nnx.State, tokens: jax.Array, positions: jax.Array) -> jax.Array:
    return nnx.merge(graph, state)(tokens, positions)


@functools.partial(jax.jit, static_argnums=0, compiler_options=QUICKLY)
def _prefill(
    graph: nnx.GraphDef, state: nnx.State, cache: KVCache, *chunk: jax.Array
) -> tuple[jax.Array, KVCache]:
    model = nnx.merge(graph, state)
    tokens, positions, table, first_chunk = chunk
    rings = jnp.arange(table.shape[0], dtype=jnp.int32)
    hidden, cache = model.prefill(tokens, positions, cache, table, rings, first_chunk)
    return model.logits(hidden), cache


@functools.partial(jax.jit, static_argnums=0, compiler_options=QUICKLY)
def _decode(
    graph: nnx.GraphDef,
    state: nnx.State,
    cache: KVCache,
    tokens: jax.Array,
    positions: jax.Array,
    table: jax.Array,
) -> tuple[jax.Array, KVCache]:
    model = nnx.merge(graph, state)
    hidden, cache = model.decode(tokens, positions, cache, table)
    return model.logits(hidden), cache


def full_pass(model: GptOss, tokens: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """Logits [B, T, V] of tokens at positions, int32 [B, T], by the plain model."""
    return np.asarray(_full(*nnx.split(model), tokens, positions))


def cached_pass(
    model: Transformer, tokens: np.ndarray, positions: np.ndarray, chunk: int, singles: int = 0
) -> np.ndarray:
    """The same by the served model: `chunk` tokens at a time over a cache, the last `singles` one by one.

    Rows of the last chunk that are left over are padding, so every chunk runs the same compiled step. Pages
    are dealt out in turns, so that no sequence's pages lie side by side.
    """
    batch, length = tokens.shape
    columns = -(-(int(positions.max()) + 1) // PAGE)
    table = np.arange(batch * columns, dtype=np.int32).reshape(columns, batch).T.copy()
    ring = -(-model.config.sliding_window // PAGE) * PAGE + PAGE
    shape = CacheShape(batch * columns, PAGE, batch, ring)
    graph, state = nnx.split(model)
    cache = new_cache(model.config, shape, model.dtype)
    parts = []
    whole = length - singles
    for start in range(0, whole, chunk):
        size = min(chunk, whole - start)
        part, padding = slice(start, start + size), ((0, 0), (0, chunk - size))
        padded = np.pad(tokens[:, part], padding)
        where = np.pad(positions[:, part], padding, constant_values=EMPTY)
        first_chunk = np.full(batch, start == 0)
        logits, cache = _prefill(graph, state, cache, padded, where, table, first_chunk)
        parts.append(np.asarray(logits)[:, :size])
    for place in range(whole, length):
        logits, cache = _decode(graph, state, cache, tokens[:, place], positions[:, place], table)
        parts.append(np.asarray(logits)[:, None])
    return np.concatenate(parts, axis=1)
