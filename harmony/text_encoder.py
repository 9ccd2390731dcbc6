"""Text → tokens through `tiktoken`, for any text: bounded in time, never a crash, never a special token."""

from __future__ import annotations

import re
from collections.abc import Sequence

import tiktoken

from .errors import shown
from .header import WHITE_SPACE
from .vocabulary import PATTERN

# `\s+(?!\S)` backtracks once per character, and `tiktoken` panics (past `except Exception`) when a run of
# spaces has about a million.
LONG_RUN = 100_000

_LINE_BREAKS = "\r\n"
_SPACES = "".join(sorted(WHITE_SPACE.difference(_LINE_BREAKS)))


class TextEncoder:
    """Byte-pair encoding of ordinary text."""

    def __init__(
        self, name: str, tokens: Sequence[bytes], pattern: str = PATTERN, long_run: int = LONG_RUN
    ) -> None:
        """`tokens` by id, which is their merge priority; runs of spaces from `long_run` on are cut out."""
        self._core = tiktoken.Encoding(
            name,
            pat_str=pattern,
            mergeable_ranks=dict(zip(tokens, range(len(tokens)), strict=True)),
            special_tokens={},
        )
        self._long_run = long_run
        self._long_runs = re.compile(f"[{_SPACES}]{{{long_run},}}+")

    def encode(self, text: str) -> list[int]:
        """The tokens of a text. Raises ValueError for lone surrogates."""
        text = _scalar_values(text)
        if len(text) < self._long_run:
            return self._core.encode_ordinary(text)
        tokens: list[int] = []
        done = 0
        for run in self._long_runs.finditer(text):
            following = text[run.end() : run.end() + 1]
            if following and following in _LINE_BREAKS:
                continue  # an alternative without backtracking takes a run with its line break
            # The pattern makes a run one piece, all but its last character if text follows.
            end = run.end() - len(following)
            tokens += self._core.encode_ordinary(text[done : run.start()])
            tokens += self._core._encode_single_piece(text[run.start() : end])
            done = end
        return tokens + self._core.encode_ordinary(text[done:])


def _scalar_values(text: str) -> str:
    """Joins surrogate pairs, which JSON escapes can leave behind, into characters."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        try:
            return text.encode("utf-16", "surrogatepass").decode("utf-16")
        except UnicodeDecodeError:
            raise ValueError(f"{shown(text)} is not Unicode text: it has a lone surrogate") from None
    return text
