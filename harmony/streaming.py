"""`StreamableParser`: the known library's parser, one token at a time.

It raises where that library raises. For sampling loops that must never fail use
`recovery.RecoveringParser`.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Any

from .errors import HarmonyError
from .header import Header, parse_header, parse_leading_header
from .messages import Message, Role

if TYPE_CHECKING:
    from .encoding import HarmonyEncoding

REPLACEMENT = "\ufffd"


class StreamState(Enum):
    """Where in a message the parser is."""

    EXPECT_START = "ExpectStart"
    HEADER = "Header"
    CONTENT = "Content"


class StreamableParser:
    """Parses a completion token by token."""

    def __init__(self, encoding: HarmonyEncoding, role: Role | None, *, strict: bool = True) -> None:
        """With a `role`, the tokens start after `<|start|>role`; without, at `<|start|>`.

        With `strict=False` a header that ends in a stop token becomes a message of its text.
        """
        self._encoding = encoding
        self._texts = encoding.known_texts
        self._size = len(self._texts)
        self._strict = strict
        self._stop_tokens = frozenset(encoding.stop_tokens())
        self._next_role = role
        self._in_header = role is not None
        self._tokens: list[int] = []
        self._messages: list[Message] = []
        self._header_tokens: list[int] = []
        self._header: Header | None = None  # of the message whose content is being read
        self._deltas: list[str] = []
        self._last_delta: str | None = None
        # Bytes that are not UTF-8 yet, and tokens from the first unknown one on, as that library keeps them.
        self._pending = b""
        self._unknown: list[int] = []

    def process(self, token: int) -> StreamableParser:
        """Takes one token. Raises HarmonyError where the format is broken."""
        self._tokens.append(token)
        if self._header is not None:
            text = self._texts[token] if 0 <= token < self._size else None
            if text is not None and not self._pending and not self._unknown:
                self._deltas.append(text)
                self._last_delta = text
            elif token in self._stop_tokens:
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
        elif not self._strict and token in self._stop_tokens:
            self._close_header_without_content()
        else:
            self._header_tokens.append(token)
        return self

    def process_eos(self) -> StreamableParser:
        """Ends the stream: closes a message's content. Raises HarmonyError inside a header."""
        if self._in_header:
            raise HarmonyError("Unexpected EOS while waiting for message header to complete")
        if self._header is not None:
            self._close(self._header)
        return self

    def _begin_content(self) -> None:
        self._in_header = False  # a header that cannot be read leaves the parser before the next start
        try:
            text = self._encoding.decode_utf8(self._header_tokens)
        except HarmonyError:
            raise HarmonyError("could not decode header") from None
        self._header = parse_header(text, self._next_role)
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
        self._encoding.token_text(token)  # from now on `process` finds it
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
        self._last_delta = None
        self._pending = b""
        self._unknown = []

    @property
    def messages(self) -> list[Message]:
        """The finished messages."""
        return list(self._messages)

    @property
    def tokens(self) -> list[int]:
        """All tokens so far."""
        return list(self._tokens)

    @property
    def state(self) -> StreamState:
        """Where in a message the parser is."""
        if self._header is not None:
            return StreamState.CONTENT
        return StreamState.HEADER if self._in_header else StreamState.EXPECT_START

    @property
    def state_data(self) -> dict[str, Any]:
        """The state as JSON data, with the tokens of the header or of the content so far."""
        data: dict[str, Any] = {"state": self.state.value}
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
        """The text of the message so far; its length is the cost of reading it."""
        return "".join(self._deltas) if self._header is not None else ""

    @property
    def last_content_delta(self) -> str | None:
        """The text that the last token added; None if it added none."""
        return self._last_delta

    @property
    def current_role(self) -> Role | None:
        """The role of the current message, or the role given for the next."""
        return self._next_role if self._header is None else self._header.author.role

    @property
    def current_channel(self) -> str | None:
        """The channel of the message whose content is being read."""
        return None if self._header is None else self._header.channel

    @property
    def current_recipient(self) -> str | None:
        """The recipient of the message whose content is being read."""
        return None if self._header is None else self._header.recipient

    @property
    def current_content_type(self) -> str | None:
        """The content type of the message whose content is being read."""
        return None if self._header is None else self._header.content_type
