"""What the Python API gives back: generations, and the events of streams."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from gptoss_jax.llm.answer import AnswerReason, joined, read_answer, text_of
from harmony.openai_formats import called_function, chat_message_from

if TYPE_CHECKING:
    from gptoss_jax.engine import Completion, Request
    from gptoss_jax.engine.request import TokenLogprobs
    from harmony import Conversation, Diagnostic, HarmonyEncoding, Message


@dataclasses.dataclass(frozen=True)
class Usage:
    """Token counts: of the prompt, those of it that an earlier request had left computed, of the completion,
    and those of the completion that are chain of thought."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0
    reasoning_tokens: int = 0

    @property
    def total_tokens(self) -> int:
        """Prompt and completion together."""
        return self.prompt_tokens + self.generated_tokens


@dataclasses.dataclass(frozen=True)
class ToolCall:
    """A function that the model wants called.

    `name` is without the namespace `functions.`; `arguments` is the text that the model wrote, JSON if it
    did as it was told; `message` is the whole call, to be put into the conversation before its result.
    """

    id: str
    name: str
    arguments: str
    message: Message


@dataclasses.dataclass(frozen=True)
class Sample:
    """One completion of a prompt, parsed.

    index: which of the request's n samples.
    tokens: as the model generated them, the token that stopped it included.
    messages: what they say; malformed harmony is recovered, and `diagnostics` tells what was wrong.
    text: the answer: the `final` messages.
    reasoning: the raw chain of thought, which end users should not be shown.
    preamble: what the model tells the user before it calls functions: `commentary` that is no call.
    tool_calls: the functions it calls; a call that was cut short is none, and stands in `messages` only.
    finish_reason: "stop", "length", "tool_calls" or "cancelled".
    stop: the stop string that ended it. Texts and messages end before it, `tokens` may contain it.
    logprobs: one entry for each token, if asked for.
    complete: under a grammar, whether the text it constrains is whole; None without one.
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
    complete: bool | None
    usage: Usage
    request_id: str

    def chat_message(self) -> dict[str, Any]:
        """The sample as the assistant's message of Chat Completions, to be appended to a list of such."""
        return chat_message_from(
            self.messages, call_id=lambda index: _call_id(self.request_id, self.index, index)
        )


@dataclasses.dataclass(frozen=True)
class Generation:
    """What came of one prompt: its `samples`, as many as `SamplingParams.n`.

    With one sample, its attributes are the generation's own: `generation.text` is
    `generation.samples[0].text`. With several, asking for them raises `ValueError`.
    """

    id: str
    prompt_tokens: list[int]
    samples: list[Sample]

    @property
    def usage(self) -> Usage:
        """The prompt's tokens, counted once, and the tokens of all samples."""
        usages = [sample.usage for sample in self.samples]
        return Usage(
            prompt_tokens=len(self.prompt_tokens),
            cached_tokens=min((usage.cached_tokens for usage in usages), default=0),
            generated_tokens=sum(usage.generated_tokens for usage in usages),
            reasoning_tokens=sum(usage.reasoning_tokens for usage in usages),
        )

    @property
    def sample(self) -> Sample:
        """The only sample. Raises ValueError if there are several, or none."""
        if len(self.samples) != 1:
            raise ValueError(f"the generation has {len(self.samples)} samples: take them from its `samples`")
        return self.samples[0]

    @property
    def tokens(self) -> list[int]:
        """As in `Sample`."""
        return self.sample.tokens

    @property
    def messages(self) -> list[Message]:
        """As in `Sample`."""
        return self.sample.messages

    @property
    def text(self) -> str:
        """As in `Sample`."""
        return self.sample.text

    @property
    def reasoning(self) -> str:
        """As in `Sample`."""
        return self.sample.reasoning

    @property
    def preamble(self) -> str:
        """As in `Sample`."""
        return self.sample.preamble

    @property
    def tool_calls(self) -> list[ToolCall]:
        """As in `Sample`."""
        return self.sample.tool_calls

    @property
    def finish_reason(self) -> AnswerReason:
        """As in `Sample`."""
        return self.sample.finish_reason

    @property
    def stop(self) -> str | None:
        """As in `Sample`."""
        return self.sample.stop

    @property
    def diagnostics(self) -> list[Diagnostic]:
        """As in `Sample`."""
        return self.sample.diagnostics

    @property
    def logprobs(self) -> tuple[TokenLogprobs, ...] | None:
        """As in `Sample`."""
        return self.sample.logprobs

    @property
    def complete(self) -> bool | None:
        """As in `Sample`."""
        return self.sample.complete

    def chat_message(self) -> dict[str, Any]:
        """As in `Sample`."""
        return self.sample.chat_message()


@dataclasses.dataclass(frozen=True)
class ToolRun:
    """What `LLM.run_tools` did: the whole conversation, calls, results and answer included; the generation of
    the last round; how many rounds there were. If the last round ended in calls, these were not run."""

    conversation: Conversation
    generation: Generation
    rounds: int


@dataclasses.dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """More chain of thought; all of a sample's add up to `Sample.reasoning`."""

    sample: int
    text: str


@dataclasses.dataclass(frozen=True, slots=True)
class PreambleDelta:
    """More preamble; all of a sample's add up to `Sample.preamble`."""

    sample: int
    text: str


@dataclasses.dataclass(frozen=True, slots=True)
class TextDelta:
    """More of the answer; all of a sample's add up to `Sample.text`."""

    sample: int
    text: str


@dataclasses.dataclass(frozen=True, slots=True)
class ToolCallReady:
    """A call is whole."""

    sample: int
    call: ToolCall


@dataclasses.dataclass(frozen=True, slots=True)
class Finished:
    """A sample is whole: the last of its events."""

    sample: int
    result: Sample


StreamEvent = ReasoningDelta | PreambleDelta | TextDelta | ToolCallReady | Finished


def read_sample(completion: Completion, request: Request, encoding: HarmonyEncoding) -> Sample:
    """Parses one completion of a request; never raises."""
    answer = read_answer(completion, encoding)
    return Sample(
        index=completion.sample,
        tokens=completion.tokens,
        messages=answer.messages,
        text=joined(answer.messages, "text"),
        reasoning=joined(answer.messages, "reasoning"),
        preamble=joined(answer.messages, "preamble"),
        tool_calls=[
            tool_call(message, request.id, completion.sample, number)
            for number, message in enumerate(answer.calls)
        ],
        finish_reason=answer.finish_reason,
        stop=completion.stop,
        diagnostics=answer.diagnostics,
        logprobs=completion.logprobs,
        complete=completion.grammar_complete,
        usage=Usage(
            prompt_tokens=answer.prompt_tokens,
            cached_tokens=answer.cached_tokens,
            generated_tokens=answer.generated_tokens,
            reasoning_tokens=answer.reasoning_tokens,
        ),
        request_id=request.id,
    )


def tool_call(message: Message, request_id: str, sample: int, number: int) -> ToolCall:
    """A message that calls a function as the `number`-th call of its sample."""
    return ToolCall(
        id=_call_id(request_id, sample, number),
        name=called_function(message) or "",
        arguments=text_of(message),
        message=message,
    )


def _call_id(request_id: str, sample: int, number: int) -> str:
    return f"call-{request_id}-{sample}-{number}"
