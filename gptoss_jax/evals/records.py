"""A run's file as its report needs it: a small record of each row, and the way back to the whole row.

Texts stay on the disk: a run of 5,000 rows with long chains of thought is larger than memory may be.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeAlias, cast

from gptoss_jax.evals.types import EvaluationError
from harmony.json_types import Json, JsonObject

Outcome: TypeAlias = Literal["right", "wrong", "graded", "cut", "failed", "ungraded"]
"""What became of an attempt.

"right" and "wrong" by the harness' grader; "graded" where a score may lie between. "cut": its tokens ended
before its answer did, whatever the grader says. "failed": its request has no answer. "ungraded": it has an
answer without a score, because the grader did not give one.
"""


@dataclass(frozen=True, slots=True)
class Reading:
    """What one grader made of an answer.

    score: its score. None: it gave none.
    vote: names the answer, the same for equal answers to one problem, whatever the order of its choices.
        None: it could read no answer.
    """

    score: float | None
    vote: str | None


@dataclass(frozen=True, slots=True)
class Record:
    """A row without its texts.

    Attributes:
        line: its number in the run.
        problem: the name of its problem.
        attempt: which attempt at the problem, from 0.
        expected: the right answer; None if there is none.
        answer: what the harness' grader read.
        permutation: which choice each letter stands for; None without choices, or if that is not known.
        harness, strict: the readings of both graders; `strict` is None if there is no strict grader.
        outcome: what became of it.
        finish_reason: why the answer ended; "" without an answer.
        error: the code of what went wrong; None if nothing did.
        prompt_tokens, completion_tokens, reasoning_tokens: None where they are unknown.
        metrics: HealthBench's scores of the row by name: "overall_score" and one for each tag; else empty.
        grader: the model that graded it; None if none did.
        comparable: False if published scores have another grader.
        prompt: a hash of its messages.
        offset, length: where the row lies in the file, in bytes.
    """

    line: int
    problem: str
    attempt: int
    expected: str | None
    answer: str | None
    permutation: tuple[int, ...] | None
    harness: Reading
    strict: Reading | None
    outcome: Outcome
    finish_reason: str
    error: str | None
    prompt_tokens: int | None
    completion_tokens: int | None
    reasoning_tokens: int | None
    metrics: dict[str, float]
    grader: str | None
    comparable: bool
    prompt: bytes
    offset: int
    length: int

    @property
    def blank_score(self) -> float | None:
        """The harness' score, with 0 for a failed request, which the harness takes for a blank answer."""
        return 0.0 if self.outcome == "failed" else self.harness.score

    @property
    def blank_strict_score(self) -> float | None:
        """The same of the strict grader; None without one."""
        if self.strict is None:
            return 0.0 if self.outcome == "failed" else None
        return 0.0 if self.outcome == "failed" else self.strict.score


@dataclass(frozen=True)
class Problem:
    """A problem with the records of its attempts, in their order."""

    name: str
    records: list[Record] = field(default_factory=list)


@dataclass(frozen=True)
class RunFile:
    """The rows of a run, finished or not.

    Attributes:
        path: the file of rows.
        run: what is written beside it about the run; empty if there is nothing.
        problems: the problems that have a row, in the order of the run.
        torn: True if the last line is not whole: the run is at work, or was killed.
    """

    path: Path
    run: JsonObject
    problems: list[Problem]
    torn: bool = False

    def records(self) -> Iterator[Record]:
        """All records, problem by problem."""
        for problem in self.problems:
            yield from problem.records

    def rows(self, records: Iterable[Record]) -> Iterator[JsonObject]:
        """The whole rows of some records, one after the other.

        Raises:
            EvaluationError: the file cannot be read, or has changed.
        """
        try:
            with self.path.open("rb") as file:
                for record in records:
                    file.seek(record.offset)
                    row = json.loads(file.read(record.length))
                    if not isinstance(row, dict) or row.get("problem") != record.problem:
                        raise ValueError
                    yield row
        except OSError as error:
            raise _unreadable(self.path, error) from None
        except ValueError:
            raise EvaluationError(f"{self.path} was changed while its report was made") from None


def read_run(path: Path) -> RunFile:
    """Reads a run's rows and what lies beside them.

    A torn last line counts as not done.

    Raises:
        EvaluationError: a file cannot be read, a line is no row of an evaluation, or an attempt comes twice.
    """
    problems: dict[str, Problem] = {}
    seen: dict[tuple[str, int], int] = {}
    offset, torn = 0, False
    try:
        with path.open("rb") as file:
            for number, raw in enumerate(file, 1):
                if not raw.endswith(b"\n"):
                    torn = True
                    break
                record = _record(raw, offset, number, path)
                offset += len(raw)
                key = record.problem, record.attempt
                if key in seen:
                    raise EvaluationError(
                        f"line {number} of {path} has attempt {record.attempt} at "
                        f"{json.dumps(record.problem)}, as line {seen[key]} has: each attempt has one row"
                    )
                seen[key] = number
                problems.setdefault(record.problem, Problem(record.problem)).records.append(record)
    except OSError as error:
        raise _unreadable(path, error) from None
    for problem in problems.values():
        problem.records.sort(key=lambda record: record.attempt)
    ordered = sorted(problems.values(), key=lambda problem: min(record.line for record in problem.records))
    return RunFile(path, _beside(path), ordered, torn)


def _unreadable(path: Path, error: OSError) -> EvaluationError:
    return EvaluationError(f"cannot read {path}: {error.strerror or error}")


def _beside(path: Path) -> JsonObject:
    """What OUT.jsonl.run.json says of the run."""
    beside = path.with_name(path.name + ".run.json")
    try:
        run = json.loads(beside.read_bytes())
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise _unreadable(beside, error) from None
    except (ValueError, RecursionError) as error:
        raise EvaluationError(f"{beside} is not valid JSON ({error})") from None
    if not isinstance(run, dict):
        raise EvaluationError(f"{beside} is not a JSON object")
    return run


def _record(raw: bytes, offset: int, number: int, path: Path) -> Record:
    """The record of a line."""
    try:
        row = json.loads(raw)
        problem, attempt = row["problem"], row["attempt"]
        if not (isinstance(problem, str) and type(attempt) is int):
            raise ValueError
    except (ValueError, KeyError, TypeError, RecursionError):
        raise EvaluationError(
            f'line {number} of {path} is no row of an evaluation: it needs "problem", a text, '
            'and "attempt", a whole number'
        ) from None
    usage, details, error = (_object(row.get(name)) for name in ("usage", "details", "error"))
    harness, strict, permutation = _object(row.get("harness")), row.get("strict"), _permutation(details)
    answer, expected, finish_reason = harness.get("answer"), row.get("expected"), row.get("finish_reason")
    reading = _reading(harness, permutation)
    cut = finish_reason == "length"
    line = row.get("line")
    return Record(
        line=line if isinstance(line, int) else number,
        problem=problem,
        attempt=attempt,
        expected=None if expected is None else str(expected),
        answer=None if answer is None else str(answer),
        permutation=permutation,
        harness=reading,
        strict=_reading(strict, permutation) if isinstance(strict, dict) else None,
        outcome=_outcome(reading.score, expected is not None, cut, bool(error), bool(finish_reason)),
        finish_reason=finish_reason if isinstance(finish_reason, str) else "",
        error=str(error.get("code") or "error") if error else None,
        prompt_tokens=_count(usage, "prompt_tokens"),
        completion_tokens=_count(usage, "completion_tokens"),
        reasoning_tokens=_count(usage, "reasoning_tokens"),
        metrics=_metrics(details),
        grader=str(details["grader"]) if details.get("grader") is not None else None,
        comparable=details.get("comparable") is not False,
        prompt=hashlib.blake2b(json.dumps(row.get("messages")).encode(), digest_size=16).digest(),
        offset=offset,
        length=len(raw),
    )


def _object(value: Json) -> JsonObject:
    return value if isinstance(value, dict) else {}


def _count(usage: Mapping[str, Json], name: str) -> int | None:
    value = usage.get(name)
    return value if isinstance(value, int) else None


def _metrics(details: Mapping[str, Json]) -> dict[str, float]:
    metrics = details.get("metrics")
    if not isinstance(metrics, dict):
        return {}
    scores = {name: _number(score) for name, score in metrics.items()}
    return {name: score for name, score in scores.items() if score is not None}


def _number(value: Json) -> float | None:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def _outcome(score: float | None, has_answer: bool, cut: bool, error: bool, answered: bool) -> Outcome:
    if error and not answered:
        return "failed"
    if score is None:
        return "ungraded"
    if cut:
        return "cut"
    if not has_answer:
        return "graded"
    return "right" if score >= 1 else "wrong"


def _permutation(details: Mapping[str, Json]) -> tuple[int, ...] | None:
    found = details.get("permutation")
    if not (isinstance(found, list) and all(type(index) is int for index in found)):
        return None
    return tuple(cast("list[int]", found))


def _reading(grade: Mapping[str, Json], permutation: tuple[int, ...] | None) -> Reading:
    """A grader's reading of an answer."""
    score, answer = grade.get("score"), grade.get("answer")
    number = _number(score)
    text = "" if answer is None else str(answer).strip()
    if permutation is not None:
        letter = "ABCD".find(text) if len(text) == 1 else -1
        vote = str(permutation[letter]) if 0 <= letter < len(permutation) else None
    elif re.fullmatch(r"\d+", text, re.ASCII):
        vote = text.lstrip("0") or "0"
    else:
        vote = text or None
    return Reading(number, vote)


def grouped(run: RunFile, grader: Literal["harness", "strict"], *, failed: bool) -> list[list[float]]:
    """The scores of one grader, problem by problem, without problems that have none.

    Args:
        run: the run.
        grader: whose scores.
        failed: True counts failed requests as 0, as the harness does; False leaves them out.
    """
    name = "blank_score" if grader == "harness" else "blank_strict_score"
    groups = (
        [
            cast(float, getattr(record, name))
            for record in problem.records
            if getattr(record, name) is not None and (failed or record.outcome != "failed")
        ]
        for problem in run.problems
    )
    return [group for group in groups if group]
