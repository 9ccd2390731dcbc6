"""Turns the tokens of a completion into the events of a stream, and into a `Sample`."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from gptoss_jax.answers.events import (
    BuiltInCallDone,
    BuiltInCallReady,
    Delta,
    Finished,
    PreambleDelta,
    ReasoningDelta,
    StreamEvent,
    TextDelta,
    ToolCallDelta,
    ToolCallReady,
)
from gptoss_jax.answers.messages import Kind, count_reasoning, kind_of, text_of
from gptoss_jax.answers.sample import (
    AnswerReason,
    BuiltInCall,
    Sample,
    ScoredToken,
    ToolCall,
    Usage,
    call_id,
)
from gptoss_jax.engine.request import Update
from harmony import (
    ContentDelta,
    Cursor,
    Message,
    MessageFinished,
    MessageStarted,
    RecoveringParser,
    TextContent,
)
from harmony.openai_formats import call_extras, called_function

if TYPE_CHECKING:
    from gptoss_jax.engine.request import Completion, TokenLogprobs
    from harmony import Diagnostic, HarmonyEncoding
    from harmony.events import Event

_DELTAS: dict[Kind, type[Delta]] = {
    "reasoning": ReasoningDelta,
    "preamble": PreambleDelta,
    "text": TextDelta,
}


def read_sample(completion: Completion, encoding: HarmonyEncoding) -> Sample:
    """Parses a finished completion. Malformed harmony is recovered and never raises."""
    reader = SampleReader(encoding, completion.id, completion.sample)
    whole = Update(completion.id, completion.sample, completion.tokens, completion.logprobs, completion)
    finished = reader.read(whole)[-1]
    assert isinstance(finished, Finished)
    return finished.result


@dataclasses.dataclass
class _OpenMessage:
    """The message whose content is being read.

    number: its index in `Sample.messages`.
    kind: as in `kind_of`.
    length: how many characters its text has so far.
    emitted: how many of them were in events.
    held: the text after those, in pieces.
    tokens: the tokens that were in no event yet, each with the number of characters before it.
    header: the message without its text, if it is a call whose arguments are told as they come; else None.
    """

    number: int
    kind: Kind | None
    length: int = 0
    emitted: int = 0
    held: list[str] = dataclasses.field(default_factory=list)
    tokens: list[tuple[int, ScoredToken]] = dataclasses.field(default_factory=list)
    header: Message | None = None


class SampleReader:
    """Turns the updates of one sample into events. The last event, `Finished`, carries the `Sample`.

    Text that may begin a stop string is held back until the next tokens decide. The texts of the sample are
    joined from the texts of the events, so the two cannot differ.

    A completion that ends in the call of a built-in tool may be a round of several: see `waiting`.
    """

    def __init__(
        self,
        encoding: HarmonyEncoding,
        request_id: str,
        sample: int = 0,
        stop: Sequence[str] = (),
        built_in: Collection[str] = (),
        *,
        call_deltas: bool = False,
    ) -> None:
        """A reader at the start of a completion.

        Args:
            encoding: decodes the tokens.
            request_id: the request's id, from which call ids are made.
            sample: which of the request's samples to read.
            stop: the request's stop strings. Text that may begin one of them is held back.
            built_in: the tools that run beside the model. Calls of them are none that the caller sees as a
                `ToolCall`.
            call_deltas: True tells of the arguments of functions as they come, as `ToolCallDelta`. Calls of
                built-in tools come whole all the same: their items say more of the header.
        """
        self._encoding = encoding
        self._request_id = request_id
        self._sample = sample
        self._stop = stop
        self._built_in = built_in
        self._call_deltas = call_deltas
        self._begin_round()
        self._texts: dict[Kind, list[str]] = {kind: [] for kind in _DELTAS}  # the texts of the events
        self._calls: list[ToolCall] = []
        self._text_tokens: list[list[ScoredToken]] = []  # for each message
        self._messages: list[Message] = []  # of the rounds that have ended, with the results
        self._built_in_calls: dict[int, BuiltInCall] = {}
        self._completions: list[Completion] = []
        self._diagnostics: list[Diagnostic] = []
        self._usages: list[Usage] = []
        self._waits = False

    def _begin_round(self) -> None:
        self._parser = RecoveringParser(self._encoding)
        self._cursor = Cursor(self._encoding)
        self._open: _OpenMessage | None = None
        self._holds_all = False  # True for the last tokens, which may contain text after the stop string

    @property
    def usage(self) -> Usage:
        """The token counts of the rounds that have ended."""
        return sum(self._usages, Usage())

    @property
    def waiting(self) -> BuiltInCall | None:
        """The call that ends the round, if it is to be run: `add_result`. None if there is none."""
        return self._built_in_calls[len(self._messages) - 1] if self._waits else None

    def add_result(self, result: Message, *, failed: bool = False) -> list[StreamEvent]:
        """Adds what the tool answered to the call that waits. `read` then reads the next round."""
        number = len(self._messages) - 1
        call = dataclasses.replace(self._built_in_calls[number], result=result, failed=failed)
        self._built_in_calls[number] = call
        self._messages.append(result)
        self._text_tokens.append([])
        self._waits = False
        self._begin_round()
        return [BuiltInCallDone(self._sample, call, number)]

    def end(self) -> Finished:
        """The last event of a sample that a limit ends after a result."""
        return Finished(self._sample, self._result("length", None))

    def read(self, update: Update) -> list[StreamEvent]:
        """Returns the events of an update, possibly none."""
        if update.completion is None:
            return _merged(self._feed(update.tokens, update.logprobs))
        return _merged(self._finish(update, update.completion))

    def _feed(self, tokens: Sequence[int], logprobs: Sequence[TokenLogprobs] | None) -> Iterator[StreamEvent]:
        if logprobs is None:
            for event in self._parser.feed(tokens):
                yield from self._translate(event)
            return
        for token, scores in zip(tokens, logprobs, strict=False):
            is_content = self._cursor.take(token)
            if is_content and self._open is not None and self._open.kind in ("text", "preamble"):
                self._open.tokens.append((self._open.length, ScoredToken(token, scores)))
            for event in self._parser.feed([token]):
                yield from self._translate(event)

    def _translate(self, event: Event) -> Iterator[StreamEvent]:
        if isinstance(event, MessageStarted):
            header = Message(
                author=event.author,
                channel=event.channel,
                recipient=event.recipient,
                content_type=event.content_type,
            )
            number = len(self._messages) + event.number
            self._open = _OpenMessage(number, kind_of(header))
            self._text_tokens.append([])
            is_function = not call_extras(header) and not self._is_built_in(header)
            if self._call_deltas and self._open.kind == "call" and is_function:
                self._open.header = header
                yield ToolCallDelta(self._sample, "", number, header=header)
        elif isinstance(event, ContentDelta) and self._open is not None:
            self._open.held.append(event.text)
            self._open.length += len(event.text)
            if not self._holds_all:
                yield from self._emit(self._open, _may_begin("".join(self._open.held), self._stop))
        elif isinstance(event, MessageFinished) and self._open is not None:
            yield from self._emit(self._open)
            number = self._open.number
            if self._open.kind == "call" and self._is_built_in(event.message):
                self._built_in_calls[number] = BuiltInCall(event.message)
                yield BuiltInCallReady(self._sample, self._built_in_calls[number], number)
            elif self._open.kind == "call":
                call = ToolCall(
                    id=call_id(self._request_id, self._sample, len(self._calls)),
                    name=called_function(event.message) or "",
                    arguments=text_of(event.message),
                    message=event.message,
                )
                self._calls.append(call)
                yield ToolCallReady(self._sample, call, number)
            self._open = None

    def _is_built_in(self, call: Message) -> bool:
        return (call.recipient or "").partition(".")[0] in self._built_in

    def _emit(self, message: _OpenMessage, keep: int = 0) -> Iterator[StreamEvent]:
        """Yields the text of a message that was held back, without its last `keep` characters."""
        held = "".join(message.held)
        end = len(held) - keep
        text, message.held = held[:end], [held[end:]]
        is_first, message.emitted = not message.emitted, message.emitted + len(text)
        if text and message.header is not None:
            yield ToolCallDelta(self._sample, text, message.number, header=message.header)
        if not text or message.kind is None or message.kind == "call":
            return
        tokens = [scored for start, scored in message.tokens if start < message.emitted]
        del message.tokens[: len(tokens)]
        self._text_tokens[message.number] += tokens
        texts = self._texts[message.kind]
        separator = "\n\n" if is_first and texts else ""
        texts.append(separator + text)
        delta = _DELTAS[message.kind]
        yield delta(self._sample, separator + text, message.number, separator, tuple(tokens))

    def _finish(self, update: Update, completion: Completion) -> Iterator[StreamEvent]:
        has_stop_token = _ends_in_stop_token(completion, self._encoding)
        tokens = update.tokens[:-1] if has_stop_token else update.tokens
        self._holds_all = completion.stop is not None
        last = len(tokens) - 1 if self._holds_all and tokens else len(tokens)
        scores = update.logprobs
        yield from self._feed(tokens[:last], scores and scores[:last])
        before_last = self._open.length if self._open is not None else 0
        yield from self._feed(tokens[last:], scores and scores[last:])
        before_end, cut, base = self._parser.completion, self._open, len(self._messages)
        self._holds_all = True
        ending = self._parser.finish()
        parsed = self._parser.completion
        if completion.stop is not None and cut is not None:
            message = parsed.messages[cut.number - base]
            text = text_of(message)
            end = max(_find_stop(text, completion.stop, before_last), cut.emitted)
            parsed.messages[cut.number - base] = message.model_copy(
                update={"content": [TextContent(text=text[:end])]}
            )
        for event in ending:
            if isinstance(event, MessageFinished) and self._open is not None:  # it was cut: no tool call
                kept = len(text_of(parsed.messages[event.number]))
                yield from self._emit(self._open, self._open.length - kept)
                self._open = None
            else:
                yield from self._translate(event)
        by_model = completion.finish_reason == "stop" and completion.stop is None
        diagnostics = (parsed if by_model and not has_stop_token else before_end).diagnostics
        self._end_round(completion, parsed.messages, diagnostics)
        reason: AnswerReason = completion.finish_reason
        if reason == "stop" and (completion.grammar_complete is False or self._waits):
            reason = "length"
        elif reason == "stop" and self._calls:
            reason = "tool_calls"
        yield Finished(self._sample, self._result(reason, completion.stop))

    def _end_round(
        self, completion: Completion, messages: list[Message], diagnostics: list[Diagnostic]
    ) -> None:
        base = len(self._messages)
        last = base + len(messages) - 1
        whole = completion.finish_reason == "stop" and completion.grammar_complete is not False
        self._waits = whole and not self._calls and last in self._built_in_calls
        for number, message in enumerate(messages, base):
            if message.is_call and self._is_built_in(message):  # also one that was cut
                self._built_in_calls.setdefault(number, BuiltInCall(message))
        self._messages += messages
        self._completions.append(completion)
        self._diagnostics += diagnostics
        self._usages.append(
            Usage(
                prompt_tokens=completion.prompt_tokens,
                cached_tokens=completion.cached_tokens,
                generated_tokens=len(completion.tokens),
                reasoning_tokens=count_reasoning(completion.tokens, self._encoding),
            )
        )

    def _result(self, reason: AnswerReason, stop: str | None) -> Sample:
        with_logprobs = self._completions[-1].logprobs is not None
        scores = (scores for completion in self._completions for scores in completion.logprobs or ())
        return Sample(
            index=self._sample,
            tokens=[token for completion in self._completions for token in completion.tokens],
            messages=list(self._messages),
            text="".join(self._texts["text"]),
            reasoning="".join(self._texts["reasoning"]),
            preamble="".join(self._texts["preamble"]),
            tool_calls=self._calls,
            finish_reason=reason,
            stop=stop,
            diagnostics=list(self._diagnostics),
            logprobs=tuple(scores) if with_logprobs else None,
            text_tokens=self._text_tokens if with_logprobs else None,
            complete=self._completions[-1].grammar_complete,
            usage=self.usage,
            request_id=self._request_id,
            built_in_calls=dict(self._built_in_calls),
            rounds=tuple(self._usages),
        )


def _merged(events: Iterable[StreamEvent]) -> list[StreamEvent]:
    """The events, with consecutive deltas of one message merged."""
    merged: list[StreamEvent] = []
    for number, group in itertools.groupby(events, _delta_of):
        if number is None:
            merged += group
            continue
        first, *others = deltas = [event for event in group if isinstance(event, Delta | ToolCallDelta)]
        if others:
            text = "".join(delta.text for delta in deltas)
            tokens = tuple(scored for delta in deltas for scored in delta.tokens)
            first = dataclasses.replace(first, text=text, tokens=tokens)
        merged.append(first)
    return merged


def _delta_of(event: StreamEvent) -> int | None:
    """The index of the message that a delta belongs to; None for other events."""
    return event.message if isinstance(event, Delta | ToolCallDelta) else None


def _may_begin(text: str, stops: Sequence[str]) -> int:
    """The length of the longest suffix of the text that is a prefix of a stop string; 0 for none."""
    longest = max((len(stop) for stop in stops), default=1) - 1
    for length in range(min(longest, len(text)), 0, -1):
        if any(stop.startswith(text[len(text) - length :]) for stop in stops):
            return length
    return 0


def _find_stop(text: str, stop: str, before: int) -> int:
    """Where the stop string begins that ends after the first `before` characters of the text."""
    at = text.find(stop, max(0, before - len(stop) + 1))
    if at < 0:
        at = text.find(stop)
    return at if at >= 0 else len(text)


def _ends_in_stop_token(completion: Completion, encoding: HarmonyEncoding) -> bool:
    """True if the last token is one of the request's `stop_token_ids`, which is not part of the text."""
    if completion.finish_reason != "stop" or completion.stop is not None or not completion.tokens:
        return False
    return completion.tokens[-1] not in (*encoding.stop_tokens(), encoding.end_of_text)
