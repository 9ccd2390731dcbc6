"""The arrangement of weights that the TPU kernels read: reversible, exact, and as its description says."""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pallas_kernels.expert_matmul import code_format_for, tile_experts, untile_experts
from pallas_kernels.mxfp4 import tiled
from pallas_kernels.mxfp4.tiled import CodeFormat, TiledWeights
from pallas_kernels.platform import CHIPS
from tests.pallas_kernels.expert_samples import (
    LEAN,
    blocks_of,
    codes_of,
    random_linear,
    random_maps,
    weights_of,
)
from tests.pallas_kernels.marks import slow

FORMS: tuple[CodeFormat, ...] = ("e5m2", "fp4", "fp4-")
NARROW_SPANS = {"e5m2": 26, "fp4": 13, "fp4-": 26}

SIZES = [
    # outputs, inputs
    slow(1, 32),
    slow(128, 64),
    slow(129, 96),
    slow(300, 256),
    (127, 288),
    slow(5, 544),
    slow(130, 2880),
]


@functools.cache
def there_and_back(outputs: int, form: CodeFormat, wide: bool) -> Callable:
    @functools.partial(jax.jit, compiler_options=LEAN)
    def run(blocks: jax.Array, scales: jax.Array, bias: jax.Array) -> tuple:
        tiles = tiled.tile(blocks, scales, bias, form=form, wide=wide)
        return tiles, *tiled.untile(tiles, outputs)

    return run


def sample(
    outputs: tuple[int, ...],
    inputs: int,
    *,
    highest: int = 140,
    span: int = 26,
    zeros: float = 0.2,
    seed: int = 0,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Random codes and scales, `highest` − `span` … `highest`; a share of the blocks holds only ±0, under any
    scale."""
    generator = np.random.default_rng(seed)
    blocks, scales, bias = random_linear(generator, outputs, inputs, (max(0, highest - span), highest + 1))
    empty = generator.random(scales.shape) < zeros
    either_zero = generator.choice(np.array([0x00, 0x08, 0x80, 0x88], np.uint8), blocks.shape)
    blocks = np.where(np.repeat(empty, 16, axis=-1), either_zero, blocks)
    scales = np.where(empty, generator.integers(0, 256, scales.shape), scales).astype(np.uint8)
    return blocks, scales, bias


def assert_reversible(
    blocks: np.ndarray, scales: np.ndarray, bias: np.ndarray, form: CodeFormat, wide: bool
) -> None:
    outputs = blocks.shape[-2]
    tiles, back_blocks, back_scales = there_and_back(outputs, form, wide)(blocks, scales, bias)
    assert tiles.form == form
    assert tiles.wide == wide
    codes = codes_of(blocks)
    np.testing.assert_array_equal(codes_of(back_blocks), np.where(codes == 8, 0, codes))
    empty = (codes.reshape(*scales.shape, 32) % 8 == 0).all(axis=-1)
    np.testing.assert_array_equal(np.asarray(back_scales)[~empty], scales[~empty])
    lanes = np.asarray(tiles.columns)[..., 1, :].reshape(*bias.shape[:-1], -1)
    np.testing.assert_array_equal(lanes[..., :outputs], bias.astype(np.float32))
    assert not lanes[..., outputs:].any()


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("outputs", "inputs"), SIZES)
def test_all_comes_back_but_the_sign_of_zeros_and_the_scales_of_empty_blocks(
    outputs: int, inputs: int, form: CodeFormat, wide: bool
) -> None:
    assert_reversible(*sample((2, outputs), inputs, span=NARROW_SPANS[form]), form, wide)


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("form", FORMS)
@settings(max_examples=25, deadline=None)
@given(
    highest=st.integers(14, 254),
    span=st.integers(0, 26),
    zeros=st.sampled_from([0.0, 0.5, 1.0]),
    seed=st.integers(0, 1000),
)
def test_any_scales_and_any_zeros_come_back(
    form: CodeFormat, wide: bool, highest: int, span: int, zeros: float, seed: int
) -> None:
    highest, span = (255, 255) if wide else (highest, min(span, NARROW_SPANS[form]))
    assert_reversible(*sample((2, 127), 288, highest=highest, span=span, zeros=zeros, seed=seed), form, wide)


def own_fits_narrow(blocks: np.ndarray, scales: np.ndarray) -> bool:
    used = (codes_of(blocks).reshape(*scales.shape, 32) % 8 != 0).any(axis=-1)
    columns, of_column = used.reshape(-1, used.shape[-1]), scales.reshape(-1, scales.shape[-1]).astype(int)
    for flags, values in zip(columns, of_column, strict=True):
        found = values[flags]
        if found.size and not (found.max() - found.min() <= 26 and 14 <= found.max() <= 254):
            return False
    return True


@settings(max_examples=100, deadline=None)
@given(
    highest=st.one_of(st.integers(0, 255), st.sampled_from([13, 14, 254, 255])),
    span=st.one_of(st.integers(0, 60), st.sampled_from([26, 27])),
    zeros=st.sampled_from([0.0, 0.5, 1.0]),
    seed=st.integers(0, 1000),
)
def test_narrow_scales_are_for_columns_of_which_the_scales_span_26(
    highest: int, span: int, zeros: float, seed: int
) -> None:
    blocks, scales, _ = sample((2, 3), 128, highest=highest, span=span, zeros=zeros, seed=seed)
    assert bool(tiled.fits_narrow(blocks, scales)) == own_fits_narrow(blocks, scales)


@pytest.mark.parametrize(
    ("column", "fits"),
    [
        ([100, 126, 113], True),
        ([100, 127, 113], False),
        ([14, 0, 0], True),
        ([13, 13, 13], False),
        ([254, 228, 254], True),
        ([255, 255, 255], False),
    ],
)
def test_one_column_decides_whether_scales_fit_narrow(column: list[int], fits: bool) -> None:
    codes = np.full((2, 5, 96), 2)
    scales = np.full((2, 5, 3), 120, np.uint8)
    scales[1, 3] = column
    assert bool(tiled.fits_narrow(blocks_of(codes), scales)) == fits
    codes[1, 3] = 8
    assert bool(tiled.fits_narrow(blocks_of(codes), scales))


@pytest.mark.parametrize("inputs", [32, 64, 96, 256, 288, 320, 544, 2880])
def test_the_kernels_order_is_told_and_applied_alike(inputs: int) -> None:
    order = tiled.kernel_order(inputs)
    stored = -(-inputs // 64) * 64
    assert tiled.padded_inputs(inputs) == stored
    np.testing.assert_array_equal(np.sort(order), np.arange(stored))
    x = np.random.default_rng(0).standard_normal((3, 2, inputs))
    padded = np.concatenate([x, np.zeros((3, 2, stored - inputs))], axis=-1)
    for dtype in (np.float32, ml_dtypes.bfloat16):
        got = np.asarray(tiled.to_kernel_order(jnp.asarray(x.astype(dtype))))
        np.testing.assert_array_equal(got, padded[..., order].astype(dtype))


def described_value(tiles: TiledWeights, output: int, row: int) -> float:
    """One weight of the form e5m2, found by the module's description; `row` is its input."""
    words, scales = np.asarray(tiles.codes), np.asarray(tiles.scales)
    multiplier = float(np.asarray(tiles.columns)[output // 128, 0, output % 128])
    words, scales = words[output // 128, :, output % 128], scales[output // 128, :, output % 128]
    runs = tiled.padded_inputs(tiles.inputs) // 256
    if row < 256 * runs:
        run, half, block, place = row // 256, row % 256 // 128, row % 128 // 32, row % 32
        word, byte = words[32 * run + place], block  # row 4·place + block of the half
        scale = int(scales[2 * run + half]) >> (8 * block) & 255
    else:
        tail, half, place = (row - 256 * runs) // 64, row % 64 // 32, row % 32
        word, byte = words[32 * runs + 8 * tail + place // 4], place % 4
        scale = int(scales[2 * runs + 2 * tail + half]) & 255
    bits = int(word) >> (8 * byte) & 255
    sign, magnitude = (bits & 1, bits >> 4 & 7) if half else (bits >> 7, bits >> 1 & 7)
    if magnitude == 1:
        return 0.0
    if tiles.wide:
        value = [0.5, 0, 1, 1.5, 2, 3, 4, 6][magnitude] * 2.0 ** (scale - 127)
    else:
        float8 = np.array(sign << 7 | ((magnitude << 1) + scale), np.uint8).view(ml_dtypes.float8_e5m2)
        return float(float8) * multiplier
    return -value if sign else value


@pytest.mark.parametrize("wide", [False, True])
def test_bits_stand_where_the_description_says(wide: bool) -> None:
    outputs, inputs = 130, 352
    blocks, scales, bias = sample((outputs,), inputs)
    tiles, *_ = there_and_back(outputs, "e5m2", wide)(blocks, scales, bias)
    want = weights_of(blocks, scales)
    for output in (0, 7, 127, 128, 129):
        found = [described_value(tiles, output, row) for row in range(inputs)]
        np.testing.assert_array_equal(found, want[output])


def test_arrays_that_do_not_belong_together_are_refused() -> None:
    with pytest.raises(ValueError, match=r"scales \[4, 2\] do not belong to blocks \[4, 16\]"):
        tiled.tile(np.zeros((4, 16), np.uint8), np.zeros((4, 2), np.uint8), np.zeros(4), form="e5m2")


@pytest.mark.parametrize(
    ("experts", "hidden", "inner", "form"),
    [(1, 64, 96, "fp4"), *(slow(*sizes, form) for sizes in ((3, 96, 288), (1, 288, 32)) for form in FORMS)],
)
def test_experts_come_back_with_their_biases(experts: int, hidden: int, inner: int, form: CodeFormat) -> None:
    maps = random_maps(np.random.default_rng(5), experts, hidden, inner)
    tiles = tile_experts(*jax.tree.map(jnp.asarray, maps), form)
    assert not tiles.gate_up.wide
    assert not tiles.down.wide
    for got, want in zip(untile_experts(tiles), maps, strict=True):
        codes = codes_of(want.blocks)
        np.testing.assert_array_equal(codes_of(got.blocks), np.where(codes == 8, 0, codes))
        np.testing.assert_array_equal(got.scales, want.scales)
        np.testing.assert_array_equal(got.bias, want.bias.astype(np.float32))


def test_each_chip_has_its_form() -> None:
    assert [code_format_for(chip) for chip in CHIPS] == ["e5m2", "e5m2", "e5m2", "fp4"]
