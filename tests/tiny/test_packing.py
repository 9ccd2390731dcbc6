"""Rows: every branch after its prefix, every trained token predicted from the token before it."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gptoss_jax.tiny.packing import Tokens, draw_batch, pack_row
from harmony import HarmonyEncoding

branches = st.lists(
    st.lists(st.tuples(st.integers(1, 99), st.booleans()), min_size=1, max_size=12), min_size=1, max_size=6
)


@given(st.lists(st.integers(1, 99), min_size=1, max_size=20), branches)
def test_a_row_can_be_taken_apart_into_the_branches_that_fit(prefix: list[int], parts: list) -> None:
    length = 40
    given_branches = [Tokens([t for t, _ in part], [w for _, w in part]) for part in parts]
    row = pack_row(prefix, given_branches, length)
    smallest = min(len(branch.ids) for branch in given_branches)
    if row is None:
        assert len(prefix) + smallest > length
        return
    tokens, positions, segments, targets, weights = (np.array(column) for column in row)
    assert all(len(column) == length for column in row)
    assert list(tokens[segments == 0]) == prefix
    fitting = []
    room = length - len(prefix)
    for branch in given_branches:
        if len(branch.ids) <= room:
            fitting.append(branch)
            room -= len(branch.ids)
    for number, branch in enumerate(fitting, 1):
        here = segments == number
        assert list(tokens[here]) == branch.ids
        assert list(positions[here]) == list(range(len(prefix), len(prefix) + len(branch.ids)))
        assert list(targets[here][:-1]) == branch.ids[1:]
        assert list(weights[here]) == [*branch.trained[1:], 0]
    assert segments.max() == len(fitting)
    assert not weights[segments <= 0].any()


def test_a_batch_depends_on_seed_and_step_alone(encoding: HarmonyEncoding) -> None:
    first, again, other = (draw_batch(encoding, 5, step, rows=3, length=448) for step in (7, 7, 8))
    np.testing.assert_array_equal(first.tokens, again.tokens)
    np.testing.assert_array_equal(first.predictors, again.predictors)
    assert not np.array_equal(first.tokens, other.tokens)


def test_the_listed_predictors_see_their_targets_next_in_their_own_branch(encoding: HarmonyEncoding) -> None:
    batch = draw_batch(encoding, 1, 2, rows=4, length=448)
    tokens, segments = batch.tokens.reshape(-1), batch.segments.reshape(-1)
    real = batch.weights > 0
    assert 200 < real.sum() < len(real)
    predictors = batch.predictors[real]
    np.testing.assert_array_equal(tokens[predictors + 1], batch.targets[real])
    np.testing.assert_array_equal(segments[predictors + 1], segments[predictors])
    assert (segments[predictors] > 0).all()
