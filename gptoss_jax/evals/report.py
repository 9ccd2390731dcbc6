"""The figures of a run as JSON and as text for a terminal."""

from __future__ import annotations

import dataclasses
import json
import os
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from gptoss_jax.evals.figures import Figures, figures_of
from gptoss_jax.evals.page import page_of
from gptoss_jax.evals.published import LEVEL, Comparison
from gptoss_jax.evals.records import Problem, RunFile, read_run
from gptoss_jax.evals.types import EvaluationError
from gptoss_jax.evals.wording import Table, comparison, progress, tables, title
from gptoss_jax.terminal import columns, display_width, printable, wrapped
from harmony.json_types import JsonObject

_WIDEST = 100
"""Columns of the widest paragraph."""
_MOST_ROWS = 16
"""Rows of a table, as far as the terminal shows them. The page and the JSON have all."""


def write_report(path: Path) -> str:
    """Writes OUT.report.json and OUT.html beside the rows OUT.jsonl of a run, finished or not.

    A file is replaced when its new content is whole.

    Returns:
        The figures as text for the terminal, with the paths of both files.

    Raises:
        EvaluationError: a file cannot be read or written, or the rows are none of an evaluation.
    """
    run = read_run(path)
    figures = figures_of(run)
    stem = path.with_suffix("") if path.suffix == ".jsonl" else path
    json_path, page_path = (stem.with_name(stem.name + end) for end in (".report.json", ".html"))
    document = json.dumps(as_json(run, figures), indent=2, allow_nan=False) + "\n"
    _replace(json_path, [document])
    _replace(page_path, page_of(run, figures))
    files = [("figures", json_path), ("every answer", page_path)]
    return as_text(run, figures) + "\n\n" + "\n".join(f"{name:<14}{file}" for name, file in files)


def _replace(path: Path, parts: Iterable[str]) -> None:
    """Writes a file beside `path` and renames it, so that there is never half a file there."""
    part = path.with_name(path.name + ".part")
    try:
        try:
            with part.open("w", encoding="utf-8", newline="") as file:
                file.writelines(parts)
            os.replace(part, path)
        except BaseException:
            part.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise EvaluationError(f"cannot write {path}: {error.strerror or error}") from None


def as_json(run: RunFile, figures: Figures) -> JsonObject:
    """All figures as JSON. Scores, shares and errors are from 0 to 1; what is unknown is null."""
    found: JsonObject = json.loads(json.dumps(dataclasses.asdict(figures)))
    beside = figures.comparison
    compared: JsonObject = {"sentence": comparison(figures)}
    if isinstance(beside, Comparison):
        compared |= {
            "published": dataclasses.asdict(beside.published),
            "difference": beside.difference,
            "standard_error": beside.error,
            "standard_error_is_bound": beside.is_bound,
            "level": LEVEL,
            "noise_explains": beside.noise_explains,
        }
    return {
        "title": title(run.run),
        "run": run.run,
        "missing": figures.missing,
        **found,
        "comparison": compared,
        "by_problem": [_problem(problem) for problem in run.problems],
    }


def _problem(problem: Problem) -> JsonObject:
    records = problem.records
    scores = [record.blank_score for record in records if record.blank_score is not None]
    known = [record.reasoning_tokens for record in records if record.reasoning_tokens is not None]
    return {
        "problem": problem.name,
        "attempts": len(records),
        "score": sum(scores) / len(scores) if scores else None,
        "outcomes": dict(Counter(record.outcome for record in records)),
        "mean_reasoning_tokens": sum(known) / len(known) if known else None,
    }


def as_text(run: RunFile, figures: Figures) -> str:
    """The figures as text for a terminal: short lines, aligned columns."""
    parts = [f"{_line(title(run.run))}\n{progress(figures)}"]
    drawn = [_drawn(table) for table in tables(figures)]
    if drawn:
        drawn.insert(1, _paragraph(comparison(figures)))
    parts += [*drawn, *map(_paragraph, figures.notes)]
    return "\n\n".join(parts)


def _paragraph(text: str) -> str:
    return "\n".join(wrapped(printable(text), min(_WIDEST, columns())))


def _drawn(table: Table) -> str:
    """A table as lines: names to the left, figures to the right."""
    shown = table.rows[:_MOST_ROWS]
    cells = [[_line(cell) for cell in row] for row in (table.head, *shown)]
    widths = [max(map(display_width, column)) for column in zip(*cells, strict=True)]
    lines = [
        "   ".join(
            _padded(cell, width, left=column == 0)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in cells
    ]
    if len(shown) < len(table.rows):
        lines.append(f"and {len(table.rows) - len(shown)} more")
    if table.note:
        lines.append(_paragraph(table.note))
    return "\n".join(lines)


def _line(text: str) -> str:
    """A text on one line."""
    return printable(text).replace("\n", "\\n").replace("\t", "\\t")


def _padded(cell: str, width: int, *, left: bool) -> str:
    space = " " * (width - display_width(cell))
    return cell + space if left else space + cell
