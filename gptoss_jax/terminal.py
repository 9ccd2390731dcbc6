"""Text for terminals: escaped so that it cannot control the terminal, measured, wrapped and coloured."""

from __future__ import annotations

import functools
import json
import os
import shutil
import sys
import unicodedata
from collections.abc import Callable, Iterator

# Characters of `_ESCAPED` that are kept: line breaks, tabs, and the two joiners of words and emoji.
_KEPT = "\n\t\u200c\u200d"
# Unicode categories of characters that may control a terminal or hide text.
_ESCAPED = {"Cc", "Cf", "Cs", "Zl", "Zp"}

COLOURS = {
    "bold": "1",
    "dim": "2",
    "red": "31",
    "green": "32",
    "yellow": "33",
    "blue": "34",
    "magenta": "35",
    "cyan": "36",
}


class _Escapes(dict[int, str]):
    """Code point → how it is shown, for `str.translate`; filled in when a character first occurs."""

    def __init__(self, escape: Callable[[str], str]) -> None:
        super().__init__()
        self._escape = escape

    def __missing__(self, code: int) -> str:
        character = chr(code)
        is_escaped = unicodedata.category(character) in _ESCAPED and character not in _KEPT
        self[code] = self._escape(character) if is_escaped else character
        return self[code]


_ESCAPES = _Escapes(lambda character: character.encode("unicode_escape").decode())
_JSON_ESCAPES = _Escapes(lambda character: json.dumps(character)[1:-1])


def printable(text: str) -> str:
    """The text with control, formatting and direction characters escaped, such as `\\x1b`.

    Line breaks, tabs and the joiners of words and emoji are kept.
    """
    return text.translate(_ESCAPES)


def json_text(document: object) -> str:
    """Indented JSON, in which the characters that `printable` escapes are escaped as JSON does."""
    return json.dumps(document, ensure_ascii=False, indent=2).translate(_JSON_ESCAPES)


class Paint:
    """Colours text, if colours are on."""

    def __init__(self, choice: str) -> None:
        """`choice` is "always", "never" or "auto": only on a terminal, unless `NO_COLOR` is set."""
        refused = bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM") == "dumb"
        self._on = choice == "always" or (choice == "auto" and is_terminal() and not refused)

    def __call__(self, text: str, *names: str) -> str:
        """The text in the colours and weights that `names` lists, which are keys of `COLOURS`."""
        if not (self._on and text and names):
            return text
        return f"\x1b[{';'.join(COLOURS[name] for name in names)}m{text}\x1b[0m"


def is_terminal() -> bool:
    """Whether standard output is a terminal."""
    return sys.stdout is not None and sys.stdout.isatty()


def columns() -> int:
    """The terminal's width in columns, at least 20: `COLUMNS` if it is set, and 80 without a terminal."""
    return max(20, shutil.get_terminal_size((80, 24)).columns)


def write(data: str | bytes) -> None:
    """Writes to standard output; text is always written as UTF-8. Raises OSError if it is closed."""
    if sys.stdout is None:
        raise OSError("standard output is closed")
    sys.stdout.flush()
    sys.stdout.buffer.write(data.encode() if isinstance(data, str) else data)


@functools.cache
def _character_width(character: str) -> int:
    if unicodedata.category(character) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def display_width(text: str) -> int:
    """How many columns of a terminal a line takes."""
    return len(text) if text.isascii() else sum(map(_character_width, text))


def wrapped(text: str, width: int) -> Iterator[str]:
    """The text as lines of at most `width` columns, which must be at least 2. Only spaces are left out.

    A line is broken at a space if possible. What follows has the indentation of the line's beginning.
    """
    for line in text.expandtabs(4).split("\n"):
        yield from _wrapped_line(line, width)


def _wrapped_line(line: str, width: int) -> Iterator[str]:
    spaces = len(line) - len(line.lstrip(" "))
    indent = " " * (spaces if spaces <= width // 2 else 0)
    start, lead = 0, ""
    while (end := _fitting(line, start, width - len(lead))) < len(line):
        end = _break(line, max(start, spaces), end)
        yield lead + line[start:end]
        start = end
        while line[start : start + 1] == " ":
            start += 1
        if start == len(line):
            return
        lead = indent
    yield lead + line[start:]


def _break(line: str, start: int, end: int) -> int:
    """The best place to break up to `end`: the last space or beginning of a special token, else `end`."""
    best = max(line.rfind(" ", start, end + 1), line.rfind("<|", start, end + 2))
    return best if best > start else end


def _fitting(line: str, start: int, width: int) -> int:
    """The end of the longest part from `start` that fits into `width` columns; at least one character."""
    if line.isascii():
        return min(len(line), start + width)
    end, used = start, 0
    while end < len(line):
        used += _character_width(line[end])
        if used > width and end > start:
            return end
        end += 1
    return end
