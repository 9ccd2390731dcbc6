"""What happens while a completion is parsed, as data."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

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


@dataclass(frozen=True, slots=True)
class MessageStarted:
    """A message's header is read; its content begins."""

    index: int
    author: Author
    channel: str | None
    recipient: str | None
    content_type: str | None


@dataclass(frozen=True, slots=True)
class ContentDelta:
    """Text was added to the message `index`. All deltas of a message add up to its content."""

    index: int
    text: str
    channel: str | None
    recipient: str | None
    content_type: str | None


@dataclass(frozen=True, slots=True)
class MessageFinished:
    """A message is whole, or the stream ended inside it (`end` is None then)."""

    index: int
    message: Message
    end: EndToken | None


@dataclass(frozen=True, slots=True)
class CallReady:
    """The finished message `index` calls a tool; it follows the message's `MessageFinished`."""

    index: int
    message: Message


@dataclass(frozen=True, slots=True)
class Stopped:
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
