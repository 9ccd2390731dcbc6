"""What happens while a completion is parsed, as data."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from .messages import Author, Message

Problem = Literal[
    "unknown_token",  # an id outside the vocabulary; one U+FFFD stands for it
    "special_token_in_content",  # a special token where only text belongs; kept as its literal text
    "special_token_in_header",
    "missing_start",  # a header without `<|start|>`
    "missing_role",
    "missing_message",  # a header that ended without `<|message|>`; what text it held became content
    "missing_end",  # a message ended by the next one's header
    "text_in_header",  # words that are no part of a header; they became content
    "empty_channel",
    "empty_recipient",
    "two_channels",  # `analysis` wins, else the first
    "two_recipients",  # the first wins
    "two_content_types",  # the first wins
    "tokens_after_stop",
    "ended_by_endoftext",
    "truncated",  # the stream ended inside a message or header
]
"""What can be wrong with a completion."""

EndToken = Literal["<|end|>", "<|return|>", "<|call|>", "<|endoftext|>"]


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """One thing that was wrong, and how it was read is said at `Problem`."""

    what: Problem
    where: int
    """Index of the first token concerned."""
    raw: str
    """The text of the tokens concerned, special tokens included."""


class MessageStarted(NamedTuple):
    """A message's header is read; its content begins."""

    number: int
    author: Author
    channel: str | None
    recipient: str | None
    content_type: str | None


class ContentDelta(NamedTuple):
    """Text was added to the message `number`. All deltas of a message add up to its content."""

    number: int
    text: str
    channel: str | None
    recipient: str | None
    content_type: str | None


class MessageFinished(NamedTuple):
    """A message is whole, or the stream ended inside it (`end` is None then)."""

    number: int
    message: Message
    end: EndToken | None


class CallReady(NamedTuple):
    """The finished message `number` calls a tool; it follows the message's `MessageFinished`."""

    number: int
    message: Message


class Stopped(NamedTuple):
    """The model ended its turn: `<|return|>`, `<|call|>` or `<|endoftext|>`."""

    end: EndToken


Event = MessageStarted | ContentDelta | MessageFinished | CallReady | Stopped


@dataclass(frozen=True, slots=True)
class ParsedCompletion:
    """What a completion says."""

    messages: list[Message]
    complete: bool
    """Whether a token that ends a message closed the last one."""
    diagnostics: list[Diagnostic] = field(default_factory=list)
    end: EndToken | None = None
    """The token that closed the last message."""
