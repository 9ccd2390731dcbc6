"""The statistics of repeated attempts at a set of problems.

Scores are numbers, for most evaluations 0 or 1. The scores of one problem are a group, for attempts at the
same problem resemble each other: n attempts at P problems say less about other problems than n·P independent
answers would.

There are two standard errors, which answer two questions:

- over attempts: how far would the score move if the same problems were attempted again? This is the one for
  "do two runs of the same evaluation agree?".
- over problems: how far would it move with other problems of the same kind? It contains the first. This is
  the one for "how good is the model at such problems?".
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

Groups = Sequence[Sequence[float]]
"""The scores of each problem's attempts. No group is empty; groups may differ in size."""

BOOTSTRAP_DRAWS = 1000
"""How often the harness draws a sample with replacement for HealthBench's error."""
_BOOTSTRAP_NUMBERS = 1_000_000
"""How many drawn numbers are held in memory at a time."""


def mean(groups: Groups) -> float | None:
    """The mean of all scores, each attempt with the same weight; None without scores."""
    count = sum(map(len, groups))
    return math.fsum(score for group in groups for score in group) / count if count else None


def error_over_problems(groups: Groups) -> float | None:
    """The standard error of `mean` if the problems are a sample of all such problems.

    With groups of one size it is the standard deviation of the problems' means (divisor P - 1) by the root
    of P. With groups of different sizes it is the usual cluster-robust error of a mean.

    Returns:
        The error. None with fewer than two problems: then it cannot be estimated.
    """
    centre = mean(groups)
    if centre is None or len(groups) < 2:
        return None
    count = sum(map(len, groups))
    squares = math.fsum(math.fsum(score - centre for score in group) ** 2 for group in groups)
    return math.sqrt(squares * len(groups) / (len(groups) - 1)) / count


def error_over_attempts(groups: Groups) -> float | None:
    """The standard error of `mean` if the same problems are attempted again.

    A problem with one attempt shows no variance. It is given the mean variance of the others.

    Returns:
        The error. None if no problem has two attempts: then it cannot be estimated.
    """
    squares = [_squares(group) for group in groups]
    degrees = sum(len(group) - 1 for group in groups)
    if degrees == 0:
        return None
    pooled = math.fsum(squares) / degrees
    variance = math.fsum(
        len(group) * (own / (len(group) - 1) if len(group) > 1 else pooled)
        for group, own in zip(groups, squares, strict=True)
    )
    return math.sqrt(variance) / sum(map(len, groups))


def _squares(group: Sequence[float]) -> float:
    centre = math.fsum(group) / len(group)
    return math.fsum((score - centre) ** 2 for score in group)


def pass_at(k: int, attempts: int, right: int) -> float:
    """The chance that `k` of a problem's attempts, drawn without replacement, have a right one among them.

    This is the unbiased estimate of "one of k tries is right". `k` is at most `attempts`.
    """
    return float(1 - Fraction(math.comb(attempts - right, k), math.comb(attempts, k)))


@dataclass(frozen=True)
class Majority:
    """What the majority of k answers gives.

    value: the chance that it is right. Where t answers share the first place, each counts as the majority
        with the chance 1/t.
    tied: the chance that the right answer shares the first place.
    """

    value: float
    tied: float


def majority_at(k: int, right: int, others: Sequence[int], silent: int = 0) -> Majority:
    """The majority of `k` of a problem's attempts, drawn without replacement.

    Args:
        k: how many attempts vote; at most all of them.
        right: how many attempts gave the right answer.
        others: for each wrong answer, how many attempts gave it.
        silent: how many attempts gave no answer that could be read. They have no vote; if none has, the
            majority is wrong.
    """
    value, tied, all_ways = Fraction(0), Fraction(0), math.comb(right + sum(others) + silent, k)
    for first in range(1, min(k, right) + 1):
        chosen = math.comb(right, first)
        for ties, ways in enumerate(_ways_below(k - first, first, others, silent)):
            value += Fraction(chosen * ways, all_ways * (ties + 1))
            tied += Fraction(chosen * ways, all_ways) if ties else 0
    return Majority(float(value), float(tied))


def _ways_below(size: int, first: int, others: Sequence[int], silent: int) -> list[int]:
    """In how many ways `size` attempts are drawn such that no answer has more than `first` of them.

    The ways are counted by how many answers have exactly `first`: the index of the result.
    """
    few = silent + sum(count for count in others if count < first)  # these can never reach the first place
    ways = [[math.comb(few, drawn) for drawn in range(size + 1)]]  # [answers that tie][attempts drawn]
    for count in others:
        if count < first:
            continue
        longer = [[0] * (size + 1) for _ in range(len(ways) + 1)]
        for ties, row in enumerate(ways):
            for drawn, number in enumerate(row):
                if not number:
                    continue
                for more in range(min(first, size - drawn) + 1):
                    longer[ties + (more == first)][drawn + more] += number * math.comb(count, more)
        ways = longer
    return [row[size] for row in ways]


@dataclass(frozen=True)
class Spread:
    """How a number is distributed: how many values, their mean, median, and what 90% do not exceed."""

    count: int
    mean: float
    median: float
    p90: float


def spread(values: Sequence[float]) -> Spread | None:
    """The spread of some values, between two of them by linear interpolation; None without values."""
    if not values:
        return None
    median, p90 = np.percentile(values, [50, 90])
    return Spread(len(values), math.fsum(values) / len(values), float(median), float(p90))


def clipped_mean(values: Sequence[float]) -> float | None:
    """HealthBench's score: the mean of the rows' scores, moved into 0 to 1; None without values.

    Single rows may be below 0. They are not clipped, only their mean is.
    """
    return min(1.0, max(0.0, math.fsum(values) / len(values))) if values else None


def clipped_mean_error(values: Sequence[float], seed: int = 0) -> float | None:
    """HealthBench's error: the standard deviation of the clipped means of samples with replacement.

    The harness draws from a generator without a seed, so its error moves by some percent between two calls.
    This one is seeded: the same values give the same error.
    """
    if not values:
        return None
    rng, scores = np.random.default_rng(seed), np.asarray(values, np.float64)
    at_once = max(1, _BOOTSTRAP_NUMBERS // len(scores))
    means: list[float] = []
    while len(means) < BOOTSTRAP_DRAWS:
        draws = min(at_once, BOOTSTRAP_DRAWS - len(means))
        means += rng.choice(scores, (draws, len(scores))).mean(axis=1).tolist()
    return float(np.clip(means, 0, 1).std())
