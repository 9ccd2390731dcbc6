"""The recovering parser, for sampling loops: it never raises and never loses text.

Whatever a model produces becomes messages, and what was wrong becomes diagnostics. Text that may be chain of
thought never becomes part of a `final` message: a message is `final` only if the model wrote
`<|channel|>final`, and only the text after that belongs to it.
"""

from __future__ import annotations

from codecs import utf_8_decode
from collections.abc import Iterable, Sequence
from operator import index
from typing import SupportsIndex

from .cursor import REPLACEMENT, Cursor, OpenMessage
from .errors import shown
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
from .messages import Message, Role, TextContent
from .token_ids import tokens_of
from .tokenizer import Tokenizer

_new = tuple.__new__  # a named tuple's own constructor takes twice as long, at every token of a stream

_NO_TOKEN = -(2**63)  # stands for what is not an integer; no vocabulary has this id


def parse_completion(
    encoding: Tokenizer, tokens: Iterable[SupportsIndex], role: Role | None = Role.ASSISTANT
) -> ParsedCompletion:
    """The messages of a completion. Never raises for a token, whatever it is.

    With a `role` (the default), the tokens start after `<|start|>role`, or repeat it; with None, they start
    at `<|start|>`. If `complete` is False, the last message is only as long as the tokens go.

    Raises TypeError only if `tokens` cannot be iterated over.
    """
    parser = RecoveringParser(encoding, role)
    parser.feed(tokens)
    parser.finish()
    return parser.completion


class _Content:
    """The text of the message whose content is being read."""

    def __init__(self, message: OpenMessage) -> None:
        self.message = message
        # Read at every token of a stream, so each is an attribute.
        self.number, _, self.channel, self.recipient, self.content_type, _ = message
        self.texts: list[str] = []
        self.pending = b""  # the bytes of an unfinished character

    def decode(self, data: bytes, *, final: bool = False) -> str:
        """The text that is complete with these bytes.

        Invalid bytes become U+FFFD; if `final`, unfinished ones too.
        """
        data = self.pending + data
        text, used = utf_8_decode(data, "replace", final)
        self.pending = data[used:]
        return text

    def last_texts(self, count: int) -> ContentDelta:
        """The `count` texts that were added last, as one event."""
        text = self.texts[-1] if count == 1 else "".join(self.texts[-count:])
        return _new(ContentDelta, (self.number, text, self.channel, self.recipient, self.content_type))

    def whole(self) -> Message:
        """The message with all its text so far."""
        _, author, channel, recipient, content_type, recipient_place = self.message
        return Message.model_construct(
            author=author,
            content=[TextContent(text="".join(self.texts))],
            channel=channel,
            recipient=recipient,
            content_type=content_type,
            recipient_place=recipient_place,
        )


class RecoveringParser(Cursor):
    """Parses a completion while it is sampled: takes tokens, returns events (see `harmony.events`).

    Never raises. It is also a cursor, whose position is after the last token. Give it tokens through `feed`,
    not `take`.
    """

    def __init__(self, encoding: Tokenizer, role: Role | None = Role.ASSISTANT) -> None:
        """With a `role`, the tokens start after `<|start|>role`, or repeat it; with None, at `<|start|>`."""
        super().__init__(encoding, role)
        self._texts = encoding.known_texts
        self._messages: list[Message] = []
        self._diagnostics: list[Diagnostic] = []
        self._events: list[Event] = []
        self._content: _Content | None = None
        self._plain: _Content | None = None  # the value of `_appendable_content` after the last token

    @property
    def completion(self) -> ParsedCompletion:
        """The finished messages so far. After `finish` it has all messages."""
        complete = self._end is not None and self._header is None and self.message is None
        return ParsedCompletion(list(self._messages), complete, list(self._diagnostics), self._end)

    def feed(self, tokens: Iterable[SupportsIndex]) -> list[Event]:
        """Takes tokens and returns the events. The text between two other events is one `ContentDelta`.

        `tokens` is a list, an array or an iterator of integers of any type. What is not an integer becomes
        U+FFFD and the diagnostic "not_a_token". Raises TypeError only if `tokens` cannot be iterated over.
        """
        if type(tokens) is not list and type(tokens) is not tuple:
            tokens = tokens_of(tokens)
        texts, size = self._texts, self._ordinary
        content = self._plain
        events: list[Event] = []
        self._events = events
        added = 0  # how many tokens since the last event have their text in the content
        for token in tokens:
            try:
                text = texts[token] if 0 <= token < size else None  # type: ignore[operator]
            except (TypeError, ValueError):
                text = None  # not an integer, or one that cannot be compared
            if text is not None and content is not None:
                content.texts.append(text)
                added += 1
            else:
                if added and content is not None:
                    self._position += added
                    events.append(content.last_texts(added))
                    added = 0
                self._take_one(token if type(token) is int else self._token(token))
                self._position += 1
                content = self._plain = self._appendable_content()
        if content is None or not added:
            return events
        self._position += added
        if added == 1:  # the usual case in a sampling loop; calling `last_texts` would take a tenth longer
            text, to = content.texts[-1], content.recipient
            events.append(
                _new(ContentDelta, (content.number, text, content.channel, to, content.content_type))
            )
        else:
            events.append(content.last_texts(added))
        return events

    def finish(self) -> list[Event]:
        """Ends the stream, and returns the last events. A message that is open ends there."""
        events: list[Event] = []
        self._events = events
        self._plain = None
        if self.message is not None and self._header is not None:
            self._give_up_header(self.message, self._header)
        if self.message is not None:
            self._report("truncated", self._position, [])
            self._close(self.message, None)
        elif self._header is not None:
            header, self._header = self._header, None
            raw = self._raw(header.tokens)
            if header.lacks_start and not raw.strip():
                self._report("tokens_after_stop", header.first, header.tokens)
                self._end = header.previous_end
            else:
                self._report("truncated", header.first, header.tokens)
                if header.role is not None or not Role.ASSISTANT.value.startswith(raw):
                    self._end_without_content(header, None)
        return events

    # One token whose text cannot simply be appended to a content

    def _take_one(self, token: int) -> None:
        if not self.take(token) or self._content is None:
            return
        content = self._content
        is_aligned = not content.pending
        self._add_bytes(content, self._tokenizer.token_bytes(token) or REPLACEMENT.encode())
        if is_aligned and not content.pending and 0 <= token < self._ordinary:
            self._tokenizer.token_text(token)  # puts it into `known_texts`, where `feed` looks

    def _appendable_content(self) -> _Content | None:
        """The content to which the text of an ordinary token can be appended; None if there is none."""
        content = self._content
        return None if content is None or content.pending or not self.in_content else content

    def _token(self, value: SupportsIndex) -> int:
        """The token as an `int`; if it is not an integer, `_NO_TOKEN`."""
        try:
            return index(value)
        except TypeError:
            self._diagnostics.append(Diagnostic("not_a_token", self._position, shown(value)))
            return _NO_TOKEN

    # What the cursor calls

    def _began(self, message: OpenMessage, text: str) -> None:
        self._content = content = _Content(message)
        number, author, channel, recipient, content_type, _ = message
        self._events.append(MessageStarted(number, author, channel, recipient, content_type))
        if text:
            self._add_text(content, text)

    def _kept(self, text: str) -> None:
        if self._content is not None:
            self._add_bytes(self._content, text.encode())

    def _ended(self, message: OpenMessage, end: EndToken | None) -> None:
        content, self._content = self._content, None
        if content is None:
            return
        self._add_bytes(content, b"", final=True)
        whole = content.whole()
        self._messages.append(whole)
        self._events.append(MessageFinished(message.number, whole, end))
        if whole.is_call and end is not None:
            self._events.append(CallReady(message.number, whole))
        if end is not None and end != "<|end|>":
            self._stopped(end)

    def _stopped(self, end: EndToken) -> None:
        self._events.append(Stopped(end))

    def _report(self, problem: Problem, where: int, tokens: Sequence[int]) -> None:
        if problem == "unknown_token" and tokens and tokens[0] == _NO_TOKEN:
            return  # `_token` has reported it
        self._diagnostics.append(Diagnostic(problem, where, self._raw(tokens)))

    def _add_bytes(self, content: _Content, data: bytes, *, final: bool = False) -> None:
        text = content.decode(data, final=final)
        if text:
            self._add_text(content, text)

    def _add_text(self, content: _Content, text: str) -> None:
        content.texts.append(text)
        self._events.append(content.last_texts(1))
