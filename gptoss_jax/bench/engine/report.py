"""What was measured: figures with their spread over rounds, as text and as JSON data."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Sequence
from typing import Any

from gptoss_jax.bench.comparison import table


@dataclasses.dataclass(frozen=True)
class Goal:
    """A bound on a figure: `least` or `most`, one of them None."""

    least: float | None = None
    most: float | None = None

    def holds(self, value: float) -> bool:
        """Whether a value keeps to it."""
        return (self.least is None or value >= self.least) and (self.most is None or value <= self.most)

    def __str__(self) -> str:
        return f"≥ {self.least:g}" if self.most is None else f"≤ {self.most:g}"


@dataclasses.dataclass(frozen=True)
class Figure:
    """One number, round by round. A figure that is not timed has one round."""

    what: str
    unit: str
    rounds: tuple[float, ...]
    goal: Goal | None = None

    @property
    def median(self) -> float:
        """The figure: the median of its rounds."""
        return statistics.median(self.rounds)

    @property
    def verdict(self) -> str:
        """Whether the goal is met."""
        if self.goal is None:
            return ""
        return f"{self.goal} {'holds' if self.goal.holds(self.median) else 'missed'}"

    def as_json(self) -> dict[str, Any]:
        """All that is known, as JSON data."""
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
        """A row of the table."""
        spread = "" if len(self.rounds) == 1 else f"{_short(min(self.rounds))} - {_short(max(self.rounds))}"
        return self.what, self.unit, _short(self.median), spread, self.verdict


@dataclasses.dataclass(frozen=True)
class Part:
    """What one part of the benchmark found: in what setting, what was checked before it was timed, and the
    figures. `notes` say what a reader must know to read them."""

    name: str
    setting: str
    checked: Sequence[str]
    figures: Sequence[Figure]
    notes: Sequence[str] = ()

    def as_json(self) -> dict[str, Any]:
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

    def as_json(self) -> dict[str, Any]:
        """The part as JSON data."""
        return {"name": self.name, "left_out": self.reason}

    def __str__(self) -> str:
        return f"{self.name}: left out: {self.reason}"


def ratios(what: str, over: Sequence[float], under: Sequence[float], goal: Goal | None = None) -> Figure:
    """The ratio of two measurements, round by round."""
    return Figure(what, "x", tuple(a / b for a, b in zip(over, under, strict=True)), goal)


def millis(what: str, seconds: Sequence[float]) -> Figure:
    """Seconds as a figure in milliseconds."""
    return Figure(what, "ms", tuple(1e3 * value for value in seconds))


def percent(what: str, shares: Sequence[float], goal: Goal | None = None) -> Figure:
    """Shares as a figure in percent."""
    return Figure(what, "%", tuple(100 * value for value in shares), goal)


def _short(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
