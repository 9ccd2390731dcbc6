"""The statistics, against enumeration, simulation, scipy and laws."""

from __future__ import annotations

import importlib
import itertools
import math
from collections import Counter
from fractions import Fraction
from types import ModuleType

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gptoss_jax.evals import statistics

few = settings(max_examples=25, deadline=None)

SCORES = st.floats(0, 1)
GROUPS = st.lists(st.lists(SCORES, min_size=1, max_size=6), min_size=1, max_size=6)


@pytest.fixture(scope="module")
def stats() -> ModuleType:
    """`scipy.stats`, imported where it is needed: that takes a second in each process of tests."""
    return importlib.import_module("scipy.stats")


@pytest.mark.parametrize("attempts", [1, 2, 5, 7])
def test_pass_at_k_is_the_share_of_all_ways_to_draw_k_attempts(attempts: int) -> None:
    for right in range(attempts + 1):
        results = [True] * right + [False] * (attempts - right)
        for k in range(1, attempts + 1):
            draws = [any(drawn) for drawn in itertools.combinations(results, k)]
            assert statistics.pass_at(k, attempts, right) == pytest.approx(sum(draws) / len(draws))


VOTES = st.lists(st.sampled_from(["right", "a", "b", "c", None]), min_size=1, max_size=8)


@few
@given(VOTES, st.data())
def test_majorities_are_those_of_all_ways_to_draw_k_attempts(
    votes: list[str | None], data: st.DataObject
) -> None:
    k = data.draw(st.integers(1, len(votes)))
    value, tied, draws = Fraction(0), 0, 0
    for drawn in itertools.combinations(votes, k):
        draws += 1
        counts = Counter(vote for vote in drawn if vote is not None)
        first = [vote for vote, count in counts.items() if count == max(counts.values())]
        if "right" in first:
            value += Fraction(1, len(first))
            tied += len(first) > 1
    counted = Counter(vote for vote in votes if vote not in (None, "right"))
    found = statistics.majority_at(k, votes.count("right"), list(counted.values()), votes.count(None))
    assert found.value == pytest.approx(float(value / draws))
    assert found.tied == pytest.approx(tied / draws)


def test_majorities_of_many_attempts_are_counted_and_not_enumerated() -> None:
    others = [16] * 4 + [1] * 40
    found = statistics.majority_at(64, 24, others, 0)  # of 128 attempts: some 10**37 ways
    rng = np.random.default_rng(1)
    counts = rng.multivariate_hypergeometric([24, *others], 64, size=5_000)
    best = counts.max(axis=1, keepdims=True)
    first = (counts == best).sum(axis=1)
    value = ((counts[:, 0] == best[:, 0]) / first).mean()
    assert found.value == pytest.approx(value, abs=0.02)


def test_errors_of_even_groups_are_the_textbook_ones(stats: ModuleType) -> None:
    table = np.random.default_rng(2).random((9, 4))
    groups = table.tolist()
    assert statistics.mean(groups) == pytest.approx(table.mean())
    assert statistics.error_over_problems(groups) == pytest.approx(stats.sem(table.mean(axis=1)))
    within = math.sqrt(np.mean(stats.sem(table, axis=1) ** 2) / 9)
    assert statistics.error_over_attempts(groups) == pytest.approx(within)


def test_the_error_over_problems_is_that_of_a_bootstrap_of_problems() -> None:
    rng = np.random.default_rng(3)
    groups = [rng.binomial(1, chance, rng.integers(5, 17)).tolist() for chance in rng.beta(2, 1, 80)]
    sums, sizes = np.array([[sum(group), len(group)] for group in groups]).T
    drawn = rng.integers(0, len(groups), (4000, len(groups)))
    means = sums[drawn].sum(axis=1) / sizes[drawn].sum(axis=1)
    assert statistics.error_over_problems(groups) == pytest.approx(means.std(), rel=0.06)


def test_the_error_over_attempts_is_how_far_runs_of_the_same_problems_differ() -> None:
    rng = np.random.default_rng(4)
    chances, sizes = rng.beta(1, 1, 60), rng.integers(1, 9, 60)  # some with one attempt
    runs = [[rng.binomial(1, p, n).tolist() for p, n in zip(chances, sizes, strict=True)] for _ in range(500)]
    means = [sum(map(sum, run)) / sizes.sum() for run in runs]
    squares = [found**2 for run in runs[:100] if (found := statistics.error_over_attempts(run)) is not None]
    assert math.sqrt(np.mean(squares)) == pytest.approx(np.std(means), rel=0.12)


def test_errors_that_cannot_be_estimated_are_none_and_neither_zero_nor_nan() -> None:
    assert statistics.mean([]) is None
    assert statistics.error_over_attempts([]) is None
    assert statistics.error_over_problems([]) is None
    assert statistics.error_over_problems([[0.0, 1.0]]) is None
    assert statistics.error_over_attempts([[0.0], [1.0]]) is None
    assert statistics.clipped_mean([]) is None
    assert statistics.clipped_mean_error([]) is None
    assert statistics.spread([]) is None


@few
@given(GROUPS)
def test_the_order_of_problems_and_attempts_does_not_matter(groups: list[list[float]]) -> None:
    turned = [group[::-1] for group in groups[::-1]]
    for figure in (statistics.mean, statistics.error_over_problems, statistics.error_over_attempts):
        assert figure(turned) == pytest.approx(figure(groups), abs=1e-12)


@few
@given(GROUPS, st.integers(2, 4))
def test_copies_of_all_attempts_are_no_knowledge_of_more_problems(
    groups: list[list[float]], times: int
) -> None:
    copied = [group * times for group in groups]
    assert statistics.mean(copied) == pytest.approx(statistics.mean(groups))
    once = statistics.error_over_problems(groups)
    assert statistics.error_over_problems(copied) == pytest.approx(once, abs=1e-12)


@few
@given(st.integers(1, 12), st.data())
def test_more_tries_are_never_worse_and_one_try_is_the_mean(attempts: int, data: st.DataObject) -> None:
    right = data.draw(st.integers(0, attempts))
    values = [statistics.pass_at(k, attempts, right) for k in range(1, attempts + 1)]
    assert values[0] == pytest.approx(right / attempts)
    assert values == sorted(values)
    assert values[-1] == (right > 0)
    wrong = data.draw(st.integers(0, attempts - right))
    one = statistics.majority_at(1, right, [wrong], attempts - right - wrong)
    assert one.value == pytest.approx(right / attempts)


@few
@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=30))
def test_spreads_are_those_of_scipy(stats: ModuleType, values: list[int]) -> None:
    found = statistics.spread(values)
    assert found is not None
    assert found.count == len(values)
    assert found.mean == pytest.approx(np.mean(values))
    assert found.median == pytest.approx(stats.scoreatpercentile(values, 50))
    assert found.p90 == pytest.approx(stats.scoreatpercentile(values, 90))


def test_only_the_mean_of_healthbench_is_clipped() -> None:
    assert statistics.clipped_mean([-1.0, 1.0, 0.75]) == pytest.approx(0.25)
    assert statistics.clipped_mean([-1.0, 0.5]) == 0.0
    assert statistics.clipped_mean([1.5, 1.0]) == 1.0


def test_healthbenchs_error_is_the_standard_error_where_nothing_is_clipped(stats: ModuleType) -> None:
    values = np.random.default_rng(5).normal(0.5, 0.2, 400).tolist()
    assert statistics.clipped_mean_error(values) == pytest.approx(stats.sem(values), rel=0.1)
    assert statistics.clipped_mean_error(values) == statistics.clipped_mean_error(values)


def test_healthbenchs_error_is_that_of_clipped_means(stats: ModuleType) -> None:
    values = np.random.default_rng(6).normal(0.0, 1.0, 50).tolist()
    values = [value - np.mean(values) for value in values]  # half of the drawn means are clipped to 0
    half_normal = stats.halfnorm.std()
    parts = math.sqrt(half_normal**2 / 2 + stats.halfnorm.mean() ** 2 / 4)
    assert statistics.clipped_mean_error(values) == pytest.approx(parts * np.std(values) / 50**0.5, rel=0.1)


def test_the_bootstrap_of_many_rows_goes_by_in_parts(
    monkeypatch: pytest.MonkeyPatch, stats: ModuleType
) -> None:
    values = np.random.default_rng(7).random(300).tolist()
    monkeypatch.setattr(statistics, "_BOOTSTRAP_NUMBERS", 1000)
    assert statistics.clipped_mean_error(values) == pytest.approx(stats.sem(values), rel=0.1)
