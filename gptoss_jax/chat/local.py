"""Answers from an engine in this process."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gptoss_jax.chat.backend import Answer, ChatMessage, Piece
from gptoss_jax.chat.errors import ChatError, one_line
from gptoss_jax.engine.request import RequestError
from gptoss_jax.llm import EngineStopped, Finished, PreambleDelta, ReasoningDelta, TextDelta

if TYPE_CHECKING:
    from gptoss_jax.engine.request import SamplingParams
    from gptoss_jax.llm import LLM, Sample
    from harmony import ToolNamespaceConfig


class LocalBackend:
    """Answers by an `LLM`, which decides how much earlier reasoning stays in prompts."""

    def __init__(
        self,
        llm: LLM,
        *,
        sampling: SamplingParams | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        date: str | None = None,
        built_in_tools: Sequence[ToolNamespaceConfig] | None = None,
    ) -> None:
        """The `llm` belongs to the backend from now on, and is closed with it. The other arguments hold for
        every answer: see `LLM.stream`."""
        self.name = llm.name
        self._llm = llm
        self._sampling = sampling
        self._tools = tools
        self._date = date
        self._built_in_tools = built_in_tools

    def answer(self, messages: Sequence[ChatMessage], effort: str | None) -> Generator[Piece | Answer]:
        """See `Backend`."""
        try:
            stream = self._llm.stream(
                messages,
                self._sampling,
                effort=effort,
                tools=self._tools,
                date=self._date,
                built_in_tools=self._built_in_tools,
            )
            with stream:
                last = None  # the message that text for the user came from
                for event in stream:
                    if isinstance(event, Finished):
                        yield _whole(event.result)
                    elif isinstance(event, ReasoningDelta):
                        yield Piece("reasoning", event.text)
                    elif isinstance(event, PreambleDelta | TextDelta):
                        text = event.text[len(event.separator) :]
                        begins = last not in (None, event.message)
                        last = event.message
                        yield Piece("content", "\n\n" + text if begins else text)
        except RequestError as error:
            raise ChatError(one_line(error)) from None
        except EngineStopped as error:
            cause = f": {error.__cause__}" if error.__cause__ is not None else ""
            raise ChatError(one_line(f"{error}{cause}")) from None

    def close(self) -> None:
        """Closes the `LLM`."""
        self._llm.close()


def _whole(sample: Sample) -> Answer:
    message = sample.chat_message()
    if sample.finish_reason != "tool_calls":
        message.pop("tool_calls", None)  # they were cut: nobody can answer them
    return Answer(message, sample.finish_reason, sample.usage.generated_tokens, sample.usage.reasoning_tokens)
