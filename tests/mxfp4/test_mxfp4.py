"""Laws of the MXFP4 number format, against an oracle of exact rational arithmetic."""

import math
from fractions import Fraction

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from pallas_kernels import mxfp4


def exact_value(code: int, scale: int) -> float:
    """One weight by the definition of E2M1 and E8M0, in Python's own exact arithmetic."""
    exponent, mantissa = (code >> 1) & 3, code & 1
    sign = -1.0 if code & 8 else 1.0
    significand = (
        Fraction(mantissa, 2) if exponent == 0 else (1 + Fraction(mantissa, 2)) * 2 ** (exponent - 1)
    )
    value = significand * Fraction(2) ** (scale - 127)
    if value >= 2**128:  # beyond float32 and bfloat16
        return math.copysign(math.inf, sign)
    return math.copysign(float(value), sign)


def all_bytes_by_all_scales() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Blocks [256, 256], scales [256, 16] and exact weights float64 [256, 512]: every byte at every scale."""
    blocks = np.tile(np.arange(256, dtype=np.uint8), (256, 1))
    scales = np.repeat(np.arange(256, dtype=np.uint8)[:, None], 16, axis=1)
    values = np.array([[exact_value(code, scale) for code in range(16)] for scale in range(256)])
    low, high = values[:, np.arange(256) & 15], values[:, np.arange(256) >> 4]
    return blocks, scales, np.stack([low, high], axis=-1).reshape(256, 512)


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
@pytest.mark.parametrize("compiled", [True, False])
def test_every_byte_at_every_scale_decodes_bit_exactly(dtype, compiled):
    blocks, scales, exact = all_bytes_by_all_scales()
    with np.errstate(over="ignore"):
        expected = exact.astype(dtype)
    decode = jax.jit(mxfp4.decode, static_argnums=2) if compiled else mxfp4.decode
    decoded = np.asarray(decode(blocks, scales, dtype))
    assert decoded.dtype == expected.dtype
    integer = np.uint32 if dtype == np.float32 else np.uint16
    np.testing.assert_array_equal(decoded.view(integer), expected.view(integer))


def test_the_smallest_scales_give_subnormal_numbers_not_zeros():
    decoded = np.asarray(jax.jit(mxfp4.decode)(np.full(16, 0x11, np.uint8), np.zeros(1, np.uint8)))
    assert (decoded == 2.0**-128).all()


def test_each_scale_reaches_exactly_its_own_32_weights():
    blocks = np.full((2, 3, 48), 0x22, np.uint8)  # every weight is 1 before scaling
    scales = np.arange(120, 138, dtype=np.uint8).reshape(2, 3, 3)
    expected = np.repeat(2.0 ** (scales.astype(float) - 127), 32, axis=-1)
    np.testing.assert_array_equal(np.asarray(mxfp4.decode(blocks, scales)), expected)


@pytest.mark.parametrize(
    ("blocks", "scales", "dtype", "message"),
    [
        (np.zeros((2, 32), np.uint8), np.zeros((2, 1), np.uint8), jnp.float32, "do not belong"),
        (np.zeros((2, 16), np.int8), np.zeros((2, 1), np.uint8), jnp.float32, "blocks are int8"),
        (np.zeros((2, 16), np.uint8), np.zeros((2, 1), np.uint8), jnp.float16, "float16"),
    ],
)
def test_arrays_that_are_not_mxfp4_are_refused(blocks, scales, dtype, message):
    with pytest.raises(ValueError, match=message):
        mxfp4.decode(blocks, scales, dtype)


packed = st.sampled_from([1, 3]).flatmap(
    lambda groups: st.tuples(
        hnp.arrays(np.uint8, (3, groups * 16)),
        hnp.arrays(np.uint8, (3, groups), elements=st.integers(0, 252)),
    )
)


@given(packed)
@settings(max_examples=50, deadline=None)
def test_weights_that_mxfp4_can_represent_survive_encoding(packed):
    weights = np.asarray(mxfp4.decode(*packed))
    again = np.asarray(mxfp4.decode(*mxfp4.encode(weights)))
    np.testing.assert_array_equal(again.view(np.uint32), weights.view(np.uint32))


magnitudes = st.floats(-(2.0**100), 2.0**100, width=32)


@given(hnp.arrays(np.float32, (2, 64), elements=magnitudes))
@settings(max_examples=40, deadline=None)
def test_encoding_picks_the_nearest_code_under_the_smallest_scale_that_fits(weights):
    blocks, scales = mxfp4.encode(weights)
    codes = np.stack([blocks & 15, blocks >> 4], axis=-1).reshape(2, 64)
    positive = [exact_value(code, 127) for code in range(8)]
    for row in range(2):
        for group in range(2):
            exponent = int(scales[row, group]) - 127
            block = [abs(Fraction(float(x))) for x in weights[row, group * 32 : group * 32 + 32]]
            assert max(block) <= 6 * Fraction(2) ** exponent
            assert exponent == -127 or max(block) > 6 * Fraction(2) ** (exponent - 1)
            for value, code in zip(block, codes[row, group * 32 : group * 32 + 32], strict=True):
                distances = [abs(value / Fraction(2) ** exponent - Fraction(p)) for p in positive]
                nearest = [c for c in range(8) if distances[c] == min(distances)]
                expected = nearest[0] if len(nearest) == 1 else next(c for c in nearest if c % 2 == 0)
                assert code & 7 == expected
    np.testing.assert_array_equal(codes >> 3, np.signbit(weights))


@pytest.mark.parametrize(
    ("weight", "rounded"),
    [(0.25, 0), (0.75, 1), (1.25, 1), (1.75, 2), (2.5, 2), (3.5, 4), (5, 4), (5.01, 6), (-2.5, -2), (-5, -4)],
)
def test_halves_round_to_the_even_code(weight, rounded):
    block = np.zeros(32, np.float32)
    block[:2] = 6, weight  # 6 fixes the scale at 1
    assert np.asarray(mxfp4.decode(*mxfp4.encode(block)))[1] == rounded


def test_zeros_take_the_smallest_scale_and_stay_zeros():
    blocks, scales = mxfp4.encode(np.zeros(32, np.float32))
    assert scales.tolist() == [0]
    assert not np.asarray(mxfp4.decode(blocks, scales)).any()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1.75 * 2.0**127])
def test_weights_that_would_not_stay_finite_are_refused(bad):
    with pytest.raises(ValueError, match="cannot represent"):
        mxfp4.encode(np.full(32, bad, np.float32))


def test_the_largest_weights_stay_finite():
    largest = np.nextafter(np.float32(1.75 * 2.0**127), np.float32(0))
    blocks, scales = mxfp4.encode(np.full(32, largest))
    np.testing.assert_array_equal(np.asarray(mxfp4.decode(blocks, scales)), [1.5 * 2.0**127] * 32)


def test_a_contracted_axis_that_is_no_multiple_of_32_is_refused():
    with pytest.raises(ValueError, match="multiple of 32"):
        mxfp4.encode(np.ones((2, 48), np.float32))
