"""Weights as the TPU kernel of the experts decodes them: every code with every scale, bit by bit."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from pallas_kernels.expert_matmul import PackedLinear, WeightLayout, expert_mlp, tile_experts
from pallas_kernels.expert_matmul.tiling import layout_of
from pallas_kernels.mxfp4.tiled import CodeFormat
from pallas_kernels.platform import Chip, using
from pallas_kernels.routing import Route
from tests.pallas_kernels.expert_samples import (
    LEAN,
    LIMIT,
    assert_close,
    blocks_of,
    expected,
    random_maps,
    random_route,
    tile_lean,
    weights_of,
)
from tests.pallas_kernels.marks import slow

SIZE = 288
"""Inputs and outputs: a run of 256 input rows, a tail, and more outputs than there are scales."""

GATE = 16.0
"""Large enough that its sigmoid is 1 in float32."""

run_kernel = jax.jit(expert_mlp, static_argnums=4, compiler_options=LEAN)


def one_feature_per_token(size: float) -> PackedLinear:
    """The map that turns the unit vector of feature f into `size` in feature f and zero elsewhere."""
    codes = np.zeros((1, 2, SIZE, SIZE), np.uint8)
    codes[0, 0] = 2 * np.eye(SIZE)
    scales = np.full((1, 2, SIZE, SIZE // 32), 127 + 4, np.uint8)
    bias = np.zeros((1, 2, SIZE), np.float32)
    bias[0, 1] = size / GATE - 1
    return PackedLinear(blocks_of(codes), scales, bias)


def every_code_at_every_scale(wide: bool, span: int) -> PackedLinear:
    """Each block has all codes, twice. Narrow: column c has the highest scale 14 + c and others down to
    `span` less; wide: any scales but 0 and 255 in each column."""
    generator = np.random.default_rng(8)
    codes = np.tile(np.arange(16, dtype=np.uint8), (1, SIZE, SIZE // 32, 2))
    codes = generator.permuted(codes, axis=-1).reshape(1, SIZE, SIZE)
    shape = 1, SIZE, SIZE // 32
    if wide:
        scales = generator.permuted(np.resize(np.arange(1, 255), shape), axis=1)
    else:
        highest = 14 + np.arange(SIZE)[:, None] % 241
        below = np.resize(np.arange(span + 1), (SIZE, SIZE // 32))
        below[:, 0] = 0
        scales = generator.permuted(np.maximum(highest - below, 0)[None], axis=2)
    return PackedLinear(blocks_of(codes), scales.astype(np.uint8), np.zeros((1, SIZE), np.float32))


@pytest.mark.parametrize(
    ("chip", "form", "wide", "span", "tokens"),
    [
        ("v5e", "e5m2", False, 26, 32),
        slow("v5e", "e5m2", True, 26, 32),
        slow("7x", "fp4", False, 13, 32),
        slow("7x", "fp4-", False, 26, 32),
        slow("7x", "fp4", True, 26, 32),
        slow("v5e", "e5m2", False, 26, SIZE),
        slow("7x", "fp4-", False, 26, SIZE),
    ],
)
def test_every_code_at_every_scale_is_decoded_exactly(
    chip: Chip, form: CodeFormat, wide: bool, span: int, tokens: int
) -> None:
    """Each result is one weight times a power of two; results smaller than float32's smallest normal number
    may be flushed to zero. So that none of the weights is, there are two powers."""
    down = every_code_at_every_scale(wide, span)
    weights = weights_of(*down[:2])[0]
    route = Route(np.zeros((tokens, 1), np.int32), np.ones((tokens, 1), np.float32))
    seen = np.zeros(weights.shape, bool)
    for power in (2.0**44, 2.0**-16):
        tiles = tile_lean(one_feature_per_token(power), down, form, wide=(False, wide))
        found = np.empty_like(weights)
        for first in range(0, SIZE, tokens):
            x = np.eye(tokens, SIZE, first).astype(ml_dtypes.bfloat16)
            with using("tpu-interpret", chip=chip):
                rows = run_kernel(x, route, tiles.gate_up, tiles.down, 2.0**100)
            found[:, first : first + tokens] = np.asarray(rows).astype(np.float64).T
        true = weights * power
        normal = (true == 0) | ((np.abs(true) >= 2.0**-126) & (np.abs(true) < 2.0**128))
        np.testing.assert_array_equal(found[normal], true[normal])
        tiny = np.abs(true) < 2.0**-126
        assert ((found[tiny] == 0) | (found[tiny] == true[tiny])).all()
        seen |= normal
    assert seen.all()
    pairs = np.repeat(down.scales[0], 32, axis=1).astype(int) * 16 + (
        np.stack([down.blocks[0] % 16, down.blocks[0] // 16], axis=-1).reshape(weights.shape)
    )
    lowest = max(1, 15 - span)
    assert set(pairs.reshape(-1)) >= set(range(lowest * 16, 255 * 16))


def with_one_scale_below(linear: PackedLinear, span: int) -> PackedLinear:
    """One block of the last expert's first column gets a scale `span` below another, and is not zero."""
    scales, blocks = linear.scales.copy(), linear.blocks.copy()
    column = (len(scales) - 1, *[0] * (scales.ndim - 2))
    scales[(*column, 0)], scales[(*column, 1)] = 124, 124 - span
    blocks[(*column, slice(0, 32))] = 0x22
    return linear._replace(blocks=blocks, scales=scales)


@pytest.mark.parametrize(
    ("span", "form", "layout"),
    [
        (26, "e5m2", WeightLayout("e5m2", False)),
        (27, "e5m2", WeightLayout("e5m2", True)),
        (13, "fp4", WeightLayout("fp4", False)),
        (14, "fp4", WeightLayout("fp4-", False)),
        (27, "fp4", WeightLayout("fp4", True)),
    ],
)
def test_the_widest_span_of_scales_decides_the_layout(
    span: int, form: CodeFormat, layout: WeightLayout
) -> None:
    _, down = random_maps(np.random.default_rng(9), 3, 64, 96)
    assert layout_of(with_one_scale_below(down, span), form) == layout


@pytest.mark.slow
@pytest.mark.parametrize(("gate_up_wide", "down_wide"), [(True, False), (False, True)])
def test_one_scale_out_of_span_makes_its_map_wide_and_the_result_stays_right(
    gate_up_wide: bool, down_wide: bool
) -> None:
    generator = np.random.default_rng(9)
    gate_up, down = random_maps(generator, 3, 64, 96)
    if gate_up_wide:
        gate_up = with_one_scale_below(gate_up, 27)
    if down_wide:
        down = with_one_scale_below(down, 27)
    tiles = tile_experts(*jax.tree.map(jnp.asarray, (gate_up, down)), "e5m2")
    assert (tiles.gate_up.wide, tiles.down.wide) == (gate_up_wide, down_wide)
    x = generator.standard_normal((10, 64)).astype(np.float32)
    route = random_route(generator, 10, 3, 2)
    with using("tpu-interpret", chip="v5e"):
        got = run_kernel(x, route, tiles.gate_up, tiles.down, LIMIT)
    assert_close(got, expected(x, route, gate_up, down))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("span", "form", "wide"), [(13, "fp4", False), (14, "fp4-", False), (27, "fp4", True)]
)
def test_7x_takes_the_fastest_layout_that_holds_the_scales(span: int, form: CodeFormat, wide: bool) -> None:
    generator = np.random.default_rng(10)
    gate_up, down = random_maps(generator, 3, 64, 96)
    down = with_one_scale_below(down, span)
    tiles = tile_experts(gate_up, down, "fp4")
    assert (tiles.down.form, tiles.down.wide) == (form, wide)
    x = generator.standard_normal((10, 64)).astype(np.float32)
    route = random_route(generator, 10, 3, 2)
    with using("tpu-interpret", chip="7x"):
        got = run_kernel(x, route, tiles.gate_up, tiles.down, LIMIT)
    assert_close(got, expected(x, route, gate_up, down))
