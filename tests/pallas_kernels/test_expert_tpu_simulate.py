"""The TPU kernel of the experts in the simulator of memories, copies and semaphores, which reports races and
reads out of bounds, and has NaN where nothing has arrived yet."""

from __future__ import annotations

import jax
import ml_dtypes
import numpy as np
import pytest

from pallas_kernels.expert_matmul import code_format_for, expert_mlp
from pallas_kernels.platform import Chip, using
from tests.pallas_kernels.expert_samples import (
    LEAN,
    LIMIT,
    assert_close,
    cut_otherwise,
    expected,
    random_maps,
    random_route,
    tile_lean,
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("chip", "wide", "tokens", "experts", "changes"),
    [
        # Resident, chunks full and not, more experts than tiles; then two cores that take turns.
        ("v5e", False, 6, 20, {"gate_up_blocks": 4, "down_blocks": 1}),
        ("v5p", True, 40, 5, {}),
        ("7x", False, 20, 4, {"gate_up_blocks": 4, "down_blocks": 1}),
        # Streamed, several tiles for each expert.
        ("v6e", True, 70, 2, {"rows": 16, "first": (8,)}),
        ("v5p", False, 90, 3, {"rows": 32, "first": (8, 16), "gate_up_blocks": 4, "down_blocks": 1}),
        ("7x", False, 70, 20, {"rows": 16, "first": (16,)}),
    ],
)
def test_no_races_and_nothing_out_of_bounds(
    chip: Chip, wide: bool, tokens: int, experts: int, changes: dict
) -> None:
    generator = np.random.default_rng(tokens)
    hidden, inner = (160, 288) if changes.get("down_blocks") else (64, 96)
    maps = random_maps(generator, experts, hidden, inner)
    tiles = tile_lean(*maps, code_format_for(chip), wide=(wide, wide))
    x = generator.standard_normal((tokens, hidden)).astype(ml_dtypes.bfloat16)
    route = random_route(generator, tokens, experts, 2)
    run = jax.jit(expert_mlp, static_argnums=4, compiler_options=LEAN)
    with cut_otherwise(changes), using("tpu-simulate", chip=chip):
        got = jax.block_until_ready(run(x, route, tiles.gate_up, tiles.down, LIMIT))
    assert_close(got, expected(x, route, *maps))
