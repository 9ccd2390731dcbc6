"""Results: figures with their spread over rounds, as text and as JSON data."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Sequence

from gptoss_jax.bench.comparison import table


@dataclasses.dataclass(frozen=True)
class Goal:
    """A bound on a figure. Exactly one of `minimum` and `maximum` is given; the other one is None."""

    minimum: float | None = None
    maximum: float | None = None

    def holds(self, value: float) -> bool:
        """Returns True if the value is within the bound."""
        return (self.minimum is None or value >= self.minimum) and (
            self.maximum is None or value <= self.maximum
        )

    def __str__(self) -> str:
        return f"≥ {self.minimum:g}" if self.maximum is None else f"≤ {self.maximum:g}"


@dataclasses.dataclass(frozen=True)
class Figure:
    """One measured number, round by round.

    A figure that is not a time has one round. goal: None if there is none.
    """

    what: str
    unit: str
    rounds: tuple[float, ...]
    goal: Goal | None = None

    @property
    def median(self) -> float:
        """The median of the rounds."""
        return statistics.median(self.rounds)

    @property
    def verdict(self) -> str:
        """Says whether the goal is met; empty without a goal."""
        if self.goal is None:
            return ""
        return f"{self.goal} {'holds' if self.goal.holds(self.median) else 'missed'}"

    def as_json(self) -> dict[str, object]:
        """The figure as JSON data."""
        return {
            "what": self.what,
            "unit": self.unit,
            "median": self.median,
            "lowest": min(self.rounds),
            "highest": max(self.rounds),
            "rounds": list(self.rounds),
            "goal": None if self.goal is None else str(self.goal),
            "holds": None if self.goal is None else self.goal.holds(self.median),
        }

    def cells(self) -> tuple[str, ...]:
        """The figure as a row of the table."""
        spread = "" if len(self.rounds) == 1 else f"{_short(min(self.rounds))} - {_short(max(self.rounds))}"
        return self.what, self.unit, _short(self.median), spread, self.verdict


@dataclasses.dataclass(frozen=True)
class Part:
    """The result of one part of the benchmark.

    setting: the sizes that were measured. checked: what was checked before timing. notes: what a reader needs
    to know to interpret the figures.
    """

    name: str
    setting: str
    checked: Sequence[str]
    figures: Sequence[Figure]
    notes: Sequence[str] = ()

    def as_json(self) -> dict[str, object]:
        """The part as JSON data."""
        return {
            "name": self.name,
            "setting": self.setting,
            "checked": list(self.checked),
            "figures": [figure.as_json() for figure in self.figures],
            "notes": list(self.notes),
        }

    def __str__(self) -> str:
        lines = [f"{self.name}: {self.setting}", *(f"  checked: {line}" for line in self.checked)]
        head = ("figure", "unit", "median", "rounds", "goal")
        rows = table(head, [figure.cells() for figure in self.figures]).splitlines()
        return "\n".join([*lines, *(f"  {row}" for row in rows), *(f"  {note}" for note in self.notes)])


@dataclasses.dataclass(frozen=True)
class LeftOut:
    """A part that was not measured, and why."""

    name: str
    reason: str

    def as_json(self) -> dict[str, object]:
        """The part as JSON data."""
        return {"name": self.name, "left_out": self.reason}

    def __str__(self) -> str:
        return f"{self.name}: left out: {self.reason}"


def ratios(what: str, over: Sequence[float], under: Sequence[float], goal: Goal | None = None) -> Figure:
    """A figure with the ratio over / under, round by round."""
    return Figure(what, "x", tuple(a / b for a, b in zip(over, under, strict=True)), goal)


def millis(what: str, seconds: Sequence[float]) -> Figure:
    """A figure in milliseconds, from seconds."""
    return Figure(what, "ms", tuple(1e3 * value for value in seconds))


def percent(what: str, shares: Sequence[float], goal: Goal | None = None) -> Figure:
    """A figure in percent, from fractions."""
    return Figure(what, "%", tuple(100 * value for value in shares), goal)


def _short(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
