"""Text ↔ tokens: a vocabulary with harmony's special tokens.

The renderer and the parsers use it. `encoding.HarmonyEncoding` is a `Tokenizer` with their methods added.
"""

from __future__ import annotations

import functools
import operator
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, NoReturn, SupportsIndex

from . import vocabulary
from .errors import HarmonyError, TokenRangeError
from .surrogates import without_surrogates
from .token_ids import token_id, token_ids

if TYPE_CHECKING:
    from .text_encoder import TextEncoder


class Tokenizer:
    """Text to tokens and tokens to text. Immutable; safe to share."""

    def __init__(
        self,
        name: str,
        tokens: Sequence[bytes],
        special_tokens: Mapping[str, int],
        pattern: str = vocabulary.PATTERN,
    ) -> None:
        """`tokens` are the bytes of the ordinary tokens, by id; `special_tokens` maps text to id.

        Special tokens have higher ids than ordinary ones. `pattern` is the regular expression that splits
        text into the pieces that are merged.
        """
        self.name = name
        self._pattern = pattern
        self._special_tokens = dict(special_tokens)
        self._tokens = tokens
        self._ordinary = len(tokens)
        self._known_bytes: list[bytes | None] = [None] * self._ordinary
        self.known_texts: list[str | None] = [None] * self._ordinary
        """The texts of the ordinary tokens, by id.

        `token_text` fills it in; None: not decoded yet, or not UTF-8.
        """
        self._special_bytes = {token: text.encode() for text, token in special_tokens.items()}
        self.start = special_tokens["<|start|>"]
        self.channel = special_tokens["<|channel|>"]
        self.constrain = special_tokens["<|constrain|>"]
        self.message = special_tokens["<|message|>"]
        self.end = special_tokens["<|end|>"]
        self.return_ = special_tokens["<|return|>"]
        self.call = special_tokens["<|call|>"]
        self.end_of_text = special_tokens["<|endoftext|>"]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, {self.size} tokens)"

    @functools.cached_property
    def ordinary_tokens(self) -> list[bytes]:
        """The bytes of all ordinary tokens, by id."""
        return list(self._tokens)

    @functools.cached_property
    def _text(self) -> TextEncoder:
        """The encoder, made when the first text is encoded: parsing does not need it."""
        from .text_encoder import TextEncoder

        return TextEncoder(self.name, self._tokens, self._pattern)

    @property
    def size(self) -> int:
        """One more than the highest token id."""
        return max(self._special_bytes) + 1

    @functools.cached_property
    def special_tokens_set(self) -> set[str]:
        """The texts of all special tokens."""
        return set(self._special_tokens)

    @functools.cached_property
    def _special_prefix(self) -> str:
        return "<|" if all(text.startswith("<|") for text in self._special_tokens) else ""

    def is_special_token(self, token: SupportsIndex) -> bool:
        """True for the id of a special token, False for any other.

        Raises TypeError if it is not an integer.
        """
        return token_id(token) in self._special_bytes

    def token_bytes(self, token: SupportsIndex) -> bytes | None:
        """The bytes of a token, ordinary or special; None for an id outside the vocabulary."""
        token = operator.index(token)
        if 0 <= token < self._ordinary:
            data = self._known_bytes[token]
            if data is None:
                data = self._known_bytes[token] = self._tokens[token]
            return data
        return self._special_bytes.get(token)

    def token_text(self, token: SupportsIndex) -> str | None:
        """The text of an ordinary token; None for any other id, and for a part of a character."""
        token = operator.index(token)
        if not 0 <= token < self._ordinary:
            return None
        text = self.known_texts[token]
        if text is None:
            try:
                text = self.known_texts[token] = self._tokens[token].decode()
            except UnicodeDecodeError:
                return None
        return text

    def stop_tokens(self) -> list[int]:
        """The tokens that end a message: end, return, call."""
        return sorted((self.end, self.return_, self.call))

    def stop_tokens_for_assistant_actions(self) -> list[int]:
        """The tokens at which sampling stops: return, call."""
        return sorted((self.return_, self.call))

    def encode_ordinary(self, text: str) -> list[int]:
        """The tokens of a text, none of them special. Raises ValueError for lone surrogates."""
        return self._text.encode(text)

    def encode(
        self,
        text: str,
        *,
        allowed_special: Literal["all"] | Iterable[str] = frozenset(),
        disallowed_special: Literal["all"] | Iterable[str] | None = "all",
    ) -> list[int]:
        """The tokens of a text in which special tokens may be written out, as in `<|start|>`.

        Such text becomes the special token if it is in `allowed_special`. It raises HarmonyError if it is in
        `disallowed_special` ("all": every special token that is not allowed; None: no special token). Else it
        is ordinary text. A lone surrogate becomes U+FFFD.
        """
        # openai-harmony replaces lone surrogates here, and refuses them when it renders.
        text = without_surrogates(text, "replace")
        # Compiling a pattern of all special tokens takes longer than encoding a short text, so their common
        # beginning is looked for first.
        known = self.special_tokens_set if self._special_prefix in text else set()
        named = known if allowed_special == "all" else frozenset(allowed_special)
        allowed = known & named
        if disallowed_special == "all":
            disallowed_special = known - allowed
        disallowed = frozenset(disallowed_special or ())
        if disallowed:
            found = _any_of(disallowed).search(text)
            if found:
                _refuse_special_token(found.group())
        if not allowed:
            return self.encode_ordinary(text)
        tokens: list[int] = []
        # Splitting on a group yields text and special tokens in turn.
        for index, part in enumerate(_any_of(frozenset(allowed)).split(text)):
            tokens += [self._special_tokens[part]] if index % 2 else self.encode_ordinary(part)
        return tokens

    def decode_bytes(self, tokens: Iterable[SupportsIndex]) -> bytes:
        """The bytes of tokens: a list, an array or an iterator of integers of any type.

        Raises HarmonyError for an id outside the vocabulary, and TypeError for anything but an integer.
        """
        known, size = self._known_bytes, self._ordinary
        parts = []
        for token in token_ids(tokens):
            part = known[token] if token < size else None
            if part is None:
                part = self.token_bytes(token)
                if part is None:
                    raise HarmonyError(f"Invalid token for decoding: {token}")
            parts.append(part)
        return b"".join(parts)

    def decode_utf8(self, tokens: Iterable[SupportsIndex]) -> str:
        """The text of tokens.

        Raises HarmonyError for an id outside the vocabulary and for bytes that are not UTF-8.
        """
        try:
            return self.decode_bytes(tokens).decode()
        except TokenRangeError:
            raise
        except HarmonyError as error:
            raise HarmonyError(f"Could not decode tokens: Invalid token error: {error}") from None
        except UnicodeDecodeError as error:
            raise HarmonyError(f"Could not decode tokens: Invalid utf-8 sequence: {error}") from None

    def decode(self, tokens: Iterable[SupportsIndex], errors: str = "replace") -> str:
        """The text of tokens; `errors` says what becomes of bytes that are not UTF-8, as in `bytes.decode`.

        Raises HarmonyError for an id outside the vocabulary.
        """
        return self.decode_bytes(tokens).decode("utf-8", errors=errors)


@functools.lru_cache(maxsize=128)
def _any_of(texts: frozenset[str]) -> re.Pattern[str]:
    return re.compile(f"({'|'.join(map(re.escape, sorted(texts)))})")


def _refuse_special_token(token: str) -> NoReturn:
    raise HarmonyError(
        f"Encountered text corresponding to disallowed special token {token!r}.\n"
        "If you want this text to be encoded as a special token, "
        f"pass it to `allowed_special`, e.g. `allowed_special={{'{token}', ...}}`.\n"
        "If you want this text to be encoded as normal text, disable the check for this token "
        f"by passing `disallowed_special=(enc.special_tokens_set - {{'{token}'}})`.\n"
        "To disable this check for all special tokens, pass `disallowed_special=()`.\n"
    )
