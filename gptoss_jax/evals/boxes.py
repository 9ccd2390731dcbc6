r"""Boxes of LaTeX, `\boxed{…}`, read with their braces balanced."""

from __future__ import annotations

import re
from collections.abc import Iterator

_BOX = re.compile(r"\\(?:boxed|fbox|framebox)\s{0,9}\{")
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
_WRAPPED = re.compile(r"\\(?:text|textbf|textrm|mathbf|mathrm|boldsymbol|bf|rm)\s?\{([^{}]*)\}")
_SPACES = re.compile(r"\\[,;:! ]|\\q?quad|\\(?:display|text)style(?![a-zA-Z])|[\s$~]")
_LONGEST = 200
"""The most characters of a box that holds just an answer. No more of a longer one is read."""


def balanced_boxes(text: str) -> Iterator[str]:
    """The contents of all boxes that are not inside another; "" for one that is never closed."""
    end = 0
    for opening in _BOX.finditer(text):
        if opening.start() < end:
            continue
        depth, end = 1, len(text)
        for brace in _BRACE.finditer(text, opening.end()):
            depth += {"{": 1, "}": -1}.get(brace[0], 0)
            if not depth:
                end = brace.end()
                break
        yield "" if depth else text[opening.end() : end - 1]


def bare(box: str) -> str:
    r"""A box's content without spaces, dollar signs, and commands such as `\text{…}` around its parts."""
    if len(box) > _LONGEST:
        return ""
    while (inner := _WRAPPED.sub(r"\1", box)) != box:
        box = inner
    return _SPACES.sub("", box)
