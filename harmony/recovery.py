"""The parser of this project's own sampling loops: it never raises and never loses text.

Whatever a model produces becomes messages; what was wrong becomes diagnostics. What may be chain of thought
never becomes part of a `final` message: a message is `final` only if the model itself said so with
`<|channel|>final`, and only with the text after that.
"""

from __future__ import annotations

from codecs import utf_8_decode
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from .events import (
    CallReady,
    ContentDelta,
    Diagnostic,
    EndToken,
    Event,
    MessageFinished,
    MessageStarted,
    ParsedCompletion,
    Problem,
    Stopped,
)
from .messages import Author, Message, Role, TextContent
from .recovered_header import CHANNELS, Kind, Piece, RecoveredHeader, read_header

if TYPE_CHECKING:
    from .encoding import HarmonyEncoding

_new = tuple.__new__  # a named tuple's own constructor takes twice as long, for every token of a stream

REPLACEMENT = "\ufffd"

# A `<|channel|>` in content opens a header only if `<|message|>` comes within so many tokens.
_MOST_HEADER_TOKENS = 64


def parse_completion(
    encoding: HarmonyEncoding, tokens: Iterable[int], role: Role | None = Role.ASSISTANT
) -> ParsedCompletion:
    """The messages of a completion, whatever its tokens are; never raises.

    With a `role` (the default), the tokens start after `<|start|>role`, or repeat that; with None they
    start at `<|start|>`. The last message is partial when `complete` is False.
    """
    parser = RecoveringParser(encoding, role)
    parser.feed(tokens)
    parser.finish()
    return parser.completion


@dataclass
class _Header:
    """A header being read."""

    first: int  # index of the first of its tokens
    role: Role | None  # given when the tokens start after the role
    lacks_start: bool = False
    inside_analysis: bool = False  # it cut an `analysis` message short
    previous_end: EndToken | None = None
    tokens: list[int] = field(default_factory=list)


class _Content:
    """A message whose content is being read."""

    def __init__(self, number: int, author: Author, channel: str | None, header: RecoveredHeader) -> None:
        self.number = number
        self.author = author
        self.channel = channel
        self.recipient = header.recipient
        self.content_type = header.content_type
        self.recipient_place = header.recipient_place
        self.texts: list[str] = []
        self.pending = b""  # the bytes of a character whose rest has not come

    def decode(self, data: bytes, *, final: bool = False) -> str:
        """The text that the bytes complete; broken ones, and open ones if `final`, become U+FFFD."""
        data = self.pending + data
        text, used = utf_8_decode(data, "replace", final)
        self.pending = data[used:]
        return text

    def add_text(self, text: str) -> ContentDelta:
        """Adds text, which is not empty."""
        self.texts.append(text)
        return self.last_texts(1)

    def last_texts(self, count: int) -> ContentDelta:
        """The texts that were added last, as one event."""
        text = self.texts[-1] if count == 1 else "".join(self.texts[-count:])
        return _new(ContentDelta, (self.number, text, self.channel, self.recipient, self.content_type))

    def message(self) -> Message:
        return Message(
            author=self.author,
            content=[TextContent(text="".join(self.texts))],
            channel=self.channel,
            recipient=self.recipient,
            content_type=self.content_type,
            recipient_place=self.recipient_place,
        )


class RecoveringParser:
    """Parses a completion as it is sampled: tokens in, events out (`harmony.events`). Never raises."""

    def __init__(self, encoding: HarmonyEncoding, role: Role | None = Role.ASSISTANT) -> None:
        """With a `role`, the tokens start after `<|start|>role`; with None, at `<|start|>`."""
        self._encoding = encoding
        self._texts = encoding.known_texts
        self._size = len(self._texts)
        self._ends: dict[int, EndToken] = {
            encoding.end: "<|end|>",
            encoding.return_: "<|return|>",
            encoding.call: "<|call|>",
            encoding.end_of_text: "<|endoftext|>",
        }
        self._fallback = Author(role=role or Role.ASSISTANT)
        self._messages: list[Message] = []
        self._diagnostics: list[Diagnostic] = []
        self._events: list[Event] = []
        self._position = 0  # index of the token at hand
        self._end: EndToken | None = None  # what closed the last message, if nothing followed
        # Both None: between messages. Both set: a `<|channel|>` inside content may have begun a header.
        self._header: _Header | None = None if role is None else _Header(0, role)
        self._content: _Content | None = None
        self._plain: _Content | None = None  # as `_whole_text_goes_to` says, kept for the next `feed`

    @property
    def completion(self) -> ParsedCompletion:
        """The finished messages so far; `finish` adds the open one."""
        complete = self._end is not None and self._header is None and self._content is None
        return ParsedCompletion(list(self._messages), complete, list(self._diagnostics), self._end)

    def feed(self, tokens: Iterable[int]) -> list[Event]:
        """Takes tokens and returns what happened, the text between two other events as one delta."""
        texts, size = self._texts, self._size
        content = self._plain
        events: list[Event] = []
        self._events = events
        added = 0  # tokens since the last event whose texts are in the content
        for token in tokens:
            text = texts[token] if 0 <= token < size else None
            if text is not None and content is not None:
                content.texts.append(text)
                added += 1
            else:
                if added and content is not None:
                    self._position += added
                    events.append(content.last_texts(added))
                    added = 0
                self._take(token)
                self._position += 1
                content = self._plain = self._whole_text_goes_to()
        if added and content is not None:
            self._position += added
            events.append(content.last_texts(added))
        return events

    def _whole_text_goes_to(self) -> _Content | None:
        """The message to which a token of whole characters adds just these."""
        content = self._content
        return None if content is None or content.pending or self._header is not None else content

    def finish(self) -> list[Event]:
        """Ends the stream; an open message is finished as it is."""
        events: list[Event] = []
        self._events = events
        self._plain = None
        if self._content is not None and self._header is not None:
            self._give_up_header(self._content, self._header)
        if self._content is not None:
            self._report("truncated", self._position, "")
            self._close(self._content, None)
        elif self._header is not None:
            header, self._header = self._header, None
            raw = self._raw(header.tokens)
            if header.lacks_start and not raw.strip():
                self._report("tokens_after_stop", header.first, raw)
                self._end = header.previous_end
            else:
                self._report("truncated", header.first, raw)
                if header.role is not None or not Role.ASSISTANT.value.startswith(raw):
                    self._end_without_content(header, None)
        return events

    # One token that is not plain text of a message

    def _take(self, token: int) -> None:
        if self._content is None:
            if self._header is None:
                self._take_between(token)
            else:
                self._take_in_header(self._header, token)
        elif self._header is None:
            self._take_in_content(self._content, token)
        else:
            self._take_in_possible_header(self._content, self._header, token)

    def _take_between(self, token: int) -> None:
        if token == self._encoding.start:
            self._open_header()
        elif token in self._ends:
            self._report("tokens_after_stop", self._position, self._raw([token]))
            if self._end in (None, "<|end|>"):
                self._end = self._ends[token]
        else:
            header = _Header(self._position, self._fallback.role, lacks_start=True, previous_end=self._end)
            self._end = None
            self._header = header
            self._take_in_header(header, token)

    def _open_header(self, *, inside_analysis: bool = False) -> None:
        self._header = _Header(self._position + 1, None, inside_analysis=inside_analysis)
        self._end = None

    def _take_in_header(self, header: _Header, token: int) -> None:
        if token == self._encoding.message:
            self._header = None
            self._begin_content(header)
        elif token in self._ends:
            self._header = None
            self._report("missing_message", header.first, self._raw([*header.tokens, token]))
            self._end_without_content(header, self._ends[token])
        elif token == self._encoding.start:
            if header.tokens:
                self._report("missing_message", header.first, self._raw(header.tokens))
                self._end_without_content(header, None)
            self._open_header(inside_analysis=header.inside_analysis)
        else:
            if not self._is_header_token(token):
                self._report_stray(token, "special_token_in_header")
            header.tokens.append(token)

    def _take_in_content(self, content: _Content, token: int) -> None:
        data = self._encoding.token_bytes(token)
        if token < self._size and data is not None:
            self._encoding.token_text(token)  # from now on `feed` finds it
            self._add_bytes(content, data)
        elif token in self._ends:
            if token == self._encoding.end_of_text:
                self._report("ended_by_endoftext", self._position, self._raw([token]))
            self._close(content, self._ends[token])
        elif token == self._encoding.start:
            self._report("missing_end", self._position, self._raw([token]))
            self._close(content, None)
            self._open_header(inside_analysis=content.channel == "analysis")
        elif token == self._encoding.channel and content.author.role is Role.ASSISTANT:
            self._header = _Header(self._position, Role.ASSISTANT, tokens=[token])
        else:
            self._report_stray(token, "special_token_in_content")
            self._add_bytes(content, data or REPLACEMENT.encode())

    def _take_in_possible_header(self, content: _Content, header: _Header, token: int) -> None:
        encoding = self._encoding
        if self._is_header_token(token) and len(header.tokens) < _MOST_HEADER_TOKENS:
            header.tokens.append(token)
            return
        if token == encoding.message:
            read = read_header(self._pieces(header), header.role, ended=True)
            if read.channel in CHANNELS and not read.text and not read.text_before_channel:
                self._header = None
                self._report("missing_end", header.first, self._raw([*header.tokens, token]))
                self._close(content, None)
                self._begin(read, header)
                return
        self._give_up_header(content, header)
        self._take(token)

    def _give_up_header(self, content: _Content, header: _Header) -> None:
        """What began with `<|channel|>` inside content is no header: it is text."""
        self._header = None
        if self._becomes_guarded(content, header):
            return
        raw = self._raw(header.tokens)
        self._report("special_token_in_content", header.first, raw)
        self._add_bytes(content, raw.encode())

    def _becomes_guarded(self, content: _Content, header: _Header) -> bool:
        """Begins a message at a broken header inside content, where that keeps text from more readers.

        `<|channel|>analysis` without `<|message|>` inside a `final` message is still chain of thought.
        """
        read = read_header(self._pieces(header), header.role, ended=False)
        if read.channel not in CHANNELS or content.channel not in CHANNELS:
            return False
        if CHANNELS.index(read.channel) >= CHANNELS.index(content.channel):
            return False
        raw = self._raw(header.tokens)
        self._report("missing_end", header.first, raw)
        self._report("missing_message", header.first, raw)
        self._close(content, None)
        self._begin(read, header)
        return True

    def _is_header_token(self, token: int) -> bool:
        encoding = self._encoding
        is_ordinary = 0 <= token < len(encoding.ordinary_tokens)
        return is_ordinary or token in (encoding.channel, encoding.constrain)

    # Headers

    def _begin_content(self, header: _Header) -> None:
        """`<|message|>` came: begins the message."""
        read = read_header(self._pieces(header), header.role, ended=True)
        raw = self._raw(header.tokens)
        if header.lacks_start:
            self._report("missing_start", header.first, raw)
        self._report_problems(header, read, raw)
        self._add_text_before_channel(header, read, None)
        self._begin(read, header)

    def _end_without_content(self, header: _Header, end: EndToken | None) -> None:
        """The header ended without `<|message|>`: what text it held becomes the content."""
        read = read_header(self._pieces(header), header.role, ended=False)
        self._report_problems(header, read, self._raw(header.tokens))
        says_something = read.channel is not None or read.recipient is not None
        has_message = bool(read.text) or (says_something and end is not None)
        self._add_text_before_channel(header, read, None if has_message else end)
        if has_message:
            self._close(self._begin(read, header), end)
        else:
            self._end = end
            if end is not None and end != "<|end|>":
                self._events.append(Stopped(end))

    def _report_problems(self, header: _Header, read: RecoveredHeader, raw: str) -> None:
        if read.author is None:
            self._report("missing_role", header.first, raw)
        for problem in dict.fromkeys(read.problems):
            self._report(problem, header.first, raw)
        if read.text or read.text_before_channel:
            self._report("text_in_header", header.first, raw)

    def _add_text_before_channel(self, header: _Header, read: RecoveredHeader, end: EndToken | None) -> None:
        """Text from before `<|channel|>` is a message of its own, without that channel."""
        if read.text_before_channel:
            own = RecoveredHeader(author=read.author, text=read.text_before_channel)
            self._close(self._begin(own, header), end)

    def _pieces(self, header: _Header) -> list[Piece]:
        pieces: list[tuple[Kind, list[bytes]]] = [("role", [])]
        kinds: dict[int, Kind] = {self._encoding.channel: "channel", self._encoding.constrain: "constrain"}
        for token in header.tokens:
            if token in kinds:
                pieces.append((kinds[token], []))
            else:
                pieces[-1][1].append(self._encoding.token_bytes(token) or REPLACEMENT.encode())
        return [(kind, b"".join(parts).decode(errors="replace")) for kind, parts in pieces]

    # Messages

    def _begin(self, read: RecoveredHeader, header: _Header) -> _Content:
        """Begins a message with what text its header held."""
        channel = read.channel
        if channel is None and header.inside_analysis:
            channel = "analysis"
        content = _Content(len(self._messages), read.author or self._fallback, channel, read)
        self._content = content
        self._end = None
        self._events.append(
            MessageStarted(
                content.number, content.author, content.channel, content.recipient, content.content_type
            )
        )
        if read.text:
            self._events.append(content.add_text(read.text))
        return content

    def _add_bytes(self, content: _Content, data: bytes, *, final: bool = False) -> None:
        text = content.decode(data, final=final)
        if text:
            self._events.append(content.add_text(text))

    def _close(self, content: _Content, end: EndToken | None) -> None:
        self._add_bytes(content, b"", final=True)
        message = content.message()
        self._messages.append(message)
        self._events.append(MessageFinished(content.number, message, end))
        self._content = None
        self._end = end
        if message.is_call and end is not None:
            self._events.append(CallReady(content.number, message))
        if end is not None and end != "<|end|>":
            self._events.append(Stopped(end))

    # Diagnostics

    def _report(self, what: Problem, where: int, raw: str) -> None:
        self._diagnostics.append(Diagnostic(what, where, raw))

    def _report_stray(self, token: int, problem: Problem) -> None:
        known = self._encoding.token_bytes(token) is not None
        self._report(problem if known else "unknown_token", self._position, self._raw([token]))

    def _raw(self, tokens: Iterable[int]) -> str:
        parts = (self._encoding.token_bytes(token) for token in tokens)
        return b"".join(REPLACEMENT.encode() if part is None else part for part in parts).decode(
            errors="replace"
        )
