"""An encoding in the form that llguidance takes, and masks that are needed often."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from harmony import HarmonyEncoding


class Vocabulary:
    """The tokens of a model with `rows` vocabulary rows. Rows without a token are never allowed."""

    def __init__(self, encoding: HarmonyEncoding, rows: int) -> None:
        from llguidance import LLTokenizer  # slow to import, and only grammars need it

        self.encoding = encoding
        self.rows = rows
        self.words = (rows + 31) // 32
        self.ordinary = min(len(encoding.ordinary_tokens), rows)
        tokens: Any = _Tokens(encoding, rows)  # llguidance takes any object with its attributes
        self.tokenizer = LLTokenizer(tokens)
        digits = [token for token in range(self.ordinary) if encoding.ordinary_tokens[token][:1].isdigit()]
        self.digits = self._mask(np.array(digits, int))
        """The tokens that begin with a digit."""
        text = self._mask(np.arange(self.ordinary))
        closers = (encoding.end, encoding.return_, encoding.call)
        self.only = {closer: self._mask(np.array([closer])) for closer in closers}
        """End token → mask of the end token alone."""
        self.text_until = {closer: _frozen(text | self.only[closer]) for closer in closers}
        """End token → mask of all text tokens and the end token."""
        self.stops = self._mask(np.array([encoding.return_, encoding.call]))
        self.nothing = _frozen(np.zeros(self.words, np.uint32))

    def _mask(self, tokens: np.ndarray) -> np.ndarray:
        bits = np.zeros(self.words * 32, np.uint8)
        bits[tokens] = 1
        # llguidance's order: bit id % 32 of word id // 32, in little-endian words.
        return _frozen(np.packbits(bits, bitorder="little").view(np.uint32))


def _frozen(mask: np.ndarray) -> np.ndarray:
    mask.flags.writeable = False
    return mask


class _Tokens:
    """The interface that llguidance needs of a tokenizer."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, encoding: HarmonyEncoding, rows: int) -> None:
        # llguidance never allows this token: all our grammars end in <|return|> or <|call|>.
        self.eos_token_id = encoding.end_of_text
        ordinary = encoding.ordinary_tokens[:rows]
        others = range(len(ordinary), rows)
        self.tokens = ordinary + [encoding.token_bytes(token) or b"" for token in others]
        self.special_token_ids = [token for token in others if encoding.is_special_token(token)]
        self._encode = encoding.encode_ordinary

    def __call__(self, text: str) -> list[int]:
        return self._encode(text)


@functools.lru_cache(maxsize=4)
def vocabulary_of(encoding: HarmonyEncoding, rows: int) -> Vocabulary:
    """The vocabulary of an encoding, cached: making gpt-oss's own takes about a second."""
    return Vocabulary(encoding, rows)
