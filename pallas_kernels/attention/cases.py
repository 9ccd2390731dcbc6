"""What the inspector counts: decode attention at the published models' shapes."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.pallas import tpu as pltpu

from pallas_kernels.attention import decode_pages, decode_ring
from pallas_kernels.attention.layout import entry_layout
from pallas_kernels.attention.tpu_pages import page_blocks
from pallas_kernels.attention.tpu_ring import ring_sequences
from pallas_kernels.inspect.case import STEP_BATCHES, STEP_CONTEXT, Call, Case, Model
from pallas_kernels.platform import Chip

HEADS, KV_HEADS, HEAD_SIZE, WINDOW = 64, 8, 64, 128
PAGE = 128
_UNITS, _ROWS, _LANES = entry_layout(KV_HEADS, HEAD_SIZE)
_LAYERS: dict[Model, int] = {"20b": 12, "120b": 18}
"""Layers of each kind."""
_POOL = 64 * 64
"""Pages in the pool: as large as an engine's, so that the compiler does not move it into VMEM."""
_ROW_BYTES = KV_HEADS * 2 * HEAD_SIZE * 2
_QUERY_BYTES = HEADS * HEAD_SIZE * 2


def cases(chip: Chip) -> list[Case]:
    """Batches of 1, 8 and 64, contexts of 1,024 and 8,192, and the ring of the window."""
    found = []
    for model in _LAYERS:
        for batch in STEP_BATCHES:
            if model == "20b":
                found.append(_pages(chip, model, batch, 1024))
            found += [_pages(chip, model, batch, STEP_CONTEXT), _ring(chip, model, batch)]
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


def _ring_in_hbm(q: jax.Array, ring: jax.Array, *rest: jax.Array) -> jax.Array:
    """As in an engine, where the rings of all layers are too much for the compiler to move them into VMEM."""
    ring = pltpu.with_memory_space_constraint(ring, pltpu.HBM)
    return decode_ring(q, ring, *rest, window=WINDOW)


def _ring(chip: Chip, model: Model, batch: int) -> Case:
    ring = (batch, _UNITS, _ROWS, WINDOW, _LANES)
    shapes = [
        ((batch, HEADS, HEAD_SIZE), jnp.bfloat16),
        (ring, jnp.bfloat16),
        ((batch, WINDOW), jnp.int32),
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
        build=lambda: Call(_ring_in_hbm, args, [position, position - WINDOW]),
        grid_steps=batch // ring_sequences(ring, jnp.bfloat16, chip),
        floor_bytes=batch * (WINDOW * _ROW_BYTES + 2 * _QUERY_BYTES),
        flops=batch * WINDOW * HEADS * HEAD_SIZE * 4,
        batch=batch,
        step_calls=_LAYERS[model],
    )
