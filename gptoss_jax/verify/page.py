"""The report: one page of plain text for an issue, and JSON."""

from __future__ import annotations

import collections
import textwrap
from collections.abc import Callable, Iterator, Sequence

from gptoss_jax.verify.rows import Row, Status

_WIDTH = 110
_VERDICTS = {
    True: "This installation computes gpt-oss on this device, as far as these checks see.",
    False: "Do not rely on answers of this installation before what failed is understood.",
}


def passed(rows: Sequence[Row]) -> bool:
    """True if nothing failed."""
    return not any(row.status == "failed" for row in rows)


def page(rows: Sequence[Row], seconds: float, clean: Callable[[str], str]) -> str:
    """The page, in Markdown that reads well as it is; clean: makes text fit for an issue."""
    counts = collections.Counter(row.status for row in rows)
    verdict = "PASSED" if passed(rows) else "FAILED"
    lines = [
        f"# gptoss-jax verify: {verdict}",
        "",
        f"{counts['passed']} passed, {counts['failed']} failed, {counts['skipped']} skipped, in "
        f"{seconds:.0f} s.",
        _VERDICTS[passed(rows)],
    ]
    for status, title in (("failed", "Failed"), ("passed", "Passed"), ("skipped", "Not checked")):
        lines += _section(rows, status, title)  # type: ignore[arg-type]
    for row in rows:
        if row.lines:
            lines += ["", f"## {row.name[0].upper()}{row.name[1:]}", "", *(f"    {one}" for one in row.lines)]
    return "\n".join(clean(line).rstrip() for line in lines) + "\n"


def _section(rows: Sequence[Row], status: Status, title: str) -> Iterator[str]:
    found = [row for row in rows if row.status == status]
    if not found:
        return
    yield from ("", f"## {title}", "")
    for row in found:
        text = f"- **{row.name}**: {row.measured}"
        text = text.removesuffix(".")
        text += f" (allowed: {row.allowed}). " if row.allowed else ". "
        text += f"{row.meaning[:1].upper()}{row.meaning[1:]}." if row.meaning else ""
        yield from textwrap.wrap(text, _WIDTH, subsequent_indent="  ", break_long_words=False)


def as_json(rows: Sequence[Row], seconds: float, clean: Callable[[str], str]) -> object:
    """The whole report."""
    found = {
        "passed": passed(rows),
        "seconds": round(seconds, 3),
        "checks": [row.as_json() for row in rows],
    }
    return _cleaned(found, clean)


def _cleaned(value: object, clean: Callable[[str], str]) -> object:
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, dict):
        return {clean(str(key)): _cleaned(one, clean) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_cleaned(one, clean) for one in value]
    return value
