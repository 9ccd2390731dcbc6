"""The tile schedule against its definition, pair by pair in plain Python."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pallas_kernels.routing import Schedule, schedule_rows, schedule_tiles


def expected_schedule(experts: np.ndarray, num_experts: int, tile: int, rows: int) -> dict[str, np.ndarray]:
    """The schedule by filling one expert's tiles after the other."""
    tokens, destinations = [], np.full(experts.shape, rows, np.int32)
    tile_experts, tile_counts = [], []
    for expert in range(num_experts):
        pairs = [tuple(pair) for pair in np.argwhere(experts == expert)]
        for start in range(0, len(pairs), tile):
            chunk = pairs[start : start + tile]
            for offset, pair in enumerate(chunk):
                destinations[pair] = len(tokens) + offset
            tokens += [pair[0] for pair in chunk] + [len(experts)] * (tile - len(chunk))
            tile_experts.append(expert)
            tile_counts.append(len(chunk))
    num_tiles, idle = len(tile_experts), rows // tile - len(tile_experts)
    return {
        "destinations": destinations,
        "tokens": np.array(tokens + [len(experts)] * (rows - len(tokens)), np.int32),
        "tile_experts": np.array(tile_experts + (tile_experts[-1:] or [0]) * idle, np.int32),
        "tile_counts": np.array(tile_counts + [0] * idle, np.int32),
        "num_tiles": np.array(num_tiles, np.int32),
    }


def check(schedule: Schedule, experts: np.ndarray, num_experts: int, tile: int) -> None:
    rows = schedule_rows(experts.size, num_experts, tile)
    for name, value in expected_schedule(experts, num_experts, tile, rows).items():
        got = np.asarray(getattr(schedule, name))
        assert got.dtype == np.int32, name
        np.testing.assert_array_equal(got, value, err_msg=name)


_schedule = jax.jit(schedule_tiles, static_argnums=(1, 2))


@settings(max_examples=40, deadline=None)
@given(st.data(), st.sampled_from([1, 8]), st.sampled_from([(0, 4, 2), (13, 6, 3), (40, 3, 1)]))
def test_every_pair_has_one_row_in_a_tile_of_its_expert(
    data: st.DataObject, tile: int, sizes: tuple[int, int, int]
) -> None:
    tokens, num_experts, active = sizes
    choices = st.permutations(range(num_experts)).map(lambda ids: ids[:active]) | st.just(
        [num_experts] * active
    )
    drawn = data.draw(st.lists(choices, min_size=tokens, max_size=tokens))
    experts = np.array(drawn, np.int32).reshape(tokens, active)
    check(_schedule(experts, num_experts, tile), experts, num_experts, tile)


@pytest.mark.parametrize("tile", [1, 8])
def test_the_worst_routing_fills_the_rows_there_are(tile: int) -> None:
    num_experts, pairs = 4, 4 + 3 * tile
    experts = np.array([0, 1, 2, 3] + [2] * (3 * tile), np.int32)[:, None]
    schedule = _schedule(experts, num_experts, tile)
    check(schedule, experts, num_experts, tile)
    assert int(schedule.num_tiles) * tile == schedule_rows(pairs, num_experts, tile)
