"""`Sample`, a parsed completion, and its token usage."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from harmony.openai_formats import chat_message_from

if TYPE_CHECKING:
    from gptoss_jax.engine.request import TokenLogprobs
    from harmony import Diagnostic, Message
    from harmony.json_types import JsonObject

AnswerReason = Literal["stop", "length", "tool_calls", "cancelled"]
"""Why a sample ended.

"stop": the model ended its turn, or a stop string or stop token of the request ended it.
"tool_calls": the model ended its turn with tool calls.
"length": a limit cut the sample. Under a grammar also if anything else ended it before the constrained text
was complete; so with "stop" and "tool_calls" the text is valid.
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
class ScoredToken:
    """A token of an answer's text, with its log-probabilities."""

    token: int
    logprobs: TokenLogprobs


@dataclasses.dataclass(frozen=True)
class Sample:
    """One completion of a prompt, parsed.

    index: which of the request's n samples it is, from 0.
    tokens: the generated tokens, the stop token included.
    messages: the harmony messages of the completion. Malformed harmony is recovered.
    text: the answer: the text of the `final` messages, with blank lines between them.
    reasoning: the raw chain of thought. Do not show it to end users.
    preamble: what the model says to the user before it calls functions: `commentary` messages without a
        recipient.
    tool_calls: the complete tool calls. One that was cut is in `messages` only.
    finish_reason: "stop", "length", "tool_calls" or "cancelled": see `AnswerReason`.
    stop: the stop string that ended the sample; None for other reasons. Texts and messages end before it,
        `tokens` may contain it.
    diagnostics: what was malformed in the model's harmony. A sample that was cut is not malformed.
    logprobs: one entry for each token; None if the request has no `logprobs`.
    text_tokens: for each message, the tokens of its text with their log-probabilities; an empty list for
        messages that are neither answer nor preamble. None if the request has no `logprobs`.
    complete: True if the text under the grammar is complete, False if it was cut; None without a grammar.
    usage: the token counts.
    request_id: the id of the request, which call ids are made from.
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

    def chat_message(self) -> JsonObject:
        """Returns the sample as an assistant message of Chat Completions, for the next request's messages."""
        return chat_message_from(
            self.messages, call_id=lambda index: call_id(self.request_id, self.index, index)
        )


def call_id(request_id: str, sample: int, number: int) -> str:
    """The id of a sample's tool call. `sample` and `number` count from 0."""
    return f"call-{request_id}-{sample}-{number}"


def usage_of(samples: Sequence[Sample]) -> Usage:
    """The usage of all samples of one prompt.

    The prompt's tokens count once, the generated tokens of all samples are added up. Only those prompt tokens
    count as cached that were cached for every sample.
    """
    usages = [sample.usage for sample in samples]
    return Usage(
        prompt_tokens=max((usage.prompt_tokens for usage in usages), default=0),
        cached_tokens=min((usage.cached_tokens for usage in usages), default=0),
        generated_tokens=sum(usage.generated_tokens for usage in usages),
        reasoning_tokens=sum(usage.reasoning_tokens for usage in usages),
    )
