"""Times two implementations of the same work in turns, and prints a table that compares them."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

Measured = TypeVar("Measured")


class BenchError(Exception):
    """A benchmark cannot run, or the two sides give different results. The message is one line."""


@dataclass(frozen=True)
class Comparison:
    """The seconds that both sides took for one piece of work, round by round."""

    work: str
    data: str
    ours: Sequence[float]
    theirs: Sequence[float]
    target: float | None = None
    """How many times faster `ours` should be; None: no target."""

    @property
    def ratio(self) -> float:
        """How many times faster `ours` is, by the medians."""
        return statistics.median(self.theirs) / statistics.median(self.ours)

    @property
    def ratios(self) -> list[float]:
        """How many times faster `ours` is, for each round."""
        return [theirs / ours for ours, theirs in zip(self.ours, self.theirs, strict=True)]

    @property
    def verdict(self) -> str:
        """Says whether the target is met, and if not, by how much it is missed; empty without a target."""
        if self.target is None:
            return ""
        if self.ratio >= self.target:
            return f"{self.target:g}x holds"
        return f"{self.target:g}x missed by {1 - self.ratio / self.target:.0%}"

    def as_json(self) -> dict[str, object]:
        """The comparison as JSON data."""
        return {
            "work": self.work,
            "data": self.data,
            "ours_seconds": list(self.ours),
            "theirs_seconds": list(self.theirs),
            "ratio": self.ratio,
            "ratio_lowest": min(self.ratios),
            "ratio_highest": max(self.ratios),
            "target": self.target,
            "holds": None if self.target is None else self.ratio >= self.target,
        }


@contextmanager
def frozen_heap() -> Iterator[None]:
    """Leaves what lives now out of the collections that `cpu_seconds` asks for, which else take longer than
    short work in a process with many objects."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def cpu_seconds(work: Callable[[], object]) -> float:
    """CPU seconds of one call. On a shared machine they vary less than wall-clock time."""
    gc.collect()
    start = time.process_time()
    work()
    return time.process_time() - start


def in_turns(
    rounds: int, ours: Callable[[], Measured], theirs: Callable[[], Measured]
) -> tuple[list[Measured], list[Measured]]:
    """Measures both sides `rounds` times. They alternate in going first, so that drift favours neither."""
    measured: tuple[list[Measured], list[Measured]] = ([], [])
    for number in range(rounds):
        for side in (0, 1) if number % 2 == 0 else (1, 0):
            measured[side].append((ours, theirs)[side]())
    return measured


def same(what: str, ours: object, theirs: object) -> None:
    """Raises BenchError unless the two are equal."""
    if ours != theirs:
        raise BenchError(f"{what} differs between the two sides: nothing was measured")


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A text table: a head and rows, with aligned columns, the first
    two to the left and numbers to the right.
    """
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    lines = []
    for row in (head, *rows):
        cells = (
            cell.ljust(width) if column < 2 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def comparison_table(comparisons: Sequence[Comparison]) -> str:
    """A table with one line per comparison: medians in milliseconds,
    ratio, lowest and highest ratio, target.
    """
    rows = [
        (
            row.work,
            row.data,
            f"{statistics.median(row.ours) * 1e3:.3g}",
            f"{statistics.median(row.theirs) * 1e3:.3g}",
            f"{_short(row.ratio)}x",
            f"{_short(min(row.ratios))}-{_short(max(row.ratios))}",
            row.verdict,
        )
        for row in comparisons
    ]
    return table(("work", "data", "ours ms", "theirs ms", "ratio", "rounds", "target"), rows)


def _short(ratio: float) -> str:
    return f"{ratio:.2f}" if ratio < 100 else f"{ratio:,.0f}"
