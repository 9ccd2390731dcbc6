"""Times the encoding of text: ordinary texts, long runs, and mixtures of runs, against plain `tiktoken`."""

from __future__ import annotations

import itertools
import statistics
from dataclasses import dataclass
from functools import partial
from typing import Any

import tiktoken

from harmony import HarmonyEncoding, vocabulary

from .comparison import Comparison, cpu_seconds, in_turns, same, table
from .texts import CLASSES, mixture, ordinary_texts

ORDINARY_SIZE = 1_000_000
ORDINARY_TARGET = 0.5
"""The target: on ordinary text at most twice the time of plain tiktoken."""

RUNS = {
    "'a' n times": lambda n: "a" * n,
    "n spaces, then x": lambda n: " " * n + "x",
    "n line breaks, then x": lambda n: "\n" * n + "x",
    "'!' n times": lambda n: "!" * n,
    "'中' n times": lambda n: "中" * n,
}
RUN_SIZES = [31_250 * 2**doubling for doubling in range(7)]  # up to two million

PERIODS = (1, 10, 100, 1000, 10_000, 100_000)
MIXTURE_SIZE = 20_000
"""Length of a mixture in characters; at least two periods."""


def plain_tiktoken() -> tiktoken.Encoding:
    """`tiktoken` by itself, with the vocabulary of the package."""
    ranks = {token: rank for rank, token in enumerate(vocabulary.o200k_base())}
    return tiktoken.Encoding("plain", pat_str=vocabulary.PATTERN, mergeable_ranks=ranks, special_tokens={})


def compare_ordinary(encoding: HarmonyEncoding, plain: tiktoken.Encoding, rounds: int) -> list[Comparison]:
    """Ordinary texts, ours against plain tiktoken. Raises BenchError if a token differs."""
    comparisons = []
    for name, text in ordinary_texts(ORDINARY_SIZE).items():
        ours, theirs = partial(encoding.encode_ordinary, text), partial(plain.encode_ordinary, text)
        same(f"the tokens of {name}", ours(), theirs())
        times = in_turns(rounds, partial(cpu_seconds, ours), partial(cpu_seconds, theirs))
        comparisons.append(Comparison("encode", name, *times, ORDINARY_TARGET))
    return comparisons


@dataclass(frozen=True)
class Run:
    """The times of encoding a long run, in seconds."""

    name: str
    ours: list[float]
    """The best of three, at each size of `RUN_SIZES`."""
    known: float
    """openai-harmony's time at the first size. It is quadratic, and a million spaces crash its process."""

    @property
    def growth(self) -> float:
        """The time per character at the largest three sizes, divided by that at the three sizes before."""
        per_character = [seconds / size for seconds, size in zip(self.ours, RUN_SIZES, strict=True)]
        return statistics.median(per_character[-3:]) / statistics.median(per_character[-6:-3])


def time_run(encoding: HarmonyEncoding, known: Any, name: str) -> Run:
    """Times a long run. Raises BenchError if a token differs from openai-harmony's at the first size."""
    texts = [RUNS[name](size) for size in RUN_SIZES]
    their_work = partial(known.encode, texts[0], disallowed_special=())
    same(f"the tokens of {name}", encoding.encode_ordinary(texts[0]), their_work())
    ours = [min(cpu_seconds(partial(encoding.encode_ordinary, text)) for _ in range(3)) for text in texts]
    return Run(name, ours, cpu_seconds(their_work))


@dataclass(frozen=True)
class Mixtures:
    """The times of all ordered pairs of classes, in runs of `period` characters: seconds per character."""

    period: int
    pairs: list[tuple[str, str]]
    ours: list[float]
    plain: list[float]


def time_mixtures(encoding: HarmonyEncoding, plain: tiktoken.Encoding, period: int) -> Mixtures:
    """Times every pair once. Raises BenchError if a token differs from plain tiktoken's."""
    pairs = list(itertools.product(CLASSES, CLASSES))
    size = max(MIXTURE_SIZE, 2 * period)
    ours, theirs = [], []
    for first, second in pairs:
        text = mixture(first, second, period, size)
        our_work, their_work = partial(encoding.encode_ordinary, text), partial(plain.encode_ordinary, text)
        same(f"the tokens of {first} and {second} by {period}", our_work(), their_work())
        ours.append(cpu_seconds(our_work) / size)
        theirs.append(cpu_seconds(their_work) / size)
    return Mixtures(period, pairs, ours, theirs)


def run_table(runs: list[Run]) -> str:
    """The table of runs: milliseconds at each size, and the growth."""
    head = ["text", "", *(f"{size:,}" for size in RUN_SIZES), f"0.0.8 at {RUN_SIZES[0]:,}", "growth"]
    rows = [
        [run.name, "", *(f"{s * 1e3:.3g}" for s in run.ours), f"{run.known * 1e3:.3g}", f"{run.growth:.2f}"]
        for run in runs
    ]
    return table(head, rows)


def mixture_table(mixtures: list[Mixtures]) -> str:
    """The table of mixtures: nanoseconds per character of the median pair and the slowest, on both sides."""
    head = ["slowest pair", "", "period", "median", "slowest", "tiktoken: median", "slowest"]
    rows = []
    for row in mixtures:
        slowest = max(range(len(row.pairs)), key=row.ours.__getitem__)
        times = (statistics.median(row.ours), max(row.ours), statistics.median(row.plain), max(row.plain))
        rows.append([*row.pairs[slowest], f"{row.period:,}", *(f"{seconds * 1e9:.0f}" for seconds in times)])
    return table(head, rows)
