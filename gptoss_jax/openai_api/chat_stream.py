"""The events of samples that are being generated → the `chat.completion.chunk` objects of a stream."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gptoss_jax.answers import (
    BuiltInCallDone,
    BuiltInCallReady,
    Finished,
    ReasoningDelta,
    Sample,
    ToolCallDelta,
    ToolCallReady,
    kind_of,
    text_of,
    usage_of,
)
from gptoss_jax.openai_api.built_in import turn_with_calls
from gptoss_jax.openai_api.logprobs import logprob_entries
from gptoss_jax.openai_api.objects import chat_call_id, chat_usage, completion_id
from harmony.openai_formats import call_extras, called_function

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gptoss_jax.answers import ScoredToken, StreamEvent
    from gptoss_jax.openai_api.request import Prepared
    from harmony import HarmonyEncoding, Message

Chunk = dict[str, Any]


class ChatStream:
    """Makes the chunks of one request. Put together they are the `chat.completion` of its samples.

    The first chunk of each choice has the role; the last one has the reason why it ended and an empty delta.
    The arguments of a call come in pieces where `ToolCallDelta` brings them, else in one chunk. A chunk with
    empty `choices` is only the one with the usage, at the end.
    """

    def __init__(
        self,
        prepared: Prepared,
        encoding: HarmonyEncoding,
        *,
        unique: str,
        model: str,
        created: int,
        include_usage: bool = False,
        reasoning_field: str = "reasoning",
    ) -> None:
        """The arguments are those of `chat_completion`; `include_usage`: whether the usage comes at the
        end."""
        self._encoding = encoding
        self._unique = unique
        self._with_reasoning = prepared.with_reasoning
        self._include_usage = include_usage
        self._reasoning_field = reasoning_field
        self._shell = {
            "id": completion_id(unique),
            "object": "chat.completion.chunk",
            "created": created,
            "model": model,
        }
        sampling = prepared.request.sampling
        self._with_logprobs = sampling.logprobs is not None
        self._choices = [_Choice() for _ in range(sampling.n)]

    def start(self) -> list[Chunk]:
        """The chunks before there is any text."""
        return [self._chunk(sample, {"role": "assistant"}) for sample in range(len(self._choices))]

    def add(self, event: StreamEvent) -> list[Chunk]:
        """The chunks of an event."""
        if isinstance(event, Finished):
            return self._finish(event.result)
        if isinstance(event, ToolCallDelta):
            return [self._call_delta(event)]
        if isinstance(event, ToolCallReady):
            if event.message in self._choices[event.sample].calls:
                return []
            return [self._call(event.sample, event.call.message, event.message)]
        if isinstance(event, BuiltInCallReady | BuiltInCallDone):
            return []
        if isinstance(event, ReasoningDelta):
            if not self._with_reasoning:
                return []
            return [self._chunk(event.sample, {self._reasoning_field: event.text})]
        choice = self._choices[event.sample]
        text = event.text[len(event.separator) :]
        if choice.content_message not in (None, event.message):
            text = "\n\n" + text
        choice.content_message = event.message
        return [self._chunk(event.sample, {"content": text}, tokens=event.tokens)]

    def end(self) -> list[Chunk]:
        """The chunks after all samples have ended."""
        if not self._include_usage:
            return []
        samples = [choice.sample for choice in self._choices if choice.sample is not None]
        return [{**self._shell, "choices": [], "usage": chat_usage(usage_of(samples))}]

    def _finish(self, sample: Sample) -> list[Chunk]:
        """The calls that were cut short, of which no event told, and the reason of the end."""
        choice = self._choices[sample.index]
        choice.sample = sample
        cut = [
            (message, number)
            for number, message in enumerate(sample.messages)
            if kind_of(message) == "call" and number not in choice.calls | sample.built_in_calls.keys()
        ]
        chunks = [self._call(sample.index, message, number) for message, number in cut]
        extras = turn_with_calls(sample) if self._with_reasoning else {}
        if extras:
            chunks.append(self._chunk(sample.index, extras))
        return [*chunks, self._chunk(sample.index, {}, finish_reason=sample.finish_reason)]

    def _call(self, sample: int, message: Message, number: int) -> Chunk:
        choice = self._choices[sample]
        index = len(choice.calls)
        choice.calls.append(number)
        call = {
            "index": index,
            "id": chat_call_id(self._unique, sample, len(self._choices), index),
            "type": "function",
            "function": {"name": called_function(message), "arguments": text_of(message)},
            **call_extras(message),
        }
        return self._chunk(sample, {"tool_calls": [call]})

    def _call_delta(self, delta: ToolCallDelta) -> Chunk:
        calls = self._choices[delta.sample].calls
        if delta.message not in calls:
            call = self._call(delta.sample, delta.header, delta.message)
            call["choices"][0]["delta"]["tool_calls"][0]["function"]["arguments"] = delta.text
            return call
        piece = {"index": calls.index(delta.message), "function": {"arguments": delta.text}}
        return self._chunk(delta.sample, {"tool_calls": [piece]})

    def _chunk(
        self,
        sample: int,
        delta: dict[str, Any],
        *,
        tokens: Iterable[ScoredToken] = (),
        finish_reason: str | None = None,
    ) -> Chunk:
        logprobs = None
        if self._with_logprobs and "content" in delta:
            logprobs = {"content": logprob_entries(tokens, self._encoding), "refusal": None}
        choice = {"index": sample, "delta": delta, "logprobs": logprobs, "finish_reason": finish_reason}
        usage = {"usage": None} if self._include_usage else {}
        return {**self._shell, "choices": [choice], **usage}


class _Choice:
    """What has been streamed of a sample.

    content_message: the number of the message that the content came from last; None if there was none.
    calls: the numbers of the messages whose calls were streamed, in their order.
    sample: the sample, once it is whole.
    """

    def __init__(self) -> None:
        self.content_message: int | None = None
        self.calls: list[int] = []
        self.sample: Sample | None = None
