"""The events of a stream: what is new in a sample that is still being generated."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from gptoss_jax.answers.sample import BuiltInCall, Sample, ScoredToken, ToolCall

if TYPE_CHECKING:
    from harmony import Message


@dataclasses.dataclass(frozen=True, slots=True)
class _Delta:
    """New text of one kind.

    sample: which of the request's samples it belongs to, from 0.
    text: the new text. The texts of all events of one class add up to the field of `Sample` that the class
        names.
    message: the index in `Sample.messages` of the message that the text belongs to.
    separator: the blank line at the start of `text` that separates this message from an earlier one of the
        same kind; "" if there is none. It is not part of the message's own text.
    tokens: the tokens of the text with their log-probabilities; empty if the request has no `logprobs`. A
        token comes with a later event if its text is still incomplete or may begin a stop string.
    """

    sample: int
    text: str
    message: int = 0
    separator: str = ""
    tokens: tuple[ScoredToken, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class ReasoningDelta(_Delta):
    """New text of the chain of thought, `Sample.reasoning`."""


@dataclasses.dataclass(frozen=True, slots=True)
class PreambleDelta(_Delta):
    """New text of the preamble, `Sample.preamble`."""


@dataclasses.dataclass(frozen=True, slots=True)
class TextDelta(_Delta):
    """New text of the answer, `Sample.text`."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ToolCallDelta(_Delta):
    """New text of the arguments of a tool call, "" for a call that has only begun.

    header: the call's message without its text. The call itself comes later, as `ToolCallReady`, unless it is
        cut; then it is in `Sample.messages` only.
    """

    header: Message


@dataclasses.dataclass(frozen=True, slots=True)
class ToolCallReady:
    """A tool call is complete. `message` is its index in `Sample.messages`."""

    sample: int
    call: ToolCall
    message: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class BuiltInCallReady:
    """A call of a built-in tool is complete. `message` is its index in `Sample.messages`."""

    sample: int
    call: BuiltInCall
    message: int


@dataclasses.dataclass(frozen=True, slots=True)
class BuiltInCallDone:
    """The call of a built-in tool has been run, and has its result."""

    sample: int
    call: BuiltInCall
    message: int


@dataclasses.dataclass(frozen=True, slots=True)
class Finished:
    """A sample is complete. This is its last event."""

    sample: int
    result: Sample


Delta = ReasoningDelta | PreambleDelta | TextDelta
StreamEvent = Delta | ToolCallDelta | ToolCallReady | BuiltInCallReady | BuiltInCallDone | Finished
