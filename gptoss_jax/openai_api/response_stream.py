"""The events of a sample that is being generated → the events of a response's stream."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from gptoss_jax.answers import (
    BuiltInCallDone,
    BuiltInCallReady,
    Finished,
    PreambleDelta,
    ReasoningDelta,
    ToolCallDelta,
    ToolCallReady,
    kind_of,
)
from gptoss_jax.openai_api.built_in import begin_events, end_events
from gptoss_jax.openai_api.logprobs import logprob_entries
from gptoss_jax.openai_api.output_items import with_status
from harmony import Message, Role

if TYPE_CHECKING:
    from gptoss_jax.answers import BuiltInCall, Sample, ScoredToken, StreamEvent
    from gptoss_jax.answers.events import Delta
    from gptoss_jax.openai_api.errors import ApiError
    from gptoss_jax.openai_api.response_object import ResponseMaker

Event = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class SummaryReady:
    """A reasoning message has ended, and this is its summary. It comes before the events of the next message.

    message: its index in `Sample.messages`.
    """

    message: int
    text: str


class ResponseStream:
    """Makes the events of one response, in the published order, each with the next `sequence_number`.

    The items of `response.output_item.done`, and the output of the last event, are those of the response that
    is no stream. The arguments of a call come in pieces where `ToolCallDelta` brings them, else whole, in one
    delta. An item is done when the next one begins or the sample has
    ended, since only then is it known whether the sample was cut in it.
    """

    def __init__(self, maker: ResponseMaker) -> None:
        self._maker = maker
        self._items = maker.item_maker
        self._number = 0
        self._done: list[dict[str, Any]] = []
        self._open: _OpenItem | None = None
        self._calls: set[int] = set()  # the numbers of the messages whose calls were streamed

    def start(self) -> list[Event]:
        """The events before there is any output; of a response in the background, which is queued, those
        before `begin`."""
        if not self._maker.background:
            created = self._event("response.created", response=self._maker.unfinished("in_progress"))
            return [created, *self.begin()]
        kinds = ("response.created", "response.queued")
        return [self._event(kind, response=self._maker.unfinished("queued")) for kind in kinds]

    def begin(self) -> list[Event]:
        """The events with which a response that was queued begins."""
        return [self._event("response.in_progress", response=self._maker.unfinished("in_progress"))]

    def add(self, event: StreamEvent | SummaryReady) -> list[Event]:
        """The events of an event of the sample."""
        if isinstance(event, SummaryReady):
            return self._summary(event)
        if isinstance(event, Finished):
            return self._finish(event.result)
        if isinstance(event, ToolCallDelta):
            return self._call_delta(event)
        if isinstance(event, ToolCallReady):
            return self._call(event.call.message, event.message)
        if isinstance(event, BuiltInCallReady):
            return self._begin_built_in(event.call, event.message)
        if isinstance(event, BuiltInCallDone):
            return self._end_built_in(event.call, event.message)
        return self._delta(event)

    def fail(self, error: ApiError) -> list[Event]:
        """The last events of a request on which the engine failed."""
        response = self._maker.failed(error, self._done)
        return [
            self._event("error", code="server_error", message=str(error), param=None),
            self._event("response.failed", response=response),
        ]

    def cancel(self) -> list[Event]:
        """The last events of a request that was cancelled. The published events have none of that name: it is
        incomplete, and its response has the status "cancelled"."""
        return [self._event("response.incomplete", response=self._maker.cancelled(self._done))]

    def _event(self, type: str, **fields: Any) -> Event:
        event = {"type": type, "sequence_number": self._number, **fields}
        self._number += 1
        return event

    def _delta(self, delta: Delta) -> list[Event]:
        is_reasoning = isinstance(delta, ReasoningDelta)
        events: list[Event] = []
        if self._open is None or self._open.number != delta.message:
            channel = _CHANNELS.get(type(delta), "final")
            message = _message_of(delta.text, channel)
            if not self._items.is_shown(message):
                return []
            events += self._close()
            events += self._begin(message, delta.message)
        assert self._open is not None
        text = delta.text[len(delta.separator) :]
        self._open.texts.append(text)
        self._open.tokens += delta.tokens
        if is_reasoning:
            if self._items.with_reasoning:
                events.append(
                    self._event("response.reasoning_text.delta", **self._open.part_place(), delta=text)
                )
            return events
        logprobs = logprob_entries(delta.tokens, self._maker.encoding)
        place = self._open.part_place()
        events.append(self._event("response.output_text.delta", **place, delta=text, logprobs=logprobs))
        return events

    def _summary(self, summary: SummaryReady) -> list[Event]:
        """The events of a summary, behind those with which its text ends."""
        item, summaries = self._open, self._maker.summaries
        if item is None or item.number != summary.message or summaries is None:
            return []
        summaries[summary.message] = summary.text
        kind, place = "response.reasoning_summary", {**item.place(), "summary_index": 0}
        part = {"type": "summary_text", "text": summary.text}
        events = self._part_done(item.message, item)
        item.is_told = True
        return [
            *events,
            self._event(f"{kind}_part.added", **place, part={**part, "text": ""}),
            self._event(f"{kind}_text.delta", **place, delta=summary.text),
            self._event(f"{kind}_text.done", **place, text=summary.text),
            self._event(f"{kind}_part.done", **place, part=part),
        ]

    def _begin(self, message: Message, number: int) -> list[Event]:
        """The events with which the item of a message begins."""
        index = len(self._done)
        item = self._items.item(message, number)
        item["status"] = "in_progress"
        item.pop("encrypted_content", None)
        if kind_of(message) == "call":
            item["arguments"] = ""
        if "content" in item:
            item["content"] = []
        self._open = _OpenItem(message, number, item["id"], index)
        events = [self._event("response.output_item.added", output_index=index, item=item)]
        if "content" in item:
            part = _part(message, "")
            events.append(self._event("response.content_part.added", **self._open.part_place(), part=part))
        return events

    def _call(self, message: Message, number: int) -> list[Event]:
        """The events of a call but for the last one, or what was missing of them."""
        self._calls.add(number)
        whole = self._items.item(message, number)
        kind, arguments = "response.function_call_arguments", whole["arguments"]
        events: list[Event] = []
        if self._open is None or self._open.number != number:
            events = self._close() + self._begin(message, number)
            assert self._open is not None
            events.append(self._event(f"{kind}.delta", **self._open.place(), delta=arguments))
        self._open.message = message
        place = self._open.place()
        return [*events, self._event(f"{kind}.done", **place, name=whole["name"], arguments=arguments)]

    def _call_delta(self, delta: ToolCallDelta) -> list[Event]:
        events: list[Event] = []
        if self._open is None or self._open.number != delta.message:
            events = self._close() + self._begin(delta.header, delta.message)
        assert self._open is not None
        if delta.text:
            kind = "response.function_call_arguments.delta"
            events.append(self._event(kind, **self._open.place(), delta=delta.text))
        return events

    def _begin_built_in(self, call: BuiltInCall, number: int) -> list[Event]:
        """The events of a built-in tool's call but for those of its end."""
        self._calls.add(number)
        events, item = self._close(), self._items.built_in_item(call, number)
        return events + [self._event(**event) for event in begin_events(item, len(self._done))]

    def _end_built_in(self, call: BuiltInCall, number: int) -> list[Event]:
        """The events with which the call of a built-in tool ends."""
        item = self._items.built_in_item(call, number)
        self._done.append(item)
        return [self._event(**event) for event in end_events(item, len(self._done) - 1)]

    def _finish(self, sample: Sample) -> list[Event]:
        events: list[Event] = []
        for number, message in enumerate(sample.messages):
            built_in = sample.built_in_calls.get(number)
            if built_in is not None:
                if built_in.result is None:  # it was cut short, or not run
                    if number not in self._calls:
                        events += self._begin_built_in(built_in, number)
                    events += self._end_built_in(built_in, number)
            elif kind_of(message) == "call" and number not in self._calls:  # it was cut short
                events += self._call(message, number)
        events += self._close(sample)
        response = self._maker.ended(sample, with_status(self._done, sample))
        return [*events, self._event(f"response.{response['status']}", response=response)]

    def _close(self, sample: Sample | None = None) -> list[Event]:
        """The events with which the open item ends, if there is one; `sample` if that has ended."""
        item, self._open = self._open, None
        if item is None:
            return []
        message, events = item.message, []
        if kind_of(message) != "call":
            message = _message_of("".join(item.texts), message.channel)
            events = [] if item.is_told else self._part_done(message, item)
        whole = self._items.item(message, item.number, item.tokens)
        self._done.append(whole)
        if sample is not None:
            with_status(self._done, sample)
        events.append(self._event("response.output_item.done", output_index=item.index, item=whole))
        return events

    def _part_done(self, message: Message, item: _OpenItem) -> list[Event]:
        text = "".join(item.texts)
        place = item.part_place()
        if kind_of(message) == "reasoning":
            if not self._items.with_reasoning:
                return []
            events = [self._event("response.reasoning_text.done", **place, text=text)]
            part = _part(message, text)
        else:
            logprobs = logprob_entries(item.tokens, self._maker.encoding)
            events = [self._event("response.output_text.done", **place, text=text, logprobs=logprobs)]
            part = {**_part(message, text), "logprobs": logprobs}
        return [*events, self._event("response.content_part.done", **place, part=part)]


@dataclasses.dataclass
class _OpenItem:
    """The item that is being streamed: its message as far as it is known, and the message's number.

    is_told: True if the events with which its text ends were told, and its summary behind them.
    """

    message: Message
    number: int
    id: str
    index: int
    texts: list[str] = dataclasses.field(default_factory=list)
    tokens: list[ScoredToken] = dataclasses.field(default_factory=list)
    is_told: bool = False

    def place(self) -> dict[str, Any]:
        """What events say of where they belong."""
        return {"item_id": self.id, "output_index": self.index}

    def part_place(self) -> dict[str, Any]:
        """The same for the item's only part."""
        return {**self.place(), "content_index": 0}


def _message_of(text: str, channel: str | None) -> Message:
    message = Message.from_role_and_content(Role.ASSISTANT, text)
    return message if channel is None else message.with_channel(channel)


def _part(message: Message, text: str) -> dict[str, Any]:
    if kind_of(message) == "reasoning":
        return {"type": "reasoning_text", "text": text}
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


_CHANNELS: dict[type[Delta], str] = {ReasoningDelta: "analysis", PreambleDelta: "commentary"}
