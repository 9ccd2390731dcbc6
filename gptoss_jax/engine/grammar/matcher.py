"""Following one completion token by token: what may come next, and whether it is whole."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from gptoss_jax.engine.grammar.asked import GrammarError

if TYPE_CHECKING:
    from llguidance import LLMatcher

    from gptoss_jax.engine.grammar.compiler import Compiled

MOST_DIGITS = 1_000
"""A longer run of digits in a JSON document is broken off, where anything else may follow: Python reads no
integer of more than 4,300, and a model that repeats itself would not end it."""

MOST_REASON = 300
_START = b"<|start|>assistant"


class Matcher:
    """Where one completion stands in its grammar. Starts after the prompt's `<|start|>assistant`.

    In text that is free, of analysis or a preamble, any token of text is allowed, whatever its bytes, and
    costs nothing. Not safe to share by threads. Methods raise GrammarError, with the reason, where
    llguidance gives up on a grammar that has grown too complex.
    """

    __slots__ = ("_closer", "_compiled", "_digits", "_finished", "_header", "_ll")

    def __init__(self, compiled: Compiled) -> None:
        self._compiled = compiled
        self._ll: LLMatcher = compiled.initial.deep_copy()
        self._finished = False
        # Within free text: the token that ends it. Within a header: its bytes. Else this is the document.
        self._closer: int | None = None
        self._header: bytes | None = _START
        self._digits = 0

    def copy(self) -> Matcher:
        """Another one that stands at the same place."""
        other = object.__new__(Matcher)
        for name in self.__slots__:
            setattr(other, name, getattr(self, name))
        other._ll = self._ll.deep_copy()
        return other

    @property
    def finished(self) -> bool:
        """Whether the stop token was accepted; no other can be."""
        return self._finished

    @property
    def complete(self) -> bool:
        """Whether what is constrained is whole: the stop token stands, or nothing else can come next."""
        if self._finished:
            return True
        if self._header is not None or self._closer is not None:
            return False
        return not (self.mask() & ~self._compiled.vocabulary.stops).any()

    def accept(self, tokens: Sequence[int]) -> int:
        """Takes the longest prefix of tokens that may come next; how many those are."""
        for count, token in enumerate(tokens):
            if not self._accept(token):
                return count
        return len(tokens)

    def force(self, tokens: Sequence[int]) -> bool:
        """Takes all of the tokens if they may come next, or none; whether it did."""
        trial = self.copy()
        if trial.accept(tokens) < len(tokens):
            return False
        for name in self.__slots__:
            setattr(self, name, getattr(trial, name))
        return True

    def mask(self) -> np.ndarray:
        """The tokens that may come next: uint32 [ceil(rows / 32)], bit `id % 32` of word `id // 32`.

        It may be shared by others and is not to be written to. All zeros once finished.
        """
        known = self._known_mask()
        if known is not None:
            return known
        mask = np.zeros(self._compiled.vocabulary.words, np.uint32)
        self._ll.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
        return self._checked(mask)

    def close_reasoning(self) -> list[int] | None:
        """The fewest tokens that lead from a message of free text, or its header, to what is constrained.

        They end with the header's `<|message|>`, or where the model has functions to choose from, before
        their names. None in the document, in a header that leads to it, and where the last message is free.
        """
        compiled, encoding = self._compiled, self._compiled.vocabulary.encoding
        if self._finished:
            return None
        if self._closer is not None:
            path = f"<|end|>{compiled.target}" if self._closer == encoding.end else None
        else:
            path = self._from_header()
        return None if path is None else encoding.encode(path, allowed_special="all")

    def _from_header(self) -> str | None:
        """What is left of the header up to the constrained part."""
        if self._header is None:
            return None
        target = self._compiled.target
        for path in (target, *(f"{free}<|end|>{target}" for free in self._compiled.free_headers)):
            if path.encode().startswith(self._header):
                return path.encode()[len(self._header) :].decode()
        return None

    def _accept(self, token: int) -> bool:
        vocabulary = self._compiled.vocabulary
        encoding = vocabulary.encoding
        if self._finished or not 0 <= token < vocabulary.rows:
            return False
        if self._closer is not None:
            if token < vocabulary.ordinary:
                return True
            if token != self._closer:
                return False
        elif self._digits >= MOST_DIGITS and not self.mask()[token // 32] >> (token % 32) & 1:
            return False
        if self._ll.try_consume_tokens([token]) != 1:
            self._raise_error()
            return False
        if token in (encoding.return_, encoding.call):
            self._finished = True
        elif self._closer is not None:
            self._closer, self._header = None, b""
        elif self._header is None:
            self._count_digits(token)
        elif token == encoding.message:
            self._header = None
            self._closer = self._closer_of_free_text()
        else:
            self._header += encoding.token_bytes(token) or b""
        return True

    def _closer_of_free_text(self) -> int | None:
        """The token that ends the message which begins, if it is free: its text is empty in the grammar."""
        encoding = self._compiled.vocabulary.encoding
        closers = [encoding.end, *([encoding.return_] if self._compiled.final_is_free else [])]
        return next((token for token in closers if self._ll.validate_tokens([token])), None)

    def _count_digits(self, token: int) -> None:
        if not self._compiled.is_json:
            return
        text = self._compiled.vocabulary.encoding.token_bytes(token) or b""
        trailing = len(text) - len(text.rstrip(b"0123456789"))
        self._digits = trailing + self._digits if trailing == len(text) else trailing

    def _known_mask(self) -> np.ndarray | None:
        """The mask where llguidance need not be asked."""
        vocabulary = self._compiled.vocabulary
        if self._finished:
            return vocabulary.nothing
        return None if self._closer is None else vocabulary.text_until[self._closer]

    def _checked(self, mask: np.ndarray) -> np.ndarray:
        """A mask as llguidance computed it; long runs of digits are broken off in place."""
        self._raise_error()
        if self._digits >= MOST_DIGITS:
            rest = mask & ~self._compiled.vocabulary.digits
            if rest.any():
                mask[:] = rest
        return mask

    def _raise_error(self) -> None:
        if self._ll.is_error():
            raise GrammarError(f"the grammar cannot be followed: {reason_of(self._ll)}")


def reason_of(failed: LLMatcher) -> str:
    """Why llguidance gave up, in one line, without the lines of source that it quotes."""
    error = failed.get_error()
    if "NoExtensionBias" in error:
        return "no text can meet it from here on"
    line = " ".join(re.split(r"\n +\d+ \| ", error)[0].split()).removesuffix(" <non-verbose/>")
    return line if len(line) <= MOST_REASON else f"{line[: MOST_REASON - 1]}…"
