"""Decoding inside the TPU kernel: tiled MXFP4 weights → 8-bit floats → matrix products."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from pallas_kernels.mxfp4.format import BLOCK_SIZE
from pallas_kernels.mxfp4.tiled import LANES, RUN, CodeFormat, padded_inputs

WEIGHT_DTYPE = jnp.float8_e5m2
_SUBLANES = 8
_HALF = RUN // 2
_PRODUCT_ROWS = 256
"""Input rows per product: as many as the largest matrix unit takes at a time."""


_ZEROS: dict[CodeFormat, int] = {"e5m2": 2, "fp4": 0, "fp4-": -128}
"""The byte of a zero before its scale is added."""


class Unit(NamedTuple):
    """Rows of a lane block that are decoded together: half a run, or one block of a tail."""

    first: int
    """The first input row."""
    rows: int
    scale_row: int
    second: bool
    """Two units share their words. True: this is the second of the two; False: the first."""
    blocks: int
    """How many scale blocks the unit interleaves: 4 or 1."""


def units(inputs: int) -> list[Unit]:
    """The units of a lane block, in row order."""
    stored = padded_inputs(inputs)
    halves = stored // RUN * 2
    found = [Unit(_HALF * i, _HALF, i, i % 2 == 1, 4) for i in range(halves)]
    first = halves * _HALF
    tails = (stored - first) // BLOCK_SIZE
    return found + [Unit(first + BLOCK_SIZE * i, BLOCK_SIZE, halves + i, i % 2 == 1, 1) for i in range(tails)]


def narrow_product(
    x: jax.Array | jax.Ref,
    codes: jax.Ref,
    scales: jax.Ref,
    *,
    inputs: int,
    form: CodeFormat,
    interpret: bool,
    keep: jax.Ref | None = None,
) -> jax.Array:
    """x [M, ≥ K'] times n lane blocks of weights with narrow scales → float32 [M, 128·n].

    x is bfloat16 or float32. codes int32 [n, K'/8, 128]; scales int32 [n, R, 128]. The result still lacks the
    columns' multipliers. interpret: True where the kernel runs as plain JAX, which has no loads with stride
    0. keep [K', 128·n] of `WEIGHT_DTYPE`: receives the decoded weights; None: they are not kept.
    """
    lane_blocks = codes.shape[0]
    total = None
    for first, group in _groups(units(inputs)):
        columns = [
            _rows([_narrow(codes, scales, block, unit, form, interpret) for unit in group])
            for block in range(lane_blocks)
        ]
        weights = columns[0] if lane_blocks == 1 else jnp.concatenate(columns, axis=1)
        rows = slice(first, first + weights.shape[0])
        if keep is not None:
            keep[rows, :] = weights
        part = product(x[:, rows], weights)
        total = part if total is None else total + part
    assert total is not None
    return total


def wide_product(
    x: jax.Array | jax.Ref, codes: jax.Ref, scales: jax.Ref, *, inputs: int, form: CodeFormat
) -> jax.Array:
    """As `narrow_product`, for wide scales: each block's partial product is multiplied by its scale.

    The four blocks of a unit share words, so the unit is multiplied four times, each time with all but one
    block masked to zero. The result is final: columns of wide weights have the multiplier 1.
    """
    outputs = []
    for block in range(codes.shape[0]):
        total = jnp.zeros((x.shape[0], LANES), jnp.float32)
        for unit in units(inputs):
            words = pltpu.bitcast(_unscaled(codes, block, unit, form), jnp.int32)
            scale_words = scales[block, unit.scale_row : unit.scale_row + 1, :]
            part_x = x[:, unit.first : unit.first + unit.rows]
            for byte in range(unit.blocks):
                own = words & _int32(0xFF << (8 * byte)) if unit.blocks > 1 else words
                part = product(part_x, pltpu.bitcast(own, WEIGHT_DTYPE))
                scale = _shift_right(scale_words, 8 * byte) & 255
                # 2^(scale - 127) may be outside of float32's normal range; its two factors never are.
                low = _shift_right(scale, 1)
                for exponent in (low + 64, scale - low + 63):
                    part = part * pltpu.bitcast(exponent << 23, jnp.float32)
                total += part
        outputs.append(total)
    return outputs[0] if len(outputs) == 1 else jnp.concatenate(outputs, axis=1)


def product(x: jax.Array, weights: jax.Array) -> jax.Array:
    """x times decoded weights, accumulated in float32. A float32 x is not rounded."""
    if x.dtype == jnp.float32:
        return jnp.dot(
            x,
            weights.astype(jnp.float32),
            preferred_element_type=jnp.float32,
            precision=jax.lax.Precision.HIGHEST,
        )
    return jnp.dot(x, weights, preferred_element_type=jnp.float32)


def _groups(all_units: list[Unit]) -> Iterator[tuple[int, list[Unit]]]:
    """Groups units into products of at most `_PRODUCT_ROWS` rows;
    yields the first row and the units of each.
    """
    group: list[Unit] = []
    for unit in all_units:
        if group and unit.first + unit.rows - group[0].first > _PRODUCT_ROWS:
            yield group[0].first, group
            group = []
        group.append(unit)
    yield group[0].first, group


def _narrow(
    codes: jax.Ref, scales: jax.Ref, block: int, unit: Unit, form: CodeFormat, interpret: bool
) -> jax.Array:
    """Decodes one unit to e5m2 [rows, 128]. One addition scales four weights; then zeros are restored."""
    words = _words(codes, block, unit, form)
    row = _scale_row(scales, block, unit.scale_row, interpret)
    shifts = _rows([row] * (unit.rows // (4 * _SUBLANES)))
    weights = pltpu.bitcast(words + shifts, WEIGHT_DTYPE)
    zero = jnp.int8(_ZEROS[form])
    return jnp.where(pltpu.bitcast(words, jnp.int8) == zero, jnp.zeros_like(weights), weights)


def _unscaled(codes: jax.Ref, block: int, unit: Unit, form: CodeFormat) -> jax.Array:
    """Decodes one unit to e5m2 [rows, 128] without its scales."""
    words = _words(codes, block, unit, form)
    if form != "e5m2":
        return pltpu.bitcast(words, WEIGHT_DTYPE)
    weights = pltpu.bitcast(words + _int32(0x38383838), WEIGHT_DTYPE)  # 14 in every exponent
    return jnp.where(pltpu.bitcast(words, jnp.int8) == jnp.int8(2), jnp.zeros_like(weights), weights)


def _words(codes: jax.Ref, block: int, unit: Unit, form: CodeFormat) -> jax.Array:
    """One unit as int32 [rows/4, 128], a byte per weight: e5m2 without scale, with zeros as in `_ZEROS`."""
    if form != "e5m2" and unit.blocks > 1:
        return _from_fp4(codes[block, unit.first // 8 : (unit.first + unit.rows) // 8, :])
    # Two units share their words: the two halves of a run, or the two blocks of a tail.
    pair = unit.first - (unit.rows if unit.second else 0)
    words = codes[block, pair // 8 : pair // 8 + unit.rows // 4, :]
    if form != "e5m2":
        both, half = _from_fp4(words), unit.rows // 4
        return both[half:] if unit.second else both[:half]
    if not unit.second:
        return words & _int32(0x8E8E8E8E)
    return (_shift_right(words, 3) & _int32(0x0E0E0E0E)) | ((words << 7) & _int32(0x80808080))


def _from_fp4(words: jax.Array) -> jax.Array:
    """int32 [n, 128] of eight float4_e2m1fn each → int32 [2n, 128] of four e5m2 each."""
    return pltpu.bitcast(pltpu.bitcast(words, jnp.float4_e2m1fn).astype(WEIGHT_DTYPE), jnp.int32)


def _scale_row(scales: jax.Ref, block: int, row: int, interpret: bool) -> jax.Array:
    """Repeats one row on all sublanes, [8, 128]. A load with stride 0 costs the vector unit nothing."""
    if interpret:
        return jnp.broadcast_to(scales[block, row : row + 1, :], (_SUBLANES, LANES))
    return scales[block, pl.ds(row, _SUBLANES, stride=0), :]


def _rows(parts: list[jax.Array]) -> jax.Array:
    return parts[0] if len(parts) == 1 else jnp.concatenate(parts, axis=0)


def _shift_right(words: jax.Array, bits: int) -> jax.Array:
    return jax.lax.shift_right_logical(words, jnp.full(words.shape, bits, jnp.int32))


def _int32(bits: int) -> np.int32:
    return np.uint32(bits).view(np.int32)
