"""`Sample`, a parsed completion, and its token usage."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal

from harmony import Role
from harmony.openai_formats import chat_message_from

if TYPE_CHECKING:
    from gptoss_jax.engine.request import TokenLogprobs
    from harmony import Diagnostic, Message
    from harmony.json_types import JsonObject

AnswerReason = Literal["stop", "length", "tool_calls", "cancelled"]
"""Why a sample ended.

"stop": the model ended its turn, or a stop string or stop token of the request ended it.
"tool_calls": the model ended its turn with tool calls.
"length": a limit cut the sample, or kept a call from being run. Under a grammar also if anything else ended
it before the constrained text was complete; so with "stop" and "tool_calls" the text is valid.
"cancelled": the caller cancelled the request.
"""


@dataclasses.dataclass(frozen=True)
class Usage:
    """Token counts.

    prompt_tokens: tokens of the prompt.
    cached_tokens: the part of `prompt_tokens` that came from the prefix cache.
    generated_tokens: tokens of the completion, the stop token included.
    reasoning_tokens: the part of `generated_tokens` that is content of analysis messages.
    """

    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0
    reasoning_tokens: int = 0

    @property
    def total_tokens(self) -> int:
        """`prompt_tokens` and `generated_tokens` together."""
        return self.prompt_tokens + self.generated_tokens

    def __add__(self, other: Usage) -> Usage:
        """Both together."""
        return Usage(
            self.prompt_tokens + other.prompt_tokens,
            self.cached_tokens + other.cached_tokens,
            self.generated_tokens + other.generated_tokens,
            self.reasoning_tokens + other.reasoning_tokens,
        )


@dataclasses.dataclass(frozen=True)
class ToolCall:
    """A call of a function by the model.

    id: identifies the call, and its result.
    name: the function's name, without the namespace `functions.`.
    arguments: the text that the model wrote; normally a JSON object, but only a grammar guarantees that.
    message: the call as a harmony message, which comes before its result in the conversation.
    """

    id: str
    name: str
    arguments: str
    message: Message


@dataclasses.dataclass(frozen=True)
class BuiltInCall:
    """A call of a tool that runs beside the model, as part of the sample.

    message: the call as a harmony message.
    result: the tool's answer; None if the call was cut, or not run.
    failed: whether the tool gave no answer, and `result` says why.
    """

    message: Message
    result: Message | None = None
    failed: bool = False

    @property
    def tool(self) -> str:
        """The name of the tool."""
        return (self.message.recipient or "").partition(".")[0]


@dataclasses.dataclass(frozen=True)
class ScoredToken:
    """A token of an answer's text, with its log-probabilities."""

    token: int
    logprobs: TokenLogprobs


@dataclasses.dataclass(frozen=True)
class Sample:
    """One completion of a prompt, parsed; or several with calls of built-in tools between them: rounds.

    index: which of the request's n samples it is, from 0.
    tokens: the generated tokens, the stop token included.
    messages: the harmony messages of the completion. Malformed harmony is recovered. The answers of built-in
        tools stand behind their calls.
    text: the answer: the text of the `final` messages, with blank lines between them.
    reasoning: the raw chain of thought. Do not show it to end users.
    preamble: what the model says to the user before it calls functions: `commentary` messages without a
        recipient.
    tool_calls: the complete calls of functions, which the caller runs. One that was cut is in `messages`
        only.
    finish_reason: "stop", "length", "tool_calls" or "cancelled": see `AnswerReason`.
    stop: the stop string that ended the sample; None for other reasons. Texts and messages end before it,
        `tokens` may contain it.
    diagnostics: what was malformed in the model's harmony. A sample that was cut is not malformed.
    logprobs: one entry for each token; None if the request has no `logprobs`.
    text_tokens: for each message, the tokens of its text with their log-probabilities; an empty list for
        messages that are neither answer nor preamble. None if the request has no `logprobs`.
    complete: True if the text under the grammar is complete, False if it was cut; None without a grammar.
    usage: the token counts, those of all rounds added up.
    request_id: the id of the request, which call ids are made from.
    built_in_calls: the calls of built-in tools, by their indices in `messages`.
    rounds: the token counts of each round.
    """

    index: int
    tokens: list[int]
    messages: list[Message]
    text: str
    reasoning: str
    preamble: str
    tool_calls: list[ToolCall]
    finish_reason: AnswerReason
    stop: str | None
    diagnostics: list[Diagnostic]
    logprobs: tuple[TokenLogprobs, ...] | None
    text_tokens: list[list[ScoredToken]] | None
    complete: bool | None
    usage: Usage
    request_id: str
    built_in_calls: Mapping[int, BuiltInCall]
    rounds: tuple[Usage, ...]

    @property
    def told_messages(self) -> list[Message]:
        """The messages without the calls of built-in tools, and their results."""
        hidden = self.built_in_calls
        return [
            message
            for number, message in enumerate(self.messages)
            if message.author.role is Role.ASSISTANT and number not in hidden
        ]

    @property
    def turn(self) -> list[Message]:
        """The messages of the model, and behind calls of built-in tools their results.

        Messages of other roles are left out: the model has made them up.
        """
        turn = []
        for number, message in enumerate(self.messages):
            if message.author.role is Role.ASSISTANT:
                turn.append(message)
            call = self.built_in_calls.get(number)
            if call is not None and call.result is not None:
                turn.append(call.result)
        return turn

    def chat_message(self) -> JsonObject:
        """Returns the sample as an assistant message of Chat Completions, for the next request's messages."""
        return chat_message_from(
            self.told_messages, call_id=lambda index: call_id(self.request_id, self.index, index)
        )


def call_id(request_id: str, sample: int, number: int) -> str:
    """The id of a sample's tool call. `sample` and `number` count from 0."""
    return f"call-{request_id}-{sample}-{number}"


def usage_of(samples: Sequence[Sample]) -> Usage:
    """The usage of all samples of one prompt.

    The prompt's tokens count once, the generated tokens of all samples are added up. Only those prompt tokens
    count as cached that were cached for every sample. Later rounds have prompts of their own: all count.
    """
    firsts = [sample.rounds[0] for sample in samples]
    total = Usage(
        prompt_tokens=max((usage.prompt_tokens for usage in firsts), default=0),
        cached_tokens=min((usage.cached_tokens for usage in firsts), default=0),
        generated_tokens=sum(usage.generated_tokens for usage in firsts),
        reasoning_tokens=sum(usage.reasoning_tokens for usage in firsts),
    )
    return sum((usage for sample in samples for usage in sample.rounds[1:]), total)
