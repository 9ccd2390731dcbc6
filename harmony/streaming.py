"""`StreamableParser`, the strict parser: it takes one token at a time, as openai-harmony's does.

It raises where openai-harmony raises. A sampling loop that must not fail uses `recovery.RecoveringParser`.
"""

from __future__ import annotations

import functools
from enum import Enum
from operator import index
from typing import SupportsIndex

from .errors import HarmonyError
from .header import Header, parse_header, parse_leading_header
from .json_types import JsonObject
from .messages import Message, Role
from .token_ids import MAX_ID, token_id
from .tokenizer import Tokenizer

REPLACEMENT = "\ufffd"

# A stream has few different headers. Only short ones are kept: a malformed one may be as long as the stream.
_MAX_CACHED = 200
_parsed_header = functools.lru_cache(maxsize=1024, typed=True)(parse_header)


class StreamState(Enum):
    """Where the parser is: between messages, in a header, or in a content."""

    EXPECT_START = "ExpectStart"
    HEADER = "Header"
    CONTENT = "Content"


class StreamableParser:
    """Parses a completion token by token. Raises HarmonyError for malformed tokens."""

    def __init__(self, encoding: Tokenizer, role: Role | None, *, strict: bool = True) -> None:
        """With a `role`, the tokens start after `<|start|>role`; with None, at `<|start|>`.

        With `strict=False` a header that ends in a stop token becomes a message with the header's text as
        content.
        """
        self._encoding = encoding
        self._texts = encoding.known_texts
        self._size = len(self._texts)
        self._stop_tokens = frozenset(encoding.stop_tokens())
        self._header_ends = {encoding.message} if strict else {encoding.message, *self._stop_tokens}
        self._next_role = role
        self._in_header = role is not None
        self._tokens: list[SupportsIndex] = []
        self._messages: list[Message] = []
        self._header_tokens: list[int] = []
        self._header: Header | None = None  # of the message whose content is being read
        self._deltas: list[str] = []
        # The deltas, as long as a token's text can simply be appended to them; else None.
        self._plain: list[str] | None = None
        self._last_delta: str | None = None
        # The bytes of an unfinished character; and all tokens from the first unknown one on: openai-harmony
        # shows none of them until the message ends.
        self._pending = b""
        self._unknown: list[int] = []

    def process(self, token: SupportsIndex) -> StreamableParser:
        """Takes one token, an integer of any type, and returns the parser itself.

        Raises HarmonyError for a malformed header, TypeError if the token is not an integer, and
        TokenRangeError if it cannot be a token id.
        """
        plain = self._plain
        if plain is not None:
            try:
                text = self._texts[token] if 0 <= token < self._size else None  # type: ignore[operator]
            except (TypeError, ValueError):
                text = None  # not an integer, or one that cannot be compared; `token_id` decides
            if text is not None:
                self._tokens.append(token)
                plain.append(text)
                self._last_delta = text
                return self
        if type(token) is not int or not 0 <= token <= MAX_ID:
            token = token_id(token)
        self._tokens.append(token)
        if self._in_header and token not in self._header_ends:
            self._header_tokens.append(token)
            return self
        self._take(token)
        is_whole = self._header is not None and not self._pending and not self._unknown
        self._plain = self._deltas if is_whole else None
        return self

    def _take(self, token: int) -> None:
        """Takes a token whose text cannot simply be appended to the content."""
        if self._header is not None:
            if token in self._stop_tokens:
                self._close(self._header)
            else:
                self._last_delta = self._take_content(token)
        elif not self._in_header:
            if token != self._encoding.start:
                raise HarmonyError(
                    f"Unexpected token {token} while expecting start token {self._encoding.start}"
                )
            self._in_header = True
            self._header_tokens = []
        elif token == self._encoding.message:
            self._begin_content()
        else:
            self._close_header_without_content()

    def process_eos(self) -> StreamableParser:
        """Ends the stream: a message that is open becomes a finished one.

        Raises HarmonyError inside a header.
        """
        if self._in_header:
            raise HarmonyError("Unexpected EOS while waiting for message header to complete")
        if self._header is not None:
            self._close(self._header)
        return self

    def _begin_content(self) -> None:
        self._in_header = False  # also after a header that raises: the parser then expects `<|start|>`
        try:
            text = self._encoding.decode_utf8(self._header_tokens)
        except HarmonyError:
            raise HarmonyError("could not decode header") from None
        is_usual = len(text) <= _MAX_CACHED
        self._header = (_parsed_header if is_usual else parse_header)(text, self._next_role)
        self._next_role = None
        self._deltas = []

    def _close_header_without_content(self) -> None:
        if self._next_role is not None and self._header_tokens:
            text = self._encoding.decode_utf8(self._header_tokens)
            header, rest = parse_leading_header(text, self._next_role, reads_recipient=False)
            self._messages.append(header.message(rest or ""))
        self._in_header = False
        self._next_role = None

    def _take_content(self, token: int) -> str | None:
        """Adds a token's text to the content and returns it; None while a character is incomplete."""
        added = self._encoding.token_bytes(token)
        if added is None or self._unknown:
            self._unknown.append(token)
            return None
        self._encoding.token_text(token)  # puts it into `known_texts`, where `process` looks
        data = self._pending + added
        try:
            delta = data.decode()
            self._pending = b""
        except UnicodeDecodeError as error:
            delta = data[: error.start].decode()
            if error.reason == "unexpected end of data":
                self._pending = data[error.start :]
            else:
                if delta:
                    self._deltas.append(delta)
                self._deltas.append(REPLACEMENT)
                self._pending = data[error.end :]
                return delta + REPLACEMENT
        if not delta:
            return None
        self._deltas.append(delta)
        return delta

    def _close(self, header: Header) -> None:
        text = "".join(self._deltas)
        if self._unknown:
            text += REPLACEMENT
        text += self._pending.decode(errors="replace")
        self._messages.append(header.message(text))
        self._header = None
        self._plain = None
        self._last_delta = None
        self._pending = b""
        self._unknown = []

    @property
    def messages(self) -> list[Message]:
        """The finished messages, as a new list."""
        return list(self._messages)

    @property
    def tokens(self) -> list[int]:
        """All tokens so far, as a new list."""
        return list(map(index, self._tokens))

    @property
    def state(self) -> StreamState:
        """Where the parser is: between messages, in a header, or in a content."""
        if self._header is not None:
            return StreamState.CONTENT
        return StreamState.HEADER if self._in_header else StreamState.EXPECT_START

    @property
    def state_data(self) -> JsonObject:
        """The state as JSON data, with the tokens of the header or of the content so far."""
        data: JsonObject = {"state": self.state.value}
        if self._in_header:
            data["header_tokens"] = list(self._header_tokens)
        if self._header is not None:
            author = self._header.author.model_dump(mode="json", exclude_none=True)
            data["header"] = {**self._header._asdict(), "author": author}
            data["content_tokens"] = [
                token for delta in self._deltas for token in self._encoding.encode_ordinary(delta)
            ]
        return data

    @property
    def current_content(self) -> str:
        """The text of the open message so far, "" outside of one. Joined anew at each access."""
        return "".join(self._deltas) if self._header is not None else ""

    @property
    def last_content_delta(self) -> str | None:
        """The text that the last token added; None if it added none."""
        return self._last_delta

    @property
    def current_role(self) -> Role | None:
        """The role of the open message; outside of one, the role given for the next message, or None."""
        return self._next_role if self._header is None else self._header.author.role

    @property
    def current_channel(self) -> str | None:
        """The channel of the open message; None if it has none, and outside of one."""
        return None if self._header is None else self._header.channel

    @property
    def current_recipient(self) -> str | None:
        """The recipient of the open message; None if it has none, and outside of one."""
        return None if self._header is None else self._header.recipient

    @property
    def current_content_type(self) -> str | None:
        """The content type of the open message; None if it has none, and outside of one."""
        return None if self._header is None else self._header.content_type
