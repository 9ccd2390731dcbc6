"""Attention over pages and rings, and storing of entries."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np

from pallas_kernels.attention import decode_pages, decode_ring, prefill_pages, store_entries
from pallas_kernels.attention.layout import entry_layout
from pallas_kernels.attention.tpu_pages import TOKENS_PER_TILE, page_blocks
from pallas_kernels.attention.tpu_ring import ring_sequences
from pallas_kernels.inspect.case import STEP_BATCHES, STEP_CONTEXT, Call, Case, Model
from pallas_kernels.platform import Chip

HEADS, KV_HEADS, HEAD_SIZE, WINDOW = 64, 8, 64, 128
RING = WINDOW + 16
"""Tokens in a ring: the window, and 16 more, so that an engine can take back the tokens of one dispatch."""
PAGE = 128
_UNITS, _ROWS, _LANES = entry_layout(KV_HEADS, HEAD_SIZE)
_LAYERS: dict[Model, int] = {"20b": 12, "120b": 18}
"""The number of full layers; there are as many sliding ones."""
_POOL = 64 * 64
"""Pages in the pool: as many as in an engine, so that the compiler does not move the pool into VMEM."""
_RINGS = 1024
"""Rings in the array, for the same reason; only those of the batch are read."""
_PROMPT = 2048
_ROW_BYTES = KV_HEADS * 2 * HEAD_SIZE * 2
_QUERY_BYTES = HEADS * HEAD_SIZE * 2


def cases(chip: Chip) -> list[Case]:
    """Decoding over pages and rings and storing, for batches of 1, 8 and 64; a prompt of 2,048 tokens."""
    found = [_prompt(chip)]
    for model in _LAYERS:
        for batch in STEP_BATCHES:
            if model == "20b":
                found.append(_pages(chip, model, batch, 1024))
            found += [
                _pages(chip, model, batch, STEP_CONTEXT),
                _ring(chip, model, batch),
                _store(model, batch),
            ]
    return found


def _pages(chip: Chip, model: Model, batch: int, context: int) -> Case:
    blocks = page_blocks((_UNITS, _ROWS, PAGE, _LANES), jnp.bfloat16, context // PAGE, chip)
    steps = batch * -(-context // blocks.keys)
    return Case(
        operation="attention",
        name=f"pages {batch} × {context}",
        model=model,
        kernel="decode_pages",
        build=functools.partial(_pages_call, batch, context, steps, blocks.keys),
        grid_steps=steps,
        floor_bytes=batch * (context * _ROW_BYTES + 2 * _QUERY_BYTES),
        flops=batch * context * HEADS * HEAD_SIZE * 4,
        batch=batch,
        step_calls=_LAYERS[model] if context == STEP_CONTEXT else 0,
    )


def _pages_call(batch: int, context: int, steps: int, keys: int) -> Call:
    columns = context // PAGE
    shapes = [
        ((batch, HEADS, HEAD_SIZE), jnp.bfloat16),
        ((_POOL, _UNITS, _ROWS, PAGE, _LANES), jnp.bfloat16),
        ((batch, columns), jnp.int32),
        ((batch,), jnp.int32),
        ((HEADS,), jnp.bfloat16),
    ]
    item = np.arange(steps, dtype=np.int32)
    each = steps // batch
    numbers = np.random.default_rng(0).permutation(_POOL)[: batch * columns].astype(np.int32)
    scalars: list[np.ndarray | int] = [
        steps,
        item // each,
        item % each,
        np.array([steps], np.int32),
        np.full(batch, context, np.int32),
        numbers.reshape(batch, columns),
    ]
    return Call(decode_pages, [jax.ShapeDtypeStruct(*shape) for shape in shapes], scalars)


def _prompt(chip: Chip) -> Case:
    blocks = page_blocks((_UNITS, _ROWS, PAGE, _LANES), jnp.bfloat16, _PROMPT // PAGE, chip, prefill=True)
    lengths = np.arange(TOKENS_PER_TILE, _PROMPT + 1, TOKENS_PER_TILE, dtype=np.int32)
    counts = -(-lengths // blocks.keys)
    steps = int(counts.sum())

    def build() -> Call:
        shapes = [
            ((1, _PROMPT, HEADS, HEAD_SIZE), jnp.bfloat16),
            ((_POOL, _UNITS, _ROWS, PAGE, _LANES), jnp.bfloat16),
            ((1, _PROMPT // PAGE), jnp.int32),
            ((1, _PROMPT), jnp.int32),
            ((HEADS,), jnp.bfloat16),
        ]
        scalars: list[np.ndarray | int] = [
            steps,
            np.repeat(np.arange(counts.size), counts).astype(np.int32),
            np.concatenate([np.arange(count) for count in counts]).astype(np.int32),
            np.array([steps], np.int32),
            lengths,
            np.arange(_PROMPT // PAGE, dtype=np.int32)[None],
        ]
        return Call(prefill_pages, [jax.ShapeDtypeStruct(*shape) for shape in shapes], scalars)

    return Case(
        operation="attention",
        name=f"prompt {_PROMPT}",
        model="20b",
        kernel="prefill_pages",
        build=build,
        grid_steps=steps,
        floor_bytes=_PROMPT * (_ROW_BYTES + 2 * _QUERY_BYTES),
        flops=_PROMPT * (_PROMPT + 1) // 2 * HEADS * HEAD_SIZE * 4,
    )


def _ring(chip: Chip, model: Model, batch: int) -> Case:
    ring = (batch, _UNITS, _ROWS, RING, _LANES)
    shapes = [
        ((batch, HEADS, HEAD_SIZE), jnp.bfloat16),
        ((_RINGS, *ring[1:]), jnp.bfloat16),
        ((batch, RING), jnp.int32),
        ((batch,), jnp.int32),
        ((HEADS,), jnp.bfloat16),
    ]
    args = [jax.ShapeDtypeStruct(*shape) for shape in shapes]
    position = np.full(batch, STEP_CONTEXT, np.int32)
    return Case(
        operation="attention",
        name=f"ring {batch}",
        model=model,
        kernel="decode_ring",
        build=lambda: Call(
            functools.partial(decode_ring, window=WINDOW), args, [position, position - WINDOW]
        ),
        grid_steps=batch // ring_sequences(ring, jnp.bfloat16, chip),
        floor_bytes=batch * (WINDOW * _ROW_BYTES + 2 * _QUERY_BYTES),
        flops=batch * WINDOW * HEADS * HEAD_SIZE * 4,
        batch=batch,
        step_calls=_LAYERS[model],
    )


def _store(model: Model, batch: int) -> Case:
    shapes = [
        ((_POOL, _UNITS, _ROWS, PAGE, _LANES), jnp.bfloat16),
        ((batch, _UNITS, _ROWS, _LANES), jnp.bfloat16),
        ((batch,), jnp.int32),
        ((batch,), jnp.int32),
    ]
    args = [jax.ShapeDtypeStruct(*shape) for shape in shapes]
    generator = np.random.default_rng(0)
    pages = generator.permutation(_POOL)[:batch].astype(np.int32)
    rows = generator.integers(0, PAGE, batch, dtype=np.int32)
    return Case(
        operation="attention",
        name=f"store {batch}",
        model=model,
        kernel="store_entries",
        build=lambda: Call(store_entries, args, [pages, rows]),
        grid_steps=1,
        floor_bytes=batch * _ROW_BYTES,
        flops=0,
        batch=batch,
        step_calls=2 * _LAYERS[model],
    )
