"""What happens while a completion is parsed, as data."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, NamedTuple

from .errors import shown
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

_EVENT_TYPES: dict[str, type[Event]] = {
    "message_started": MessageStarted,
    "content_delta": ContentDelta,
    "message_finished": MessageFinished,
    "call_ready": CallReady,
    "stopped": Stopped,
}
_EVENT_NAMES = {kind: name for name, kind in _EVENT_TYPES.items()}


def event_to_dict(event: Event) -> dict[str, Any]:
    """An event as JSON data: its fields, and its `type`, such as "content_delta"."""
    data: dict[str, Any] = {"type": _EVENT_NAMES[type(event)]}
    for name, value in event._asdict().items():
        if isinstance(value, Message):
            value = value.to_dict()
        elif isinstance(value, Author):
            value = value.model_dump(mode="json")
        data[name] = value
    return data


def event_from_dict(data: Mapping[str, Any]) -> Event:
    """Inverse of `event_to_dict`. Raises ValueError for another type or other fields."""
    fields = dict(data)
    name = fields.pop("type", None)
    kind = _EVENT_TYPES.get(name)
    if kind is None:
        raise ValueError(f"type is {shown(name)}: it must be one of {', '.join(_EVENT_TYPES)}")
    if set(fields) != set(kind._fields):
        raise ValueError(f"{name} has {shown(sorted(fields))}: it must have {', '.join(kind._fields)}")
    if "message" in fields:
        fields["message"] = Message.from_dict(fields["message"])
    if "author" in fields:
        fields["author"] = Author.model_validate(fields["author"])
    return kind(**fields)


@dataclass(frozen=True, slots=True)
class ParsedCompletion:
    """What a completion says."""

    messages: list[Message]
    complete: bool
    """Whether a token that ends a message closed the last one."""
    diagnostics: list[Diagnostic] = field(default_factory=list)
    end: EndToken | None = None
    """The token that closed the last message."""

    def to_dict(self) -> dict[str, Any]:
        """The completion as JSON data."""
        return {
            "messages": [message.to_dict() for message in self.messages],
            "complete": self.complete,
            "diagnostics": [asdict(diagnostic) for diagnostic in self.diagnostics],
            "end": self.end,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> ParsedCompletion:
        """Inverse of `to_dict`."""
        return cls(
            messages=[Message.from_dict(message) for message in data["messages"]],
            complete=data["complete"],
            diagnostics=[Diagnostic(**diagnostic) for diagnostic in data["diagnostics"]],
            end=data["end"],
        )

    def to_json(self) -> str:
        """The completion as JSON text."""
        return json.dumps(self.to_dict())

    @classmethod
    def from_json(cls, payload: str) -> ParsedCompletion:
        """Inverse of `to_json`."""
        return cls.from_dict(json.loads(payload))
