"""Follows one completion under its grammar, token by token."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from gptoss_jax.engine.grammar.spec import GrammarError
from gptoss_jax.engine.grammar.vocabulary import Vocabulary
from harmony import Cursor

if TYPE_CHECKING:
    from llguidance import LLMatcher

MAX_DIGITS = 1_000
"""After this many digits in a row, a JSON document must continue with another character if it can. Python
reads no integer of more than 4,300 digits, and a model that repeats itself would never end it."""

MAX_REASON = 300
_LIBRARY_OPTION = re.compile(r"\.? Enable '\w+' option [^.]*\.?$")
"""Advice to set an option of llguidance, which no request can set."""


@dataclasses.dataclass(frozen=True)
class Compiled:
    """A compiled grammar, from which each sequence's `Matcher` is made.

    vocabulary: the tokens.
    initial: llguidance's matcher before the first token. It is copied, never advanced.
    free_headers: the headers of messages with any text.
    target: the header of the constrained message, or its beginning if there are several functions.
    final_is_free: True if the final message may be any text.
    calls_are_free: True if calls of tools that are no functions are possible, which may be any text.
    is_json: True if any document is JSON.
    """

    vocabulary: Vocabulary
    initial: LLMatcher
    free_headers: tuple[str, ...]
    target: str
    final_is_free: bool
    calls_are_free: bool
    is_json: bool


class Matcher:
    """The state of one completion under its grammar. It starts after the prompt's `<|start|>assistant`.

    In free text, such as analysis and preambles, every text token is allowed, and llguidance is not asked.
    A matcher is not thread-safe. Its methods raise GrammarError if the grammar becomes too complex for
    llguidance; the message says why.
    """

    __slots__ = ("_closer", "_compiled", "_cursor", "_digits", "_finished", "_ll")

    def __init__(self, compiled: Compiled) -> None:
        self._compiled = compiled
        self._ll: LLMatcher = compiled.initial.deep_copy()
        self._finished = False
        self._cursor = Cursor(compiled.vocabulary.encoding)
        # In free text, the token that ends it; None elsewhere.
        self._closer: int | None = None
        self._digits = 0

    def copy(self) -> Matcher:
        """Returns a matcher in the same state."""
        other = object.__new__(Matcher)
        for name in self.__slots__:
            setattr(other, name, getattr(self, name))
        other._ll = self._ll.deep_copy()
        other._cursor = self._cursor.copy()
        return other

    @property
    def finished(self) -> bool:
        """True if the stop token was accepted. Nothing is allowed after it."""
        return self._finished

    @property
    def complete(self) -> bool:
        """True if the constrained text is complete: the stop token was accepted, or only it may follow."""
        if self._finished:
            return True
        if self._closer is not None or not self._cursor.in_content:
            return False
        return not (self.mask() & ~self._compiled.vocabulary.stops).any()

    def accept(self, tokens: Sequence[int]) -> int:
        """Takes the longest prefix of `tokens` that the grammar allows. Returns its length."""
        for count, token in enumerate(tokens):
            if not self._accept(token):
                return count
        return len(tokens)

    def force(self, tokens: Sequence[int]) -> bool:
        """Takes all of the tokens and returns True if the grammar allows them; else takes none of them."""
        trial = self.copy()
        if trial.accept(tokens) < len(tokens):
            return False
        for name in self.__slots__:
            setattr(self, name, getattr(trial, name))
        return True

    def mask(self) -> np.ndarray:
        """The tokens that the grammar allows next: uint32 [⌈rows / 32⌉], bit `id % 32` of word `id // 32`.

        Matchers share such arrays, so the caller must not write to it. All zeros once finished.
        """
        known = self._known_mask()
        if known is not None:
            return known
        mask = np.zeros(self._compiled.vocabulary.words, np.uint32)
        self._ll.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
        return self._checked(mask)

    def close_reasoning(self) -> list[int] | None:
        """The fewest tokens that end the current free message and begin the constrained one.

        They end with the constrained message's `<|message|>`, or before the function's name if the model must
        choose one. Also possible within a free message's header. Returns None in a constrained message and
        its header, and if the message to come is free as well.
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
        """The text that leads from the current header to the constrained message; None if there is none."""
        header = self._cursor.header_text
        if header is None:
            return None
        target = self._compiled.target
        for path in (target, *(f"{free}<|end|>{target}" for free in self._compiled.free_headers)):
            if path.startswith(header):
                return path.removeprefix(header)
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
        elif self._digits >= MAX_DIGITS and not self.mask()[token // 32] >> (token % 32) & 1:
            return False
        if self._ll.try_consume_tokens([token]) != 1:
            self._raise_error()
            return False
        is_content = self._cursor.take(token)
        if token in (encoding.return_, encoding.call):
            self._finished = True
        elif self._closer is not None:
            self._closer = None
        elif is_content:
            self._count_digits(token)
        elif token == encoding.message:
            self._closer = self._closer_of_free_text()
        return True

    def _closer_of_free_text(self) -> int | None:
        """The token that ends the message that begins here, if it is free; None if it is constrained.

        Free text is empty in llguidance's grammar, so llguidance allows the token at once.
        """
        compiled, encoding = self._compiled, self._compiled.vocabulary.encoding
        closers = [encoding.end]
        closers += [encoding.return_] * compiled.final_is_free + [encoding.call] * compiled.calls_are_free
        return next((token for token in closers if self._ll.validate_tokens([token])), None)

    def _count_digits(self, token: int) -> None:
        if not self._compiled.is_json:
            return
        text = self._compiled.vocabulary.encoding.token_bytes(token) or b""
        trailing = len(text) - len(text.rstrip(b"0123456789"))
        self._digits = trailing + self._digits if trailing == len(text) else trailing

    def _known_mask(self) -> np.ndarray | None:
        """The mask if it is known without llguidance, else None."""
        vocabulary = self._compiled.vocabulary
        if self._finished:
            return vocabulary.nothing
        return None if self._closer is None else vocabulary.text_until[self._closer]

    def _checked(self, mask: np.ndarray) -> np.ndarray:
        """llguidance's mask, changed in place so that a long run of digits ends."""
        self._raise_error()
        if self._digits >= MAX_DIGITS:
            rest = mask & ~self._compiled.vocabulary.digits
            if rest.any():
                mask[:] = rest
        return mask

    def _raise_error(self) -> None:
        if self._ll.is_error():
            raise GrammarError(f"the grammar cannot be followed: {reason_of(self._ll)}")


def reason_of(failed: LLMatcher) -> str:
    """llguidance's error as one line, without the grammar's source that it quotes."""
    error = failed.get_error()
    if "NoExtensionBias" in error:
        return "no text can match it from here on"
    line = " ".join(re.split(r"\n +\d+ \| ", error)[0].split()).removesuffix(" <non-verbose/>")
    line = _LIBRARY_OPTION.sub("", line)
    return line if len(line) <= MAX_REASON else f"{line[: MAX_REASON - 1]}…"
