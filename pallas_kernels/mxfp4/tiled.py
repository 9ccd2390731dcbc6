"""The layout of MXFP4 weights for the TPU kernels: tiled for the vector registers, and exact.

The matrix units of TPUs multiply bfloat16 activations by 8-bit floats in the format e5m2 (sign, five exponent
bits, two mantissa bits). Adding the scale to the exponent bits turns an MXFP4 code into such a float; one
32-bit addition does that for four weights. The layout keeps the number of instructions for it minimal:

* Columns (outputs) come in lane blocks of 128, each [rows, 128] and contiguous in memory.
* Rows (inputs) are in *kernel order* (`kernel_order`). A run of 256 rows has two halves of four blocks of 32.
Row
  4r + b of a half is input 32b + r, so the four bytes of a word belong to four blocks, and one word of four
      scales
  can be added to it. The inputs after the last run come in tails of 64, in their own order.
* Codes are int32 words [rows/8, 128], in one of three forms.
* Form `e5m2` (v5e, v5p, v6e): byte b of word r holds two weights of row 4r + b. One belongs to the first half
(or
  block), with its sign in bit 7 and its magnitude in bits 3..1; the other belongs to the second, with its
      sign in
  bit 0 and its magnitude in bits 6..4. Magnitudes are renumbered to be exponent and mantissa bits of e5m2:
      0.5→0,
  0→1, 1→2, 1.5→3, 2→4, 3→5, 4→6, 6→7. The number 1 would be 0.75, which MXFP4 does not have, so it stands for
      zero
  and is replaced after the addition.
* Forms `fp4` and `fp4-` (7x, whose vector unit has float4_e2m1fn): bits 4i to 4i + 3 of word r are row 8r +
i. Zeros
  are stored as +0 in `fp4` and as −0 in `fp4-`, and are restored after the addition.

Scales are int32 words [rows, 128]. Each half of a run has one row, whose byte b is the scale of block b. Each
tail has two rows, one per block, with the block's scale in all four bytes. A scale s has one of two
encodings:

* *narrow*: with one number `base` per column and q = s − base in 1…27, the byte is 4·q in form `e5m2` and
  4·(q − 14) in the others (negative bytes borrow from the next one). The kernel multiplies the column's dot
      product
  by 2^(base − 113). This works if the scales of a column, without blocks of zeros, span at most 26 powers of
      two; in
  form `fp4` at most 13, because a byte of +0 has nothing to borrow from.
* *wide*: s itself, for any span. Decoding is slower, since each block is multiplied on its own.

Values are kept exactly. The sign of zeros and the scales of blocks that hold only zeros are lost.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np

from pallas_kernels.mxfp4.format import BLOCK_SIZE

CodeFormat = Literal["e5m2", "fp4", "fp4-"]
"""How codes are stored; see *form* in the module's docstring."""

LANES = 128
RUN = 256
TAIL = 64
WIDEST_SPANS: dict[CodeFormat, int] = {"e5m2": 26, "fp4": 13, "fp4-": 26}
"""The largest difference between two scales of a column that narrow scales can represent."""

NARROW_BIAS = 113
"""A narrow column's multiplier is 2^(base - 113), since e5m2 has an
exponent bias of 15 and the code 0.5 is 2^0 in it.
"""

_LARGEST_FIELD = 27
_UNSCALED_FIELD = 14
"""The exponent field with which e5m2 holds a code's value before scaling."""

_SMALLEST_NARROW_SCALE = 14
"""The largest scale of a narrow column must be at least this; else its multiplier would be subnormal."""

# Code (four bits) → renumbered magnitude, and sign; zeros lose their sign.
_MAGNITUDES = np.array([1, 0, 2, 3, 4, 5, 6, 7] * 2, np.uint8)
_SIGNS = np.array([0] * 9 + [1] * 7, np.uint8)
_CODES = np.array([1, 0, 2, 3, 4, 5, 6, 7], np.uint8)
"""Renumbered magnitude → code. The renumbering only swaps 0 and 1."""


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=("codes", "scales", "columns"),
    meta_fields=("inputs", "form", "wide"),
)
@dataclasses.dataclass(frozen=True)
class TiledWeights:
    """A projection of K inputs to N outputs, tiled: C = ⌈N/128⌉ lane blocks, and K' is K rounded up to 64.

    codes int32 [..., C, K'/8, 128]. scales int32 [..., C, R, 128], with R = `scale_rows(K)`. columns float32
    [..., C, 2, 128]: for each column the multiplier of its dot product (1 if scales are wide), and the bias,
    which is added afterwards. inputs: K. form: how codes are encoded. wide: True for wide scales, False for
    narrow ones.
    """

    codes: jax.Array
    scales: jax.Array
    columns: jax.Array
    inputs: int
    form: CodeFormat
    wide: bool


def padded_inputs(inputs: int) -> int:
    """K': the number of stored input rows, K rounded up to 64."""
    return -(-inputs // TAIL) * TAIL


def scale_rows(inputs: int) -> int:
    """R: rows of scale words for K inputs, padded to a multiple of 8."""
    runs, rest = divmod(padded_inputs(inputs), RUN)
    return -(-(2 * runs + 2 * (rest // TAIL)) // 8) * 8


@functools.cache
def kernel_order(inputs: int) -> np.ndarray:
    """int32 [K']: the input that each stored row holds; values from K on mark padding."""
    stored = padded_inputs(inputs)
    in_runs = stored // RUN * RUN
    halves = np.arange(in_runs, dtype=np.int32).reshape(-1, 4, BLOCK_SIZE).swapaxes(1, 2).reshape(-1)
    return np.concatenate([halves, np.arange(in_runs, stored, dtype=np.int32)])


def to_kernel_order(x: jax.Array) -> jax.Array:
    """Reorders activations [..., K] like the stored rows → [..., K'], with zeros for padding."""
    *batch, inputs = x.shape
    x = jnp.pad(x, [(0, 0)] * len(batch) + [(0, padded_inputs(inputs) - inputs)])
    in_runs = x.shape[-1] // RUN * RUN
    halves = x[..., :in_runs].reshape(*batch, -1, 4, BLOCK_SIZE).swapaxes(-1, -2)
    return jnp.concatenate([halves.reshape(*batch, in_runs), x[..., in_runs:]], axis=-1)


def fits_narrow(blocks: jax.Array, scales: jax.Array, form: CodeFormat = "e5m2") -> jax.Array:
    """Returns bool []: True if narrow scales can represent those of these
    published arrays [..., N, K/2 and K/32].
    """
    lowest, highest = _span(blocks, scales)
    possible = (
        (highest - lowest <= WIDEST_SPANS[form]) & (highest >= _SMALLEST_NARROW_SCALE) & (highest < 255)
    )
    return jnp.all(possible | (lowest > highest))


@functools.partial(jax.jit, static_argnames=("form", "wide"))
def tile(
    blocks: jax.Array, scales: jax.Array, bias: jax.Array, *, form: CodeFormat, wide: bool = False
) -> TiledWeights:
    """Tiles published weights: blocks uint8 [..., N, K/2], scales uint8 [..., N, K/32], bias [..., N].

    wide: True for wide scales. False for narrow ones, which need `fits_narrow(blocks, scales, form)`;
    otherwise the result is wrong. Raises ValueError if K is not a multiple of 32 or the shapes do not fit
    each other.
    """
    *batch, outputs, half = blocks.shape
    inputs = 2 * half
    if scales.shape != (*batch, outputs, inputs // BLOCK_SIZE) or inputs % BLOCK_SIZE:
        raise ValueError(f"scales {list(scales.shape)} do not belong to blocks {list(blocks.shape)}")
    lane_blocks, stored = -(-outputs // LANES), padded_inputs(inputs)
    to_lanes, to_stored = lane_blocks * LANES - outputs, stored - inputs
    batch_axes = [(0, 0)] * len(batch)

    lowest, highest = _span(blocks, scales)
    empty = lowest > highest
    base = jnp.where(empty, NARROW_BIAS, highest - _LARGEST_FIELD)  # [..., N]
    if wide:
        fields = scales.astype(jnp.int32)
        multipliers = jnp.ones((*batch, outputs), jnp.float32)
    else:
        lowest_field = _LARGEST_FIELD - WIDEST_SPANS[form]
        fields = jnp.clip(scales.astype(jnp.int32) - base[..., None], lowest_field, _LARGEST_FIELD)
        fields = (fields - _unscaled_field(form)) << 2
        multipliers = _power_of_two(base - NARROW_BIAS)
    fields = jnp.pad(fields, [*batch_axes, (0, to_lanes), (0, to_stored // BLOCK_SIZE)])
    columns = jnp.stack([multipliers, bias.astype(jnp.float32)], axis=-2)  # [..., 2, N]
    columns = jnp.pad(columns, [*batch_axes, (0, 0), (0, to_lanes)])
    columns = columns.reshape(*batch, 2, lane_blocks, LANES).swapaxes(-2, -3)

    codes = jnp.stack([blocks & 15, blocks >> 4], axis=-1).reshape(*batch, outputs, inputs)
    codes = jnp.pad(codes, [*batch_axes, (0, to_lanes), (0, to_stored)])
    codes = to_kernel_order(codes)
    words = _code_words(codes) if form == "e5m2" else _nibble_words(codes, zero=8 if form == "fp4-" else 0)
    return TiledWeights(
        codes=_to_lane_blocks(words),
        scales=_to_lane_blocks(_scale_words(fields, inputs)),
        columns=columns,
        inputs=inputs,
        form=form,
        wide=wide,
    )


def untile(weights: TiledWeights, outputs: int) -> tuple[jax.Array, jax.Array]:
    """The inverse of `tile` for N `outputs`: blocks uint8 [..., N, K/2] and scales uint8 [..., N, K/32]."""
    inputs = weights.inputs
    words = _from_lane_blocks(weights.codes)
    codes = _codes_of_words(words) if weights.form == "e5m2" else _codes_of_nibbles(words)
    order = kernel_order(inputs)
    codes = jnp.zeros_like(codes).at[..., order].set(codes)[..., :outputs, :inputs]
    blocks = codes[..., 0::2] | codes[..., 1::2] << 4

    scale_words = _from_lane_blocks(weights.scales)
    fields = _fields_of_words(scale_words, inputs, signed=not weights.wide)[
        ..., :outputs, : inputs // BLOCK_SIZE
    ]
    if weights.wide:
        scales = fields
    else:
        multipliers = weights.columns[..., 0, :].reshape(*weights.columns.shape[:-3], -1)[..., :outputs]
        base = (jax.lax.bitcast_convert_type(multipliers, jnp.int32) >> 23) - 127 + NARROW_BIAS
        scales = (fields >> 2) + _unscaled_field(weights.form) + base[..., None]
    return blocks, scales.astype(jnp.uint8)


def _span(blocks: jax.Array, scales: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The lowest and highest scale of each column, int32 [..., N] each;
    lowest > highest if all its codes are zero.
    """
    grouped = blocks.reshape(*scales.shape, BLOCK_SIZE // 2)
    used = (grouped & 0x77 != 0).any(axis=-1)
    scales = scales.astype(jnp.int32)
    return jnp.where(used, scales, 256).min(axis=-1), jnp.where(used, scales, -1).max(axis=-1)


def _power_of_two(exponents: jax.Array) -> jax.Array:
    """2^exponents as float32, for exponents of normal numbers."""
    return jax.lax.bitcast_convert_type((exponents + 127) << 23, jnp.float32)


def _to_lane_blocks(x: jax.Array) -> jax.Array:
    """[..., 128·C, rows] → [..., C, rows, 128]."""
    return x.reshape(*x.shape[:-2], -1, LANES, x.shape[-1]).swapaxes(-1, -2)


def _from_lane_blocks(x: jax.Array) -> jax.Array:
    """Inverse of `_to_lane_blocks`."""
    return x.swapaxes(-1, -2).reshape(*x.shape[:-3], -1, x.shape[-2])


def _code_words(codes: jax.Array) -> jax.Array:
    """uint8 codes [..., K'] in kernel order → int32 words [..., K'/8]."""
    magnitudes = jnp.asarray(_MAGNITUDES)[codes]
    signs = jnp.asarray(_SIGNS)[codes]

    def words(part: slice, size: int) -> jax.Array:  # [..., units, 2, size/8, 4 bytes]
        shape = (*codes.shape[:-1], -1, 2, size // 8, 4)
        magnitude, sign = magnitudes[..., part].reshape(shape), signs[..., part].reshape(shape)
        first = sign[..., 0, :, :] << 7 | magnitude[..., 0, :, :] << 1
        second = sign[..., 1, :, :] | magnitude[..., 1, :, :] << 4
        packed = jax.lax.bitcast_convert_type(first | second, jnp.int32)
        return packed.reshape(*codes.shape[:-1], -1)

    in_runs = codes.shape[-1] // RUN * RUN
    return jnp.concatenate([words(slice(0, in_runs), RUN), words(slice(in_runs, None), TAIL)], axis=-1)


def _codes_of_words(words: jax.Array) -> jax.Array:
    """Inverse of `_code_words`."""
    in_runs = words.shape[-1] * 8 // RUN * RUN

    def codes(part: jax.Array, size: int) -> jax.Array:
        packed = jax.lax.bitcast_convert_type(part, jnp.uint8)  # [..., words, 4]
        packed = packed.reshape(*words.shape[:-1], -1, 1, size // 8, 4)
        magnitude = jnp.concatenate([packed >> 1 & 7, packed >> 4 & 7], axis=-3)
        sign = jnp.concatenate([packed >> 7, packed & 1], axis=-3)
        return (jnp.asarray(_CODES)[magnitude] | sign << 3).reshape(*words.shape[:-1], -1)

    return jnp.concatenate(
        [codes(words[..., : in_runs // 8], RUN), codes(words[..., in_runs // 8 :], TAIL)], axis=-1
    )


def _scale_words(fields: jax.Array, inputs: int) -> jax.Array:
    """int32 fields [..., K'/32], one per block → words [..., R]."""
    in_runs = padded_inputs(inputs) // RUN * (RUN // BLOCK_SIZE)
    halves = fields[..., :in_runs].reshape(*fields.shape[:-1], -1, 4)
    tails = jnp.broadcast_to(fields[..., in_runs:, None], (*fields.shape[:-1], fields.shape[-1] - in_runs, 4))
    bytes_of_words = jnp.concatenate([halves, tails], axis=-2)
    # A sum, not an or: negative fields borrow from the next byte, and the kernel's addition returns the
    # borrow.
    words = (bytes_of_words * jnp.array([1, 1 << 8, 1 << 16, 1 << 24], jnp.int32)).sum(
        axis=-1, dtype=jnp.int32
    )
    missing = scale_rows(inputs) - words.shape[-1]
    return jnp.pad(words, [(0, 0)] * (words.ndim - 1) + [(0, missing)])


def _fields_of_words(words: jax.Array, inputs: int, *, signed: bool) -> jax.Array:
    """Inverse of `_scale_words`: int32 [..., K'/32]. signed: True reads
    bytes as −128 … 127, False as 0 … 255.
    """
    runs, rest = divmod(padded_inputs(inputs), RUN)
    fields = []
    for _ in range(4):
        field = words << 24 >> 24 if signed else words & 255
        words = (words - field) >> 8
        fields.append(field)
    in_runs = jnp.stack([field[..., : 2 * runs] for field in fields], axis=-1)
    tails = fields[0][..., 2 * runs : 2 * runs + 2 * (rest // TAIL)]
    return jnp.concatenate([in_runs.reshape(*words.shape[:-1], -1), tails], axis=-1)


def _unscaled_field(form: CodeFormat) -> int:
    """The field of a scale that adds zero to the codes in registers."""
    return 0 if form == "e5m2" else _UNSCALED_FIELD


def _nibble_words(codes: jax.Array, zero: int) -> jax.Array:
    """uint8 codes [..., K'] → int32 words [..., K'/8]; zeros of either sign become the code `zero`."""
    codes = jnp.where(codes & 7 == 0, zero, codes).astype(jnp.uint8)
    codes = codes.reshape(*codes.shape[:-1], -1, 4, 2)
    return jax.lax.bitcast_convert_type(codes[..., 0] | codes[..., 1] << 4, jnp.int32)


def _codes_of_nibbles(words: jax.Array) -> jax.Array:
    """Inverse of `_nibble_words`."""
    pairs = jax.lax.bitcast_convert_type(words, jnp.uint8)
    codes = jnp.stack([pairs & 15, pairs >> 4], axis=-1).reshape(*words.shape[:-1], -1)
    return jnp.where(codes == 8, 0, codes)
