"""Follows the messages of a token stream. For each token it says: is it content, and of which message?

Every part that needs to know this uses the same cursor: the recovering parser, which is a subclass of it, the
engine's limits, the count of reasoning tokens, log-probabilities, and the grammar.

The cursor answers as soon as a token comes, and never changes an answer. In two cases only later tokens could
say what a token is:

- A token in a header is not content. If the header ends without `<|message|>`, the parser makes its text the
  text of a message. Its tokens stay header tokens.
- `<|channel|>` in the assistant's content may be a stray token. Or it begins the next header, and the model
  left out `<|end|>`. From there on no token is content until one of three things happens. If `<|message|>`
  comes, the next message begins. If a token comes that cannot be in a header, or if the header becomes too
  long, the cursor gives it up. The parser then adds the header's text to the content; or, if the header names
  a more guarded channel than the content's, begins a message with it. The header's tokens stay header tokens,
  and the tokens after them are content.

So the text of a message is the text of its content tokens, and the text of malformed headers.
"""

from __future__ import annotations

import functools
from codecs import utf_8_decode
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from .events import EndToken, Problem
from .messages import NOT_TOOLS, Author, RecipientPlace, Role
from .recovered_header import CHANNELS, Kind, Piece, RecoveredHeader, read_header
from .tokenizer import Tokenizer

REPLACEMENT = "\ufffd"
_REPLACEMENT_BYTES = REPLACEMENT.encode()

# A `<|channel|>` in content begins a header only if `<|message|>` follows within so many tokens.
_MAX_HEADER_TOKENS = 64
_MAX_CHARACTER_TOKENS = 4

# Streams have few different headers. Only short ones are kept: a malformed one may be as long as the stream.
_MAX_CACHED = 32
_cached_read = functools.lru_cache(maxsize=1024, typed=True)(read_header)


@dataclass
class PendingHeader:
    """A header that is being read."""

    first: int
    """Index of its first token, if a subclass counts tokens; else 0."""
    role: Role | None
    """The author's role, if the tokens start after it; None: the tokens say it."""
    lacks_start: bool = False
    """True if it began without `<|start|>`."""
    inside_analysis: bool = False
    """True if it began inside an `analysis` message, which lacked `<|end|>`."""
    previous_end: EndToken | None = None
    """The token that ended the message before it."""
    tokens: list[int] = field(default_factory=list)


class OpenMessage(NamedTuple):
    """The header of the message whose content is being read. None: the header has no such field."""

    number: int
    """Index of the message in the stream, from 0."""
    author: Author
    channel: str | None
    recipient: str | None
    content_type: str | None
    recipient_place: RecipientPlace


class Cursor:
    """The position of a token stream among its messages. Never raises, whatever the tokens are.

    in_content: True if the next token is content, unless it ends the message or may begin a header.
    message: the open message, which has begun and not ended; None between messages and in headers.
    channel: the open message's channel; None if it has none, or if no message is open.
    is_call: True if the open message calls a tool.
    begun: how many messages have begun.
    """

    def __init__(self, tokenizer: Tokenizer, role: Role | None = Role.ASSISTANT) -> None:
        """With a `role`, the tokens start after `<|start|>role`, or repeat it; with None, at `<|start|>`."""
        self._tokenizer = tokenizer
        self._ordinary = len(tokenizer.known_texts)  # lower ids are ordinary tokens
        self._ends: dict[int, EndToken] = {
            tokenizer.end: "<|end|>",
            tokenizer.return_: "<|return|>",
            tokenizer.call: "<|call|>",
            tokenizer.end_of_text: "<|endoftext|>",
        }
        # `<|start|>tool` means a tool whose name is "tool".
        self._fallback = Author(role=role or Role.ASSISTANT, name="tool" if role is Role.TOOL else None)
        # The header that is being read. With an open message: the header that a `<|channel|>` in its content
        # may have begun. None: in content, or between messages.
        self._header: PendingHeader | None = None if role is None else PendingHeader(0, role)
        self._end: EndToken | None = None  # the token that ended the last message, if nothing has followed
        self._position = 0  # index of the current token, if a subclass counts tokens
        self.in_content = False
        self.message: OpenMessage | None = None
        self.channel: str | None = None
        self.is_call = False
        self.begun = 0

    def take(self, token: int) -> bool:
        """Takes the next token. Returns True if it is content of `message`, False if not."""
        if self.in_content and 0 <= token < self._ordinary:
            return True
        return self._take_special(token)

    @property
    def tokens_before_content(self) -> int:
        """How many tokens must come, at least, before one can be content of another message."""
        if self._header is None:
            return 3  # `<|channel|>`, its name, `<|message|>`; the model may leave out `<|end|>`
        if self.message is not None:
            return 0  # a header that is given up and names a guarded channel begins a message at once
        is_named = self._header.inside_analysis or self._tokenizer.channel in self._header.tokens
        return 1 if is_named else 3

    @property
    def header_text(self) -> str | None:
        """The text of the header so far, from `<|start|>` on; "" between messages, None in an open one."""
        header = self._header
        if self.message is not None:
            return None
        if header is None:
            return ""
        start = "" if header.lacks_start else f"<|start|>{header.role.value if header.role else ''}"
        return start + self._raw(header.tokens)

    def copy(self) -> Cursor:
        """A cursor at the same position. What either takes next does not change the other."""
        other = object.__new__(Cursor)
        other.__dict__.update(self.__dict__)
        if self._header is not None:
            other._header = replace(self._header, tokens=list(self._header.tokens))
        return other

    # What a subclass may override, to learn what happens

    def _began(self, message: OpenMessage, text: str) -> None:
        """A message has begun. `text` is the text in its header, which belongs to its content."""

    def _kept(self, text: str) -> None:
        """The cursor has given up a header in the open message; its `text` belongs to the content."""

    def _ended(self, message: OpenMessage, end: EndToken | None) -> None:
        """A message has ended; `end` is None if no token ended it."""

    def _stopped(self, end: EndToken) -> None:
        """A token has ended the turn, in a header that says nothing."""

    def _report(self, problem: Problem, where: int, tokens: Sequence[int]) -> None:
        """There is a problem with `tokens`, the first of which has the index `where`."""

    # One token that is not ordinary text of a message

    def _take_special(self, token: int) -> bool:
        if self.message is None:
            if self._header is None:
                self._take_between(token)
            else:
                self._take_in_header(self._header, token)
            return False
        if self._header is None:
            return self._take_in_content(self.message, token)
        return self._take_in_possible_header(self.message, self._header, token)

    def _take_between(self, token: int) -> None:
        if token == self._tokenizer.start:
            self._open_header()
        elif token in self._ends:
            self._report("tokens_after_stop", self._position, [token])
            if self._end in (None, "<|end|>"):
                self._end = self._ends[token]
        else:
            header = PendingHeader(
                self._position, self._fallback.role, lacks_start=True, previous_end=self._end
            )
            self._end = None
            self._header = header
            self._take_in_header(header, token)

    def _open_header(self, *, inside_analysis: bool = False) -> None:
        self._header = PendingHeader(self._position + 1, None, inside_analysis=inside_analysis)
        self._end = None

    def _take_in_header(self, header: PendingHeader, token: int) -> None:
        if token == self._tokenizer.message:
            self._header = None
            self._begin_content(header)
        elif token in self._ends:
            self._header = None
            self._report("missing_message", header.first, [*header.tokens, token])
            self._end_without_content(header, self._ends[token])
        elif token == self._tokenizer.start:
            if header.tokens:
                self._report("missing_message", header.first, header.tokens)
                self._end_without_content(header, None)
            self._open_header(inside_analysis=header.inside_analysis)
        else:
            if not self._is_header_token(token):
                self._report_stray(token, "special_token_in_header")
            header.tokens.append(token)

    def _take_in_content(self, message: OpenMessage, token: int) -> bool:
        if 0 <= token < self._ordinary:
            return True
        if token in self._ends:
            if token == self._tokenizer.end_of_text:
                self._report("ended_by_endoftext", self._position, [token])
            self._close(message, self._ends[token])
        elif token == self._tokenizer.start:
            self._report("missing_end", self._position, [token])
            self._close(message, None)
            self._open_header(inside_analysis=message.channel == "analysis")
        elif token == self._tokenizer.channel and message.author.role is Role.ASSISTANT:
            self._header = PendingHeader(self._position, Role.ASSISTANT, tokens=[token])
            self.in_content = False
        else:
            self._report_stray(token, "special_token_in_content")
            return True
        return False

    def _take_in_possible_header(self, message: OpenMessage, header: PendingHeader, token: int) -> bool:
        if self._is_header_token(token) and not self._is_too_long(header):
            header.tokens.append(token)
            return False
        if token == self._tokenizer.message:
            read = self._read(header, ended=True)
            if read.channel in CHANNELS and not read.text and not read.text_before_channel:
                self._header = None
                self._report("missing_end", header.first, [*header.tokens, token])
                self._close(message, None)
                self._begin(read, header)
                return False
        self._give_up_header(message, header)
        return self._take_special(token)

    def _give_up_header(self, message: OpenMessage, header: PendingHeader) -> None:
        """What began with `<|channel|>` inside content is not a header: its tokens are text."""
        self._header = None
        if self._becomes_guarded(message, header):
            return
        self.in_content = True
        self._report("special_token_in_content", header.first, header.tokens)
        self._kept(self._raw(header.tokens))

    def _becomes_guarded(self, message: OpenMessage, header: PendingHeader) -> bool:
        """Begins a message at a given-up header, if its channel is more guarded than the content's.

        Returns False if it is not.

        What follows `<|channel|>analysis` in a `final` message may be chain of thought, also without
        `<|message|>`. Users, who read `final`, must not see it.
        """
        read = self._read(header, ended=False)
        if read.channel not in CHANNELS or message.channel not in CHANNELS:
            return False
        if CHANNELS.index(read.channel) >= CHANNELS.index(message.channel):
            return False
        self._report("missing_end", header.first, header.tokens)
        self._report("missing_message", header.first, header.tokens)
        self._close(message, None)
        self._begin(read, header)
        return True

    def _is_too_long(self, header: PendingHeader) -> bool:
        """Whether these are too many tokens for a header.

        A character that is cut at the limit may be completed.
        """
        if len(header.tokens) < _MAX_HEADER_TOKENS:
            return False
        last = self._bytes(header.tokens[-_MAX_CHARACTER_TOKENS:])
        is_cut = utf_8_decode(last, "replace", False)[1] < len(last)
        return not is_cut or len(header.tokens) >= _MAX_HEADER_TOKENS + _MAX_CHARACTER_TOKENS

    def _is_header_token(self, token: int) -> bool:
        if 0 <= token < self._ordinary:
            return True
        return token in (self._tokenizer.channel, self._tokenizer.constrain)

    # Headers

    def _begin_content(self, header: PendingHeader) -> None:
        """Begins the message whose header `<|message|>` has ended."""
        read = self._read(header, ended=True)
        if header.lacks_start:
            self._report("missing_start", header.first, header.tokens)
        self._report_problems(header, read)
        self._add_text_before_channel(header, read, None)
        self._begin(read, header)

    def _end_without_content(self, header: PendingHeader, end: EndToken | None) -> None:
        """Takes the end of a header that lacks `<|message|>`: its text becomes the content of a message."""
        read = self._read(header, ended=False)
        self._report_problems(header, read)
        has_fields = read.channel is not None or read.recipient is not None
        has_message = bool(read.text) or (has_fields and end is not None)
        self._add_text_before_channel(header, read, None if has_message else end)
        if has_message:
            self._close(self._begin(read, header), end)
        else:
            self._end = end
            if end is not None and end != "<|end|>":
                self._stopped(end)

    def _report_problems(self, header: PendingHeader, read: RecoveredHeader) -> None:
        if read.author is None:
            self._report("missing_role", header.first, header.tokens)
        for problem in dict.fromkeys(read.problems):
            self._report(problem, header.first, header.tokens)
        if read.text or read.text_before_channel:
            self._report("text_in_header", header.first, header.tokens)

    def _report_stray(self, token: int, problem: Problem) -> None:
        known = self._tokenizer.token_bytes(token) is not None
        self._report(problem if known else "unknown_token", self._position, [token])

    def _add_text_before_channel(
        self, header: PendingHeader, read: RecoveredHeader, end: EndToken | None
    ) -> None:
        """Makes the text before `<|channel|>` a message of its own, without that channel."""
        if read.text_before_channel:
            own = RecoveredHeader(author=read.author, text=read.text_before_channel)
            self._close(self._begin(own, header), end)

    def _read(self, header: PendingHeader, *, ended: bool) -> RecoveredHeader:
        """What a header says. Callers must not change it."""
        is_usual = len(header.tokens) <= _MAX_CACHED
        return (_cached_read if is_usual else read_header)(self._pieces(header), header.role, ended)

    def _pieces(self, header: PendingHeader) -> tuple[Piece, ...]:
        pieces: list[tuple[Kind, list[int]]] = [("role", [])]
        kinds: dict[int, Kind] = {self._tokenizer.channel: "channel", self._tokenizer.constrain: "constrain"}
        for token in header.tokens:
            if token in kinds:
                pieces.append((kinds[token], []))
            else:
                pieces[-1][1].append(token)
        return tuple([(kind, self._raw(tokens)) for kind, tokens in pieces])

    def _raw(self, tokens: Sequence[int]) -> str:
        """The text of tokens, special ones included; an unknown token becomes U+FFFD."""
        return self._bytes(tokens).decode(errors="replace")

    def _bytes(self, tokens: Sequence[int]) -> bytes:
        parts = map(self._tokenizer.token_bytes, tokens)
        return b"".join([_REPLACEMENT_BYTES if part is None else part for part in parts])

    # Messages

    def _begin(self, read: RecoveredHeader, header: PendingHeader) -> OpenMessage:
        channel = read.channel
        if channel is None and header.inside_analysis:
            channel = "analysis"
        author = read.author or self._fallback
        self.message = message = OpenMessage(
            self.begun, author, channel, read.recipient, read.content_type, read.recipient_place
        )
        self.begun += 1
        self.channel = channel
        self.is_call = (
            author.role is Role.ASSISTANT and read.recipient is not None and read.recipient not in NOT_TOOLS
        )
        self.in_content = True
        self._end = None
        self._began(message, read.text)
        return message

    def _close(self, message: OpenMessage, end: EndToken | None) -> None:
        self.message, self.channel, self.is_call, self.in_content = None, None, False, False
        self._end = end
        self._ended(message, end)
