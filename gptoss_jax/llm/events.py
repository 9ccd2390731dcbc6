"""Updates of the engine → the events of a stream."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from gptoss_jax.llm.answer import Kind, kind_of, said_tokens
from gptoss_jax.llm.results import (
    Finished,
    PreambleDelta,
    ReasoningDelta,
    Sample,
    StreamEvent,
    TextDelta,
    ToolCallReady,
    read_sample,
    tool_call,
)
from harmony import ContentDelta, Message, MessageFinished, MessageStarted, RecoveringParser

if TYPE_CHECKING:
    from gptoss_jax.engine import Request
    from gptoss_jax.engine.request import Update
    from harmony import HarmonyEncoding
    from harmony.events import Event

_DELTAS: dict[str, Callable[[int, str], StreamEvent]] = {
    "reasoning": ReasoningDelta,
    "preamble": PreambleDelta,
    "text": TextDelta,
}


class SampleEvents:
    """Turns the updates of one sample into events.

    Text that may be the beginning of a stop string is held back until it is known not to be one. The deltas
    of each kind add up to what the finished `Sample` says.
    """

    def __init__(self, request: Request, sample: int, encoding: HarmonyEncoding) -> None:
        self._request = request
        self._sample = sample
        self._encoding = encoding
        self._parser = RecoveringParser(encoding)
        self._told = dict.fromkeys(_DELTAS, 0)  # how much of each kind was in events
        self._calls = 0
        self._kind: Kind | None = None  # of the open message
        self._begun = False  # whether any of its text was in events
        self._held = ""

    def take(self, update: Update) -> list[StreamEvent]:
        """What an update brings."""
        completion = update.completion
        if completion is None:
            return _merged(self._read(update.tokens))
        events: list[StreamEvent] = []
        if completion.stop is None:
            unsaid = len(completion.tokens) - len(said_tokens(completion, self._encoding))
            events = self._read(update.tokens[: len(update.tokens) - unsaid])
        sample = read_sample(completion, self._request, self._encoding)
        return _merged([*events, *self._rest(sample), Finished(self._sample, sample)])

    def _read(self, tokens: Sequence[int]) -> list[StreamEvent]:
        return [event for parsed in self._parser.feed(tokens) for event in self._translate(parsed)]

    def _translate(self, event: Event) -> list[StreamEvent]:
        if isinstance(event, MessageStarted):
            header = Message(author=event.author, channel=event.channel, recipient=event.recipient)
            self._kind, self._begun, self._held = kind_of(header), False, ""
        elif isinstance(event, ContentDelta) and self._kind in _DELTAS:
            text = self._held + event.text
            held = _may_begin(text, self._request.sampling.stop)
            self._held = text[len(text) - held :]
            return self._tell(text[: len(text) - held])
        elif isinstance(event, MessageFinished):
            if self._kind == "call":
                call = tool_call(event.message, self._request.id, self._sample, self._calls)
                self._calls += 1
                return [ToolCallReady(self._sample, call)]
            held_text, self._held = self._held, ""
            return self._tell(held_text)
        return []

    def _tell(self, text: str) -> list[StreamEvent]:
        if not text or self._kind is None:
            return []
        if not self._begun and self._told[self._kind]:
            text = "\n\n" + text
        self._begun = True
        self._told[self._kind] += len(text)
        return [_DELTAS[self._kind](self._sample, text)]

    def _rest(self, sample: Sample) -> list[StreamEvent]:
        """What the finished sample says beyond what was told: held text, up to a stop string."""
        events: list[StreamEvent] = []
        for kind, delta in _DELTAS.items():
            if rest := getattr(sample, kind)[self._told[kind] :]:
                events.append(delta(self._sample, rest))
        events += [ToolCallReady(self._sample, call) for call in sample.tool_calls[self._calls :]]
        return events


def _merged(events: Sequence[StreamEvent]) -> list[StreamEvent]:
    """The events, neighbouring deltas of a kind as one."""
    merged: list[StreamEvent] = []
    for event in events:
        last = merged[-1] if merged else None
        if (
            isinstance(last, ReasoningDelta | PreambleDelta | TextDelta)
            and isinstance(event, ReasoningDelta | PreambleDelta | TextDelta)
            and type(last) is type(event)
        ):
            merged[-1] = dataclasses.replace(last, text=last.text + event.text)
        else:
            merged.append(event)
    return merged


def _may_begin(text: str, stops: Sequence[str]) -> int:
    """The length of the longest end of the text that is the beginning of a stop string."""
    longest = max((len(stop) for stop in stops), default=1) - 1
    for length in range(min(longest, len(text)), 0, -1):
        if any(stop.startswith(text[len(text) - length :]) for stop in stops):
            return length
    return 0
