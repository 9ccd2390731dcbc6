"""The figures of a run as words and tables, which the terminal and the page both show."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gptoss_jax.evals.data import is_sample
from gptoss_jax.evals.figures import Figures, Graded
from gptoss_jax.evals.published import Comparison
from gptoss_jax.evals.records import Outcome
from harmony.json_types import Json

NAMES = {"aime": "AIME 2025", "gpqa": "GPQA", "healthbench": "HealthBench"}
OUTCOMES: Mapping[Outcome, str] = {
    "right": "right",
    "wrong": "wrong",
    "graded": "answered",
    "cut": "cut by the limit",
    "failed": "failed",
    "ungraded": "without a grade",
}
UNKNOWN = "–"
_FIRST_TAGS = ("theme:", "axis:")
"""The tags of HealthBench that its paper reports."""


@dataclass(frozen=True)
class Table:
    """A table: its head, its rows, whose first cells are their names, and a sentence below it, or ""."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""


def percent(share: float | None) -> str:
    """A share from 0 to 1, such as "85.8%"."""
    return UNKNOWN if share is None else f"{100 * share:.1f}%"


def points(share: float | None) -> str:
    """A standard error of a share, in points of percent."""
    return UNKNOWN if share is None else f"{100 * share:.1f}"


def title(run: Mapping[str, Json]) -> str:
    """What was run, on one line: the evaluation, the model, the effort, a grader of one's own."""
    name = str(run.get("evaluation") or "An evaluation")
    parts = [NAMES.get(name, name)]
    data = run.get("data")
    if isinstance(data, dict) and is_sample(name, [str(digest) for digest in data.values()]):
        parts[0] = f"The sample of {parts[0]}"
    if run.get("subset") not in (None, "all"):
        parts[0] += f" {run['subset']}"
    if run.get("model"):
        parts.append(str(run["model"]).rstrip("/").rpartition("/")[2])
    if run.get("effort"):
        parts.append(f"{run['effort']} effort")
    grader = run.get("grader")
    if isinstance(grader, dict) and grader.get("comparable") is False:
        parts.append(f"graded by {grader.get('model')}, not comparable")
    return " · ".join(parts)


def progress(figures: Figures) -> str:
    """How far the run is, in one line."""
    parts = [f"{counted(figures.problems, 'problem')}"]
    if figures.attempts is not None:
        parts[0] += f", {counted(figures.attempts, 'attempt')} at each"
    if figures.missing is None:
        parts.append(f"{counted(figures.done, 'row')}")
    elif figures.missing:
        parts.append(f"{figures.done:,} of {figures.planned:,} done")
    else:
        parts.append(f"all {figures.done:,} done")
    if figures.failed:
        parts.append(f"{figures.failed:,} failed")
    return ", ".join(parts[:1]) + ": " + ", ".join(parts[1:])


def counted(number: int, noun: str) -> str:
    """A number with its noun: "1 problem", "2 problems"."""
    return f"{number:,} {noun}{'s' * (number != 1)}"


def tables(figures: Figures) -> list[Table]:
    """The tables of a run's figures. Those without a figure are left out."""
    if not figures.done:
        return []
    found = [_scores(figures), _tries(figures), _reasoning(figures), _ends(figures), _tags(figures)]
    return [table for table in found if table is not None]


def graders(figures: Figures) -> list[tuple[str, Graded]]:
    """The graders' names and figures."""
    if figures.strict is None:
        return [("scored as in the harness", figures.harness)]
    return [("grader of the harness", figures.harness), ("strict grader", figures.strict)]


def _scores(figures: Figures) -> Table:
    graded = [one for _, one in graders(figures)]
    has_bootstrap = figures.bootstrap_error is not None
    answers = figures.done - figures.failed
    rows = [
        ["score", *(percent(one.score) for one in graded)],
        ["± if run again", *(points(one.over_attempts) for one in graded)],
        ["± with other problems", *(points(one.over_problems) for one in graded)],
    ]
    if has_bootstrap:
        rows.append(["± as the harness gives it", points(figures.bootstrap_error)])
        rows[-1] += [UNKNOWN] * (len(graded) - 1)
    if figures.failed:
        rows.append(["score without failed requests", *(percent(one.without_failed) for one in graded)])
    if figures.harness.one_of_k and answers:
        rows.append(["answers it could not read", *(percent(one.unread / answers) for one in graded)])
    note = (
        "± is one standard error, in points: if the same problems were run again, and if there were other "
        "problems of the same kind, which contains the first."
    )
    if has_bootstrap:
        note += " The harness draws rows anew, with replacement, and takes the spread of their clipped means."
    return Table(["", *(name for name, _ in graders(figures))], rows, note)


def _tries(figures: Figures) -> Table | None:
    """What k attempts give; None with one attempt at each problem, or where scores lie between."""
    if len(figures.harness.one_of_k) < 2:
        return None
    head = ["tries", *(str(at.k) for at in figures.harness.one_of_k)]
    graded = figures.harness
    rows = [["one of them is right (pass@k)", *(percent(at.value) for at in graded.one_of_k)]]
    if graded.majority_of_k:
        rows.append(["most of them are right (cons@k)", *(percent(at.value) for at in graded.majority_of_k)])
    last, note = graded.majority_of_k[-1:], ""
    if last and last[0].tied:
        note = (
            f"With {last[0].k} tries the right answer shares the first place in "
            f"{counted(round(last[0].tied), 'problem')}: a tie of two counts as a half, and so on."
        )
    return Table(head, rows, note)


def _reasoning(figures: Figures) -> Table | None:
    if not figures.reasoning:
        return None
    rows = [
        [
            OUTCOMES[outcome],
            f"{spread.count:,}",
            *(f"{value:,.0f}" for value in (spread.mean, spread.median, spread.p90)),
        ]
        for outcome, spread in figures.reasoning.items()
    ]
    return Table(["reasoning tokens", "attempts", "mean", "median", "90% below"], rows)


def _ends(figures: Figures) -> Table:
    answers = figures.done - figures.failed
    rows = [
        [
            "cut by the limit of tokens" if name == "length" else name,
            f"{count:,}",
            percent(count / figures.done),
        ]
        for name, count in figures.finish_reasons.items()
    ]
    rows += [
        [f"error {code}", f"{count:,}", percent(count / figures.done)]
        for code, count in figures.errors.items()
    ]
    note = f"{figures.completion_tokens:,} tokens generated" if figures.completion_tokens and answers else ""
    return Table(["why answers ended", "attempts", "share"], rows, f"{note}." if note else "")


def _tags(figures: Figures) -> Table | None:
    if not figures.tags:
        return None
    ordered = sorted(figures.tags, key=lambda tag: (not tag.name.startswith(_FIRST_TAGS), tag.name))
    rows = [[tag.name, percent(tag.score), points(tag.error), f"{tag.rows:,}"] for tag in ordered]
    return Table(["tag", "score", "±", "rows"], rows, "± as the harness gives it.")


def comparison(figures: Figures) -> str:
    """The run beside the published score, in a sentence or two."""
    found = figures.comparison
    if not isinstance(found, Comparison):
        return found
    published = found.published
    return (
        f"{found.sentence} The published score: {published.source}, "
        f"{counted(published.attempts, 'attempt')} at each problem (the harness' default)."
    )
