"""The results of the Python API."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from gptoss_jax.answers import AnswerReason, Sample, ToolCall, Usage, usage_of

if TYPE_CHECKING:
    from gptoss_jax.engine.request import TokenLogprobs
    from harmony import Conversation, Diagnostic, Message
    from harmony.json_types import JsonObject


@dataclasses.dataclass(frozen=True)
class Generation:
    """The result of one prompt.

    id: the request's id.
    prompt_tokens: the tokens of the rendered prompt.
    samples: as many as `SamplingParams.n`.

    If there is one sample, the generation has its attributes too: `generation.text` is
    `generation.samples[0].text`. If there are several, these attributes raise `ValueError`.
    """

    id: str
    prompt_tokens: list[int]
    samples: list[Sample]

    @property
    def usage(self) -> Usage:
        """The prompt's tokens, counted once, and the tokens of all samples."""
        return dataclasses.replace(usage_of(self.samples), prompt_tokens=len(self.prompt_tokens))

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

    def chat_message(self) -> JsonObject:
        """As in `Sample`."""
        return self.sample.chat_message()


@dataclasses.dataclass(frozen=True)
class ToolRun:
    """The result of `LLM.run_tools`.

    conversation: all messages, with the calls, their results and the answer.
    generation: the result of the last round. If it ends in calls, they were not run.
    rounds: how many rounds there were.
    """

    conversation: Conversation
    generation: Generation
    rounds: int
