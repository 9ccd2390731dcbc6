"""What the recovering parser returns: events, diagnostics, and a completion as a whole."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, NamedTuple

from .errors import shown
from .json_types import JsonObject
from .messages import Author, Message

Problem = Literal[
    "unknown_token",  # an id outside the vocabulary; one U+FFFD stands for it
    "not_a_token",  # not an integer; one U+FFFD stands for it, and `raw` is its `repr`
    "special_token_in_content",  # a special token where only text belongs; its name is kept as text
    "special_token_in_header",  # the same in a header
    "missing_start",  # a header without `<|start|>`
    "missing_role",  # a header without a role; the message gets the role given to the parser
    "missing_message",  # a header without `<|message|>`; text in it became content
    "missing_end",  # the next header began before the message had ended; the message ends there
    "text_in_header",  # words that are not part of a header; they became content
    "empty_channel",  # `<|channel|>` with nothing after it
    "empty_recipient",  # `to=` with nothing after it
    "two_channels",  # `analysis` counts, else the first
    "two_recipients",  # the first counts
    "two_content_types",  # the first counts
    "tokens_after_stop",  # tokens after the last message that do not begin another; left out
    "ended_by_endoftext",  # `<|endoftext|>` ended a message
    "truncated",  # the stream ended inside a message or a header
]
"""What can be wrong with a completion, and how the parser reads it then."""

EndToken = Literal["<|end|>", "<|return|>", "<|call|>", "<|endoftext|>"]


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """One thing that was wrong with a completion."""

    what: Problem
    """Which problem; `Problem` lists them."""
    where: int
    """Index of the first token of the problem."""
    raw: str
    """The text of its tokens, special tokens included."""


class MessageStarted(NamedTuple):
    """The header of a message has been read, and its content begins.

    `number` counts the messages of the stream from 0. None: the header has no such field.
    """

    number: int
    author: Author
    channel: str | None
    recipient: str | None
    content_type: str | None


class ContentDelta(NamedTuple):
    """Text was added to the message `number`. All deltas of a message together are its content."""

    number: int
    text: str
    channel: str | None
    recipient: str | None
    content_type: str | None


class MessageFinished(NamedTuple):
    """The message `number` has ended.

    `end` is the token that ended it; None: the next header, or the stream's end.
    """

    number: int
    message: Message
    end: EndToken | None


class CallReady(NamedTuple):
    """The message `number` is a call of a tool.

    Comes after its `MessageFinished`, if a token ended the message.
    """

    number: int
    message: Message


class Stopped(NamedTuple):
    """The model ended its turn, with `<|return|>`, `<|call|>` or `<|endoftext|>`."""

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


def event_to_dict(event: Event) -> JsonObject:
    """An event as JSON data: its `type`, such as "content_delta", and its fields."""
    data: JsonObject = {"type": _EVENT_NAMES[type(event)]}
    for name, value in event._asdict().items():
        if isinstance(value, Message):
            value = value.to_dict()
        elif isinstance(value, Author):
            value = value.model_dump(mode="json")
        data[name] = value
    return data


def event_from_dict(data: Mapping[str, Any]) -> Event:
    """The event of `event_to_dict`'s data. Raises ValueError for an unknown type or other fields."""
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
    """The messages of a completion, and what was wrong with it."""

    messages: list[Message]
    complete: bool
    """True if a token ended the last message; False if the stream ended inside a message or a header."""
    diagnostics: list[Diagnostic] = field(default_factory=list)
    end: EndToken | None = None
    """The token that ended the last message; None if none did."""

    def to_dict(self) -> JsonObject:
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
