"""Text → the tokens that `tiktoken` gives; for any text, in linear time and without crashing.

`tiktoken` does nearly all of the work. It has two weaknesses, which this module makes up for.

Making a `tiktoken.Encoding` of 200,000 tokens takes a quarter of a second. So the first texts are encoded
without it: `splitting` splits them into pieces, and the bytes of a piece are merged here.

`tiktoken` is not linear. It merges a piece of n bytes in n log n steps, in memory larger than any cache, and
a piece can be as long as the text. On a run of about a million spaces it panics, which `except Exception`
does not catch. So a long text is cut into chunks at places where a piece surely ends. Where there is no such
place nearby, a piece may be long. Then `splitting` finds the pieces, and a long piece is merged in blocks.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from .errors import shown
from .splitting import first_cut, may_have_long_pieces, pieces
from .surrogates import without_surrogates
from .vocabulary import PATTERN

if TYPE_CHECKING:
    import tiktoken

WARM_UP = 500_000
"""How many characters are encoded before `tiktoken` is made. That takes less time than making it."""

CHUNK = 4096
"""A long text is cut into chunks of at least so many characters and, if possible, at most twice as many."""

BLOCK = 1024
"""How many bytes of a long piece are merged at a time."""

_MAX_MERGED_HERE = 128
"""Length of the longest piece, in bytes, that `merged` merges: its time is quadratic."""
_COST_OF_MERGING = 8
"""Merging one byte here takes about as long as encoding so many characters whose pieces are tokens."""


class TextEncoder:
    """Byte-pair encoding of ordinary text. Safe to share between threads."""

    def __init__(
        self,
        name: str,
        tokens: Sequence[bytes],
        pattern: str = PATTERN,
        *,
        warm_up: int = WARM_UP,
        chunk: int = CHUNK,
        block: int = BLOCK,
    ) -> None:
        """`tokens` are the bytes of each token, by id; the id is the merge priority.

        All 256 single bytes must be there. `pattern` is the regular expression that splits text into pieces.
        With any other than that of `o200k_base`, texts go to `tiktoken` as they are, and its weaknesses
        remain. Tests set `warm_up`, `chunk` and `block` (see `WARM_UP`, `CHUNK`, `BLOCK`).
        """
        self._name = name
        self._tokens = tokens
        self._pattern = pattern
        self._left_to_warm_up = warm_up if pattern == PATTERN else 0
        self._chunk = chunk
        self._block = block
        self._max_short = -1  # after the warm-up: texts up to this length go to tiktoken as they are

    def encode(self, text: str) -> list[int]:
        """The tokens of a text, none of them special. Raises ValueError for lone surrogates."""
        if not text.isascii():
            text = without_surrogates(text)
        end, chunk = len(text), self._chunk
        if end <= self._max_short:
            return self._tiktoken.encode_ordinary(text)
        if end <= self._left_to_warm_up:
            self._left_to_warm_up -= end
            return self._encode_pieces(text)
        self._left_to_warm_up = 0
        if self._pattern != PATTERN:
            return self._encode_by_another_pattern(text)
        self._max_short = 2 * chunk
        tokens: list[int] = []
        done = seen = 0  # text[:done] is encoded; text[done:seen] has no long piece
        while end - seen > 2 * chunk:
            cut = first_cut(text, seen + chunk, seen + 2 * chunk)
            if cut is None:
                cut = first_cut(text, seen + 2 * chunk - 1, end) or end
                part = text[seen:cut]
                if may_have_long_pieces(part, chunk):
                    tokens += self._tiktoken.encode_ordinary(text[done:seen])
                    tokens += self._encode_pieces(part)
                    done = cut
            seen = cut
        return tokens + self._tiktoken.encode_ordinary(text[done:])

    @functools.cached_property
    def _ranks(self) -> dict[bytes, int]:
        return dict(zip(self._tokens, range(len(self._tokens)), strict=True))

    @functools.cached_property
    def _tiktoken(self) -> tiktoken.Encoding:
        import tiktoken

        self._left_to_warm_up = 0
        return tiktoken.Encoding(
            self._name, pat_str=self._pattern, mergeable_ranks=self._ranks, special_tokens={}
        )

    def _encode_by_another_pattern(self, text: str) -> list[int]:
        try:
            return self._tiktoken.encode_ordinary(text)
        except BaseException as error:
            if type(error).__name__ != "PanicException":  # it is a BaseException, and its class is not public
                raise
            raise ValueError(f"the pattern of {self._name} cannot split {shown(text)}: {error}") from None

    # Pieces

    def _encode_pieces(self, text: str) -> list[int]:
        tokens: list[int] = []
        rank_of = self._ranks.get
        for piece in pieces(text):
            token = rank_of(piece)
            if token is None:
                tokens += self._merged(piece)
            else:
                tokens.append(token)
        return tokens

    def _merged(self, piece: bytes) -> list[int]:
        """The tokens of a piece that is not a token."""
        if self._left_to_warm_up > 0 and len(piece) <= _MAX_MERGED_HERE:
            self._left_to_warm_up -= _COST_OF_MERGING * len(piece)
            return merged(piece, self._ranks)
        if len(piece) <= 2 * self._block:
            return self._tiktoken._encode_single_piece(piece)
        return self._merged_in_blocks(piece)

    # Long pieces
    #
    # A row of tokens is what a piece is merged to exactly if this holds for each pair of neighbours: merging
    # their bytes alone gives these two tokens. (The first merge across their boundary would happen in the two
    # alone as well.) So two rows that overlap in one token can be joined at it. Each block therefore begins
    # at a token of the block before it, some way from that block's end. If merging it gives the same token
    # first, the piece has the tokens of the earlier block up to there, and then those of the later one.

    def _merged_in_blocks(self, piece: bytes) -> list[int]:
        merge = self._tiktoken._encode_single_piece
        lengths = self._lengths
        # A block holds several tokens, however long they are. And it is longer than any token: then tiktoken
        # merges it and does not look it up.
        size = max(self._block, 8 * max(lengths))
        tokens: list[int] = []
        start, end = 0, len(piece)
        stop = end if end <= 2 * size else size
        part = piece[start:stop]
        block = merge(part)
        while stop < end:
            for eighths in (7, 4, 1):
                kept = max(1, len(block) * eighths // 8)
                joint = start + sum(lengths[token] for token in block[:kept])
                stop = end if end - joint <= 2 * size else joint + size
                next_part = piece[joint:stop]
                next_block = (
                    block if next_part == part else merge(next_part)
                )  # a repeated part is merged once
                if next_block[0] == block[kept]:
                    break
            else:
                return tokens + merge(piece[start:])
            tokens += block[:kept]
            start, part, block = joint, next_part, next_block
        return tokens + block

    @functools.cached_property
    def _lengths(self) -> list[int]:
        return list(map(len, self._tokens))


def merged(piece: bytes, ranks: Mapping[bytes, int]) -> list[int]:
    """The tokens of a piece, by byte-pair merging; `ranks` maps each token's bytes to its id.

    Begins with single bytes, and merges the two neighbours that make the token with the lowest id until no
    two make a token. The time is quadratic in the length of the piece.
    """
    none = len(ranks)
    starts = list(range(len(piece) + 1))
    made = [ranks.get(piece[start : start + 2], none) for start in starts[:-2]]
    while made:
        rank = min(made)
        if rank == none:
            break
        at = made.index(rank)
        del starts[at + 1], made[at]
        if at:
            made[at - 1] = ranks.get(piece[starts[at - 1] : starts[at + 1]], none)
        if at < len(made):
            made[at] = ranks.get(piece[starts[at] : starts[at + 2]], none)
    return [ranks[piece[start:stop]] for start, stop in pairwise(starts)]
