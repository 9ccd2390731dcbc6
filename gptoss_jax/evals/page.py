"""A run as one HTML page that needs nothing else: its figures, and every answer.

The page is made part by part: one row at a time is in memory. It has no script. What the model and the data
say is escaped, and the page's policy forbids scripts, pictures and connections, should an escape be missing.
"""

from __future__ import annotations

import html
import json
from collections import Counter
from collections.abc import Iterator
from importlib import resources

from gptoss_jax.evals.figures import Figures, Graded
from gptoss_jax.evals.records import Problem, Record, RunFile
from gptoss_jax.evals.wording import (
    OUTCOMES,
    UNKNOWN,
    Table,
    comparison,
    counted,
    graders,
    percent,
    points,
    progress,
    tables,
    title,
)
from gptoss_jax.terminal import printable
from harmony.json_types import Json, JsonObject

_MOST_MARKS = 64
"""A problem with more attempts has a bar instead of a mark for each."""
_LONGEST_TABLE = 12
"""A table with more rows is folded."""
_LONGEST_ANSWER = 80
"""Characters of an answer that a grader read, as far as they are shown."""

_FILTERS = {
    "wrong": "wrong",
    "cut": "cut by the limit",
    "failed": "failed",
    "ungraded": "without a grade",
    "unread": "unreadable to a grader",
    "differ": "graders differ",
}
"""What the list can be narrowed to: class → what it is called."""


def page_of(run: RunFile, figures: Figures) -> Iterator[str]:
    """The page, part by part.

    Raises:
        EvaluationError: the rows have changed since the figures were made.
    """
    name = _text(title(run.run))
    style = resources.files("gptoss_jax.evals").joinpath("page.css").read_text(encoding="utf-8")
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    yield (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        f'<meta name="viewport" content="width=device-width">\n<title>{name}</title>\n'
        f"<style>\n{style}</style>\n</head>\n<body>\n<header>\n<h1>{name}</h1>\n"
        f'<p class="quiet">{_text(progress(figures))}</p>\n</header>\n'
    )
    yield from _top(run, figures)
    yield from _problems(run, figures)
    yield "</body>\n</html>\n"


def _text(value: str) -> str:
    """Text as HTML. Characters that control or reorder text are shown as escapes."""
    return html.escape(printable(value))


# The figures


def _top(run: RunFile, figures: Figures) -> Iterator[str]:
    if figures.done:
        yield '<dl class="score">\n'
        yield from (_headline(name.capitalize(), graded) for name, graded in graders(figures))
        yield f'</dl>\n<p class="verdict">{_text(comparison(figures))}</p>\n'
    if figures.notes:
        items = "".join(f"<li>{_text(note)}</li>\n" for note in figures.notes)
        yield f'<ul class="notes">\n{items}</ul>\n'
    yield '<section class="figures">\n'
    yield from map(_figure, tables(figures))
    yield "</section>\n"
    facts = "".join(
        f"<tr><th>{_text(name)}</th><td><bdi>{_text(_plain(value))}</bdi></td></tr>\n"
        for name, value in run.run.items()
    )
    if facts:
        yield (
            f'<details class="more"><summary>What was run</summary>\n<table class="facts">\n{facts}</table>\n'
            "</details>\n"
        )


def _headline(name: str, graded: Graded) -> str:
    errors = [
        f"± {points(error)} {what}"
        for error, what in (
            (graded.over_attempts, "if run again"),
            (graded.over_problems, "with other problems"),
        )
        if error is not None
    ]
    return f"<div><dt>{name}</dt><dd>{percent(graded.score)}<small>{'<br>'.join(errors)}</small></dd></div>\n"


def _figure(table: Table) -> str:
    head = "".join(f'<th scope="col">{_text(cell)}</th>' for cell in table.head)
    rows = "".join(
        f'<tr><th scope="row">{_text(name)}</th>{"".join(f"<td>{_text(cell)}</td>" for cell in cells)}</tr>\n'
        for name, *cells in table.rows
    )
    drawn = f"<table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{rows}</tbody>\n</table>\n"
    if len(table.rows) > _LONGEST_TABLE:
        summary = counted(len(table.rows), table.head[0])
        return f'<details class="more"><summary>{_text(summary)}</summary>\n{drawn}</details>\n'
    note = f"<figcaption>{_text(table.note)}</figcaption>\n" if table.note else ""
    return f"<figure>\n{drawn}{note}</figure>\n"


# The problems


def _problems(run: RunFile, figures: Figures) -> Iterator[str]:
    if not run.problems:
        return
    yield "<h2>Problems</h2>\n"
    yield _filters(run)
    has_marks = any(_has_marks(problem) for problem in run.problems)
    if has_marks:
        seen = {record.outcome for record in run.records()}
        marks = "".join(
            f'<span class="marks"><a class="{outcome}"></a>{name}</span>'
            for outcome, name in OUTCOMES.items()
            if outcome in seen
        )
        yield f'<p class="key">{marks}</p>\n'
    has_answers = any(record.expected is not None for record in run.records())
    yield (
        '<div class="line heads"><span>problem</span>'
        f"<span>{'right answer' if has_answers else ''}</span>"
        f"<span>{'attempts' if has_marks else ''}</span><span>score</span><span>tokens</span></div>\n"
    )
    for problem in run.problems:
        yield from _problem(run, problem)


def _filters(run: RunFile) -> str:
    """Buttons that narrow the list to attempts of a kind; kinds that no attempt has are left out."""
    counts = Counter(kind for record in run.records() for kind in _kinds(record))
    buttons = [("all", "all", sum(1 for _ in run.records()))]
    buttons += [(kind, name, counts[kind]) for kind, name in _FILTERS.items() if counts[kind]]
    if len(buttons) == 1:
        return ""
    return (
        '<fieldset class="show">\n'
        + "".join(
            f'<input type="radio" name="show" id="show-{kind}"{" checked" * (kind == "all")}>'
            f'<label for="show-{kind}">{name} <small>{count:,}</small></label>\n'
            for kind, name, count in buttons
        )
        + "</fieldset>\n"
    )


def _kinds(record: Record) -> list[str]:
    """The names of `_FILTERS` that an attempt has."""
    kinds: list[str] = [record.outcome] if record.outcome in _FILTERS else []
    if record.outcome != "failed" and record.expected is not None:
        readings = [record.harness, *([] if record.strict is None else [record.strict])]
        kinds += ["unread"] * any(reading.vote is None for reading in readings)
        kinds += ["differ"] * (len({reading.score for reading in readings}) > 1)
    return kinds


def _has_marks(problem: Problem) -> bool:
    return len(problem.records) <= _MOST_MARKS and all(
        record.outcome != "graded" for record in problem.records
    )


def _problem(run: RunFile, problem: Problem) -> Iterator[str]:
    records = problem.records
    kinds = {kind: None for record in records for kind in _kinds(record)}
    scores = [record.blank_score for record in records if record.blank_score is not None]
    tokens = [record.reasoning_tokens for record in records if record.reasoning_tokens is not None]
    score = sum(scores) / len(scores) if scores else None
    expected = {record.expected for record in records}
    answer = expected.pop() if len(expected) == 1 else "differs"
    yield (
        f'<details class="problem{"".join(f" has-{kind}" for kind in kinds)}">\n<summary class="line">'
        f"<bdi>{_text(problem.name)}</bdi><bdi>{_text(answer or '')}</bdi>"
        f"{_marks(problem) if _has_marks(problem) else _bar(score)}"
        f"<span>{percent(score)}</span>"
        f"<span>{f'{sum(tokens) / len(tokens):,.0f}' if tokens else UNKNOWN}</span></summary>\n"
        '<div class="inside">\n'
    )
    one_prompt = len({record.prompt for record in records}) == 1
    for number, row in enumerate(run.rows(records)):
        if one_prompt and number == 0:
            yield _prompt(row)
        yield from _attempt(records[number], row, has_prompt=not one_prompt, is_open=len(records) == 1)
    yield "</div>\n</details>\n"


def _marks(problem: Problem) -> str:
    marks = "".join(
        f'<a class="{record.outcome}" href="#row-{record.line}" '
        f'title="attempt {record.attempt}: {OUTCOMES[record.outcome]}"></a>'
        for record in problem.records
    )
    return f'<span class="marks">{marks}</span>'


def _bar(score: float | None) -> str:
    width = min(1.0, max(0.0, score or 0.0))
    return f'<span class="bar"><i style="width:{100 * width:.0f}%"></i></span>'


# One attempt


def _attempt(record: Record, row: JsonObject, *, has_prompt: bool, is_open: bool) -> Iterator[str]:
    parts = [
        f"attempt {record.attempt}",
        f'<span class="outcome {record.outcome}">{OUTCOMES[record.outcome]}</span>',
    ]
    if record.answer is not None:
        parts.append(f"<bdi>{_text(_short(record.answer))}</bdi>")
    elif record.outcome == "graded":
        parts.append(percent(record.harness.score))
    tokens = [
        f"{count:,} {what}"
        for count, what in ((record.reasoning_tokens, "reasoning"), (record.completion_tokens, "generated"))
        if count is not None
    ]
    end = f'<span class="tokens">{", ".join(tokens)}{" tokens" * bool(tokens)}</span>'
    kinds = " ".join(dict.fromkeys([record.outcome, *_kinds(record)]))
    yield (
        f'<details class="attempt {kinds}"{" open" * is_open}><summary>'
        f"{''.join(f'<span>{part}</span>' for part in parts)}{end}</summary>\n"
        f'<div class="body" id="row-{record.line}">\n'
    )
    if has_prompt:
        yield _prompt(row)
    reasoning, text = (_plain(row.get(name)) for name in ("reasoning", "text"))
    if reasoning:
        yield (
            f'<details class="thought"><summary>Reasoning, {len(reasoning):,} characters</summary>\n'
            f'<div class="say">{_text(reasoning)}</div></details>\n'
        )
    if text:
        yield f'<h3>Answer</h3>\n<div class="say">{_text(text)}</div>\n'
    elif record.outcome != "failed":
        yield "<h3>The answer is empty.</h3>\n"
    yield _grades(record, row)
    details = row.get("details")
    if isinstance(details, dict):
        yield from _details(details)
    yield "</div>\n</details>\n"


def _prompt(row: JsonObject) -> str:
    messages = row.get("messages")
    parts = []
    for message in messages if isinstance(messages, list) else []:
        fields = message if isinstance(message, dict) else {"content": message}
        role = _plain(fields.get("role")) or "message"
        parts.append(
            f"<h3>{_text(role.capitalize())}</h3>\n"
            f'<div class="say">{_text(_plain(fields.get("content")).strip())}</div>\n'
        )
    return "".join(parts)


def _grades(record: Record, row: JsonObject) -> str:
    lines = []
    if record.expected is not None:
        lines.append(("right answer", record.expected, ""))
    first = "score" if record.strict is None else "grader of the harness"
    for name, key in ((first, "harness"), ("strict grader", "strict")):
        grade = row.get(key)
        if isinstance(grade, dict):
            answer, score = grade.get("answer"), grade.get("score")
            read = "read nothing" if answer in (None, "") else f"read {_plain(answer)}"
            lines.append((name, read if record.expected is not None else "", _score(score)))
    if record.finish_reason:
        ended = {"stop": "the model ended its answer", "length": "cut: the limit of tokens was reached"}
        lines.append(("why it ended", ended.get(record.finish_reason, record.finish_reason), ""))
    seed = row.get("seed")
    if seed is not None:
        lines.append(("seed", _plain(seed), ""))
    rows = "".join(
        f'<tr><th scope="row">{name}</th><td><bdi>{_text(_short(what))}</bdi></td><td>{score}</td></tr>\n'
        for name, what, score in lines
    )
    error = row.get("error")
    if isinstance(error, dict):
        said = f"{_plain(error.get('code'))}: {_plain(error.get('message'))}"
        rows += f'<tr class="error"><th scope="row">error</th><td>{_text(said)}</td><td></td></tr>\n'
    return f'<table class="grades">\n{rows}</table>\n'


def _score(score: Json) -> str:
    return f"score {score:.4g}" if isinstance(score, int | float) else "no score"


def _details(details: JsonObject) -> Iterator[str]:
    """The rubric of an answer, and all else that is not shown yet, as JSON."""
    items = details.get("rubric_items")
    if isinstance(items, list):
        yield '<table class="rubric">\n'
        yield from (_item(item) for item in items if isinstance(item, dict))
        yield "</table>\n"
    others = {name: value for name, value in details.items() if name != "rubric_items"}
    if others:
        yield (
            '<details class="thought"><summary>Details</summary>\n'
            f'<div class="say">{_text(json.dumps(others, indent=2, ensure_ascii=False))}</div></details>\n'
        )


def _item(item: JsonObject) -> str:
    met = item.get("criteria_met") is True
    mark = '<span class="met">met</span>' if met else '<span class="unmet">not met</span>'
    explanation = _plain(item.get("explanation"))
    return (
        f"<tr><td>{mark}</td><td>{_text(_plain(item.get('points')))}</td>"
        f"<td>{_text(_plain(item.get('criterion')))}"
        f"{f'<small>{_text(explanation)}</small>' if explanation else ''}</td></tr>\n"
    )


def _plain(value: Json) -> str:
    """A JSON value for readers: text as it is, nothing for null, all else as JSON."""
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _short(text: str) -> str:
    """The beginning of a text that may be an answer, or anything."""
    return text if len(text) <= _LONGEST_ANSWER else text[:_LONGEST_ANSWER] + "…"
