"""A page as the model reads it: numbered lines, a part of which is in view."""

from __future__ import annotations

import dataclasses
import re

_WIDTH = 80
"""The longest line, in characters. The model cites by lines of about this length."""

WINDOW_BYTES = 4096
"""How much text is shown at once if the model does not say, in bytes of UTF-8: about 1024 tokens."""

_MOST_BYTES = 4 * WINDOW_BYTES
"""How much is shown at once at most."""

_MATCHES = 50
_MATCH_LINES = 4
"""How many matches of a search in a page are listed, and with how many lines each."""

_LINK = re.compile(r"【\d+†([^†】]*)(?:†[^†】]*)?】")
_SPACES = re.compile(r"[^\S\n]+")


@dataclasses.dataclass(frozen=True, slots=True)
class Link:
    """Where a link leads.

    address: the document's.
    line: the line to show; None for the beginning.
    """

    address: str
    line: int | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Page:
    """A page.

    address: the document's; empty for a list of results.
    title: what it is called.
    lines: its text.
    links: the links in it, by number.
    is_list: True for a list of results, in which nothing can be found.
    """

    address: str
    title: str
    lines: tuple[str, ...]
    links: tuple[Link, ...] = ()
    is_list: bool = False


def page_of(address: str, title: str, text: str, links: list[Link], *, is_list: bool = False) -> Page:
    """A page of a text, whose lines are wrapped."""
    lines = [part for line in text.strip("\n").split("\n") for part in _wrapped(line)]
    head = [] if is_list else ["", *_wrapped(f"URL: {address}"), ""]
    return Page(address, one_line(title) or address, tuple(head + lines), tuple(links), is_list)


def plain(text: str) -> str:
    """Text of a document, which can neither look like a link nor hide characters."""
    return text.replace("【", "〖").replace("】", "〗").replace("\u200b", "")


def one_line(text: str, limit: int = 200) -> str:
    """The text on one line, cut to `limit` characters."""
    line = " ".join(plain(text).split())
    return line if len(line) <= limit else line[: limit - 1] + "…"


def shown_page(page: Page, cursor: int, start: int, count: int | None) -> str:
    """The part of a page from line `start` on, with a header that says which it is.

    `count` is the number of lines; None for as many as `WINDOW_BYTES`. One line is always shown.
    """
    limit = WINDOW_BYTES if count is None else _MOST_BYTES
    shown: list[str] = []
    for number in range(start, len(page.lines) if count is None else min(start + count, len(page.lines))):
        line = f"L{number}: {page.lines[number]}"
        limit -= len(line.encode("utf-8", "replace")) + 1
        if limit < 0 and shown:
            break
        shown.append(line)
    last = len(page.lines) - 1
    where = f" ({one_line(page.address)})" if page.address else ""
    view = f"**viewing lines [{start} - {start + len(shown) - 1}] of {last}**"
    return "\n".join([f"[{cursor}] {page.title}{where}", view, "", *shown])


def found_in(page: Page, pattern: str) -> Page:
    """The matches of a pattern in a page, as a page: each with a link to its place. Case does not matter."""
    lines = [_LINK.sub(r"\1", line) for line in page.lines]
    wanted = _SPACES.sub(" ", pattern).strip().lower()
    parts: list[str] = []
    links: list[Link] = []
    number = 0
    while number < len(lines) and len(links) < _MATCHES:
        # A match may go over the end of a wrapped line.
        pair = lines[number].rstrip() + " " + (lines[number + 1] if number + 1 < len(lines) else "")
        at = _SPACES.sub(" ", pair).lower().find(wanted)
        if at < 0 or at > len(_SPACES.sub(" ", lines[number].rstrip())):
            number += 1
            continue
        snippet = "\n".join(lines[number : number + _MATCH_LINES])
        parts.append(f"# 【{len(links)}†match at L{number}】\n{snippet}")
        links.append(Link(page.address, number))
        number += _MATCH_LINES
    title = f"Find results for text: `{one_line(pattern)}` in `{page.title}`"
    text = "\n\n".join(parts) or f"No `find` results for pattern: `{one_line(pattern)}`"
    return page_of("", title, text, links, is_list=True)


def _wrapped(line: str) -> list[str]:
    """The line in parts of at most `_WIDTH` characters, broken at spaces where there are some."""
    parts = []
    start = 0
    while len(line) - start > _WIDTH:
        space = line.rfind(" ", start + 1, start + _WIDTH + 1)
        end = start + _WIDTH if space < 0 else space
        parts.append(line[start:end])
        start = end if space < 0 else end + 1
    return [*parts, line[start:]]
