"""Text → tokens through `tiktoken`, for any text: linear in time, never a crash, never a special token.

Two things in `tiktoken` are not linear. Its pattern's `\\s+(?!\\S)` backtracks once per character, and
panics (past `except Exception`) in a run of about a million spaces. Its merging takes n log n for a piece of
n bytes, with a heap that outgrows every cache, and a long run is one piece.
"""

from __future__ import annotations

import functools
import re
from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

import tiktoken

from .errors import shown
from .header import WHITE_SPACE
from .vocabulary import PATTERN

LONG_RUN = 100_000
"""Runs of spaces of different kinds from this length on are encoded apart from the text around them."""

BLOCK = 8192
"""So much of a run of one character is encoded; the rest follows from it. Many times the longest token."""

_LONGEST_PERIOD = 8
_LINE_BREAKS = "\r\n"
_SPACES = "".join(sorted(WHITE_SPACE.difference(_LINE_BREAKS)))


class _Period(NamedTuple):
    """What repeats in the tokens of a run of one character."""

    tokens: int
    characters: int


class _Cut(NamedTuple):
    """Characters taken out of a run."""

    place: int  # in bytes of the shortened text, amid what is left of the run
    period: _Period
    times: int


class TextEncoder:
    """Byte-pair encoding of ordinary text."""

    def __init__(
        self,
        name: str,
        tokens: Sequence[bytes],
        pattern: str = PATTERN,
        long_run: int = LONG_RUN,
        block: int = BLOCK,
    ) -> None:
        """`tokens` by id, which is their merge priority; the others are for tests with short runs."""
        self._tokens = tokens
        self._core = tiktoken.Encoding(
            name,
            pat_str=pattern,
            mergeable_ranks=dict(zip(tokens, range(len(tokens)), strict=True)),
            special_tokens={},
        )
        self._block = block
        self._long_run = long_run
        self._long_runs = re.compile(f"[{_SPACES}]{{{long_run},}}+")
        self._period = functools.lru_cache(maxsize=256)(self._period_of)

    def encode(self, text: str) -> list[int]:
        """The tokens of a text. Raises ValueError for lone surrogates."""
        text = _scalar_values(text)
        if len(text) < 2 * self._block:
            return self._core.encode_ordinary(text)
        shortened, cuts = self._shortened(text)
        tokens = self._encode_with_spaces(shortened)
        if not cuts:
            return tokens
        restored = self._restored(tokens, cuts)
        return self._encode_with_spaces(text) if restored is None else restored

    # Runs of one character
    #
    # How the pattern matches does not depend on the length of such a run, beyond the few characters at its
    # ends, if multiples of what repeats in its tokens are taken out. And tokens are the encoding of a piece
    # exactly if any two neighbours are the encoding of what they say together: repeating what is repeated
    # already brings no new neighbours. So a long run has the tokens of a shorter one, with more repetitions.

    def _shortened(self, text: str) -> tuple[str, list[_Cut]]:
        """The text without most of each run of one character, and what is missing."""
        kept: list[str] = []
        cuts: list[_Cut] = []
        block = self._block
        done = size = 0
        for start in range(0, len(text) - block + 1, block):
            character = text[start]
            run = character * block
            if start < done or text[start : start + block] != run:
                continue
            period = self._period(character)
            if period is None:
                continue
            end = start + block
            while text[end : end + block] == run:
                end += block
            rest = text[end : end + block]
            end += len(rest) - len(rest.lstrip(character))
            times = (end - start - block) // period.characters
            left = end - start - times * period.characters
            before = text[done:start]
            size += len(before.encode())
            cuts.append(_Cut(size + left // 2 * len(character.encode()), period, times))
            size += left * len(character.encode())
            kept += [before, character * left]
            done = end
        return "".join([*kept, text[done:]]), cuts

    def _restored(self, tokens: list[int], cuts: list[_Cut]) -> list[int] | None:
        """Adds the tokens of what was taken out; None where they do not repeat as they should."""
        ends = list(accumulate(len(self._tokens[token]) for token in tokens))
        parts = []
        done = 0
        for place, period, times in cuts:
            at = bisect_left(ends, place)
            repeated = tokens[at : at + period.tokens]
            if repeated != tokens[at - period.tokens : at]:
                return None
            parts += [tokens[done:at], repeated * times]
            done = at
        return [token for part in [*parts, tokens[done:]] for token in part]

    def _period_of(self, character: str) -> _Period | None:
        """What repeats in the middle of a long run of a character; None if nothing short does."""
        tokens = self._core.encode_ordinary(character * self._block)
        middle = len(tokens) // 2
        for length in range(1, _LONGEST_PERIOD + 1):
            repeated = tokens[middle : middle + length]
            if repeated == tokens[middle + length : middle + 2 * length]:
                size = sum(len(self._tokens[token]) for token in repeated)
                characters, rest = divmod(size, len(character.encode()))
                return None if rest else _Period(length, characters)
        return None

    # Runs of spaces of different kinds

    def _encode_with_spaces(self, text: str) -> list[int]:
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
