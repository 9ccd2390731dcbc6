"""All figures of a run, from its records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from gptoss_jax.evals import statistics
from gptoss_jax.evals.published import MAX_TOKENS, Comparison, compare
from gptoss_jax.evals.records import Outcome, Problem, Reading, Record, RunFile, grouped
from gptoss_jax.evals.statistics import Spread
from harmony.json_types import Json

Grader = Literal["harness", "strict"]

_FEW = 10
"""Below so many problems a standard error over them is itself mostly noise."""
_SURPRISE = 0.05


@dataclass(frozen=True)
class AtK:
    """What k attempts at a problem give, as a mean over problems.

    k: how many attempts.
    value: the chance that it is right, from 0 to 1.
    tied: how many problems have the right answer tied with another one for the first place, expected over all
        ways to draw k attempts; 0 where nothing is voted on.
    """

    k: int
    value: float
    tied: float = 0.0


@dataclass(frozen=True)
class Graded:
    """The figures by one grader; scores are from 0 to 1, or None if there is nothing to compute them from.

    score: the mean of all attempts; a failed request counts as a blank answer, as in the harness: 0.
    over_attempts: its standard error if the same problems are attempted again. None with one attempt at each.
    over_problems: its standard error if other problems of the kind are attempted. None with one problem.
    without_failed: the mean without failed requests.
    unread: how many answers the grader could read nothing from; failed requests are none of them.
    one_of_k: the chance that one of k attempts is right (pass@k); empty if scores are not just 0 and 1.
    majority_of_k: the chance that the answer of most of k attempts is right (cons@k); empty likewise.
    """

    score: float | None
    over_attempts: float | None
    over_problems: float | None
    without_failed: float | None
    unread: int
    one_of_k: list[AtK]
    majority_of_k: list[AtK]


@dataclass(frozen=True)
class Tag:
    """HealthBench's figures of one tag.

    score: the clipped mean of the rows that have a score for it.
    error: the bootstrap's error of this mean.
    rows: how many these are.
    """

    name: str
    score: float
    error: float
    rows: int


@dataclass(frozen=True)
class Figures:
    """The figures of a run, finished or not.

    planned: how many attempts the run has when it is finished; None: unknown.
    done: how many have a row.
    attempts: how many attempts at each problem are planned; None: unknown.
    problems: how many problems have a row.
    failed: how many requests have no answer.
    ungraded: how many answers have no score; they are in no score.
    cut: how many answers were cut by the limit of tokens.
    errors: code → how many rows have such an error.
    finish_reasons: why answers ended → how many did.
    harness, strict: the figures by both graders; `strict` is None if there is no strict one.
    bootstrap_error: HealthBench's error as the harness has it; None for other evaluations.
    tags: HealthBench's tags, by name.
    reasoning: outcome → the reasoning tokens of such attempts; those with an unknown number are left out.
    prompt_tokens, completion_tokens, reasoning_tokens: sums of what is known.
    comparison: the run beside the published score, or why there is none.
    notes: what a reader must know to read the figures rightly; a sentence each.
    """

    planned: int | None
    done: int
    attempts: int | None
    problems: int
    failed: int
    ungraded: int
    cut: int
    errors: dict[str, int]
    finish_reasons: dict[str, int]
    harness: Graded
    strict: Graded | None
    bootstrap_error: float | None
    tags: list[Tag]
    reasoning: dict[Outcome, Spread]
    prompt_tokens: int
    completion_tokens: int
    reasoning_tokens: int
    comparison: Comparison | str
    notes: list[str]

    @property
    def missing(self) -> int | None:
        """How many attempts have no row yet; None: unknown."""
        return None if self.planned is None else max(0, self.planned - self.done)


def figures_of(file: RunFile) -> Figures:
    """The figures of a run."""
    records = list(file.records())
    outcomes = Counter(record.outcome for record in records)
    attempts, problems = (_whole(file.run.get(name)) for name in ("attempts", "problems"))
    planned = None if attempts is None or problems is None else attempts * problems
    missing = None if planned is None else max(0, planned - len(records))
    metrics = _metrics(records)
    overall = metrics.pop("overall_score", None)
    if overall is not None:
        overall += [0.0] * outcomes["failed"]
    harness = _graded(file, "harness", clipped=overall is not None)
    comparison = compare(file, missing)
    return Figures(
        planned=planned,
        done=len(records),
        attempts=attempts,
        problems=len(file.problems),
        failed=outcomes["failed"],
        ungraded=outcomes["ungraded"],
        cut=sum(record.finish_reason == "length" for record in records),
        errors=_counted([record.error for record in records if record.error is not None]),
        finish_reasons=_counted([record.finish_reason for record in records if record.finish_reason]),
        harness=harness,
        strict=_graded(file, "strict") if any(record.strict is not None for record in records) else None,
        bootstrap_error=statistics.clipped_mean_error(overall or []),
        tags=[_tag(name, scores) for name, scores in sorted(metrics.items())],
        reasoning=_reasoning(records),
        prompt_tokens=sum(record.prompt_tokens or 0 for record in records),
        completion_tokens=sum(record.completion_tokens or 0 for record in records),
        reasoning_tokens=sum(record.reasoning_tokens or 0 for record in records),
        comparison=comparison,
        notes=_notes(file, missing, harness, outcomes),
    )


def _whole(value: Json) -> int | None:
    return value if type(value) is int and value >= 0 else None


def _counted(names: Sequence[str]) -> dict[str, int]:
    return dict(Counter(sorted(names)).most_common())


def _graded(file: RunFile, grader: Grader, clipped: bool = False) -> Graded:
    groups = grouped(file, grader, failed=True)
    answered = grouped(file, grader, failed=False)
    score, without_failed = statistics.mean(groups), statistics.mean(answered)
    if clipped:
        score, without_failed = (
            statistics.clipped_mean([score for group in some for score in group])
            for some in (groups, answered)
        )
    readings = [_reading(record, grader) for record in file.records() if record.outcome != "failed"]
    by_choice = all(score in (0, 1) for group in groups for score in group)
    by_choice = by_choice and any(record.expected is not None for record in file.records())
    ballots = [_ballot(problem, grader) for problem in file.problems]
    sizes = _sizes(min((ballot.attempts for ballot in ballots), default=0)) if by_choice else []
    return Graded(
        score=score,
        over_attempts=statistics.error_over_attempts(groups),
        over_problems=statistics.error_over_problems(groups),
        without_failed=without_failed,
        unread=sum(reading is not None and reading.vote is None for reading in readings) if by_choice else 0,
        one_of_k=[_one_of(k, ballots) for k in sizes],
        majority_of_k=[_majority_of(k, ballots) for k in sizes] if _are_votable(file) else [],
    )


def _reading(record: Record, grader: Grader) -> Reading | None:
    return record.harness if grader == "harness" else record.strict


def _sizes(attempts: int) -> list[int]:
    """The numbers of attempts that figures are given for: powers of two, and all that every problem has."""
    return sorted({2**power for power in range(attempts.bit_length())} | {attempts} - {0})


def _one_of(k: int, ballots: list[_Ballot]) -> AtK:
    values = [statistics.pass_at(k, ballot.attempts, ballot.right) for ballot in ballots]
    return AtK(k, sum(values) / len(values))


@dataclass(frozen=True)
class _Ballot:
    """The votes of a problem's attempts: how many are right, how many give each wrong answer, and none."""

    right: int
    others: list[int]
    silent: int

    @property
    def attempts(self) -> int:
        return self.right + sum(self.others) + self.silent


def _are_votable(file: RunFile) -> bool:
    """False if a letter means other choices in other attempts, and the rows do not say which."""
    return all(
        len({record.expected for record in problem.records}) == 1
        or all(record.permutation is not None for record in problem.records if record.outcome != "failed")
        for problem in file.problems
    )


def _ballot(problem: Problem, grader: Grader) -> _Ballot:
    right, silent, others = 0, 0, Counter[str]()
    for record in problem.records:
        reading = _reading(record, grader)
        if record.outcome == "failed":
            silent += 1
        elif reading is None or reading.score is None:
            continue
        elif reading.score >= 1:
            right += 1
        elif reading.vote is None:
            silent += 1
        else:
            others[reading.vote] += 1
    return _Ballot(right, list(others.values()), silent)


def _majority_of(k: int, ballots: list[_Ballot]) -> AtK:
    found = [statistics.majority_at(k, ballot.right, ballot.others, ballot.silent) for ballot in ballots]
    return AtK(k, sum(one.value for one in found) / len(found), sum(one.tied for one in found))


def _metrics(records: list[Record]) -> dict[str, list[float]]:
    """HealthBench's scores of all rows, by name."""
    metrics: dict[str, list[float]] = {}
    for record in records:
        for name, score in record.metrics.items():
            metrics.setdefault(name, []).append(score)
    return metrics


def _tag(name: str, scores: list[float]) -> Tag:
    score, error = statistics.clipped_mean(scores), statistics.clipped_mean_error(scores)
    assert score is not None and error is not None  # a tag without scores is not there
    return Tag(name, score, error, len(scores))


def _reasoning(records: list[Record]) -> dict[Outcome, Spread]:
    tokens: dict[Outcome, list[int]] = {"right": [], "wrong": [], "graded": [], "cut": [], "ungraded": []}
    for record in records:
        if record.outcome in tokens and record.reasoning_tokens is not None:
            tokens[record.outcome].append(record.reasoning_tokens)
    spreads = {outcome: statistics.spread(values) for outcome, values in tokens.items()}
    return {outcome: found for outcome, found in spreads.items() if found is not None}


def _notes(file: RunFile, missing: int | None, harness: Graded, outcomes: Counter[Outcome]) -> list[str]:
    notes = []
    records = list(file.records())
    if not records:
        return ["There are no rows yet, so there are no figures."]
    if missing:
        notes.append(
            f"{_count(missing, 'attempt')} missing: the run is not finished. Short answers are done first, "
            "and they are right more often: until then scores tend to be too high."
        )
    elif missing is None:
        notes.append(f"{file.path.name}.run.json does not say how many attempts there are to be.")
    if outcomes["failed"]:
        notes.append(
            f"{_count(outcomes['failed'], 'request')} failed and count as wrong, as in the harness, which "
            "takes a failed request for a blank answer."
        )
    cut = sum(record.finish_reason == "length" for record in records)
    limits = [limit for name in ("max_tokens", "max_length") if (limit := _whole(file.run.get(name)))]
    if cut and limits and min(limits) < MAX_TOKENS:
        notes.append(
            f"{_count(cut, 'answer')} cut by the limit of {min(limits):,} tokens. The published runs allow "
            f"{MAX_TOKENS:,}, where some of these might have been right."
        )
    if outcomes["ungraded"]:
        notes.append(f"{_count(outcomes['ungraded'], 'answer')} without a grade: left out of all scores.")
    if harness.score is not None and harness.over_attempts is None:
        notes.append(
            "One attempt at each problem: how far another run of the same problems would differ is unknown."
        )
    if harness.score in (0.0, 1.0) and all(record.blank_score == harness.score for record in records):
        count = len(file.problems)
        bound = 1 - _SURPRISE ** (1 / count)
        said = f"above {bound:.1%}" if harness.score == 0 else f"below {1 - bound:.1%}"
        notes.append(
            f"All attempts are {'wrong' if harness.score == 0 else 'right'}. A standard error of 0 is no "
            f"certainty then: with {_count(count, 'problem')}, only a true score {said} would be surprising "
            "(one-sided, at the level 5%)."
        )
    elif 1 <= len(file.problems) < _FEW:
        notes.append(f"{_count(len(file.problems), 'problem')}: too few for standard errors to be trusted.")
    if not _are_votable(file):
        notes.append(
            "The rows do not say which choice a letter stood for, so majorities (cons@k) cannot be counted."
        )
    return notes


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'s' * (number != 1)}"
