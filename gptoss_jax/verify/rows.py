"""A check, what it finds, and its row of the report. Imports no jax."""

from __future__ import annotations

import dataclasses
import re
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from tqdm import tqdm

Status = Literal["passed", "failed", "skipped"]


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What a check found.

    passed: None if there was nothing to check; `measured` then says why.
    measured: what was measured, in words.
    allowed: the bound; "" if there is none.
    details: further figures, for the JSON report.
    lines: further lines of text, for the page.
    """

    passed: bool | None
    measured: str
    allowed: str = ""
    details: Mapping[str, object] = dataclasses.field(default_factory=dict)
    lines: Sequence[str] = ()


@dataclasses.dataclass(frozen=True)
class Check:
    """Something to check.

    name: its name in the report.
    shows: what it shows when it passes.
    advice: what a failure means, and what to do.
    run: does the work. An exception that it raises is a failure.
    """

    name: str
    shows: str
    advice: str
    run: Callable[[], Outcome]


@dataclasses.dataclass(frozen=True)
class Row:
    """A check that was done. seconds: how long it took."""

    name: str
    status: Status
    measured: str
    allowed: str
    meaning: str
    seconds: float
    details: Mapping[str, object]
    lines: Sequence[str]

    def as_json(self) -> dict[str, object]:
        """The row as JSON."""
        return {
            "name": self.name,
            "status": self.status,
            "measured": self.measured,
            "allowed": self.allowed,
            "meaning": self.meaning,
            "seconds": round(self.seconds, 3),
            "details": dict(self.details),
        }


class Failure(Exception):
    """A check found a fault. The message is one line."""


def perform(check: Check) -> Row:
    """Runs a check. Whatever it raises, but for an interruption, becomes a failed row."""
    began = time.perf_counter()
    try:
        found = check.run()
    except Failure as failure:
        found = Outcome(False, one_line(failure))
    except Exception as error:
        found = Outcome(False, f"it raised {type(error).__name__}: {one_line(error)}")
    status: Status = "skipped" if found.passed is None else "passed" if found.passed else "failed"
    return Row(
        check.name,
        status,
        found.measured,
        found.allowed,
        check.advice if status == "failed" else check.shows if status == "passed" else "",
        time.perf_counter() - began,
        dict(found.details),
        tuple(found.lines),
    )


def skipped(check: Check, reason: str) -> Row:
    """The row of a check that cannot run."""
    return Row(check.name, "skipped", reason, "", "", 0.0, {}, ())


def one_line(error: BaseException, length: int = 300) -> str:
    """The message of an exception on one line, cut off after `length` characters."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= length else f"{text[:length]} ..."


def reading(what: str, size: int) -> tqdm[Any]:
    """A bar for reading `size` bytes, on terminals only."""
    return tqdm(total=size, unit="B", unit_scale=True, desc=what, disable=None, leave=False)


def without_paths(*known: str | Path) -> Callable[[str], str]:
    """Returns a function that makes text fit for an issue: plain ASCII, and no path of this machine in it.

    known: folders that are replaced wherever they occur, also where they are relative.
    """
    names = {str(Path.home()), *(str(path) for path in known), *(str(Path(p).absolute()) for p in known)}
    exact = sorted((name for name in names if len(name) > 1 and name != "tiny"), key=len, reverse=True)

    def clean(text: str) -> str:
        for name in exact:
            text = text.replace(name, "<folder>")
        text = _PATH.sub("<path>", text)
        return text.encode("ascii", "backslashreplace").decode()

    return clean


_PATH = re.compile(r"(?<![\w.>/:])~?/[^\s/:;,'\"|]+/[^\s:;,'\"|]*|[A-Za-z]:\\[^\s;,'\"|]+")
"""An absolute path of at least two parts."""
