"""The conversation between a model and the functions that it calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gptoss_jax.answers import ToolCall, renderable
from gptoss_jax.llm.results import Generation, ToolRun
from harmony import Conversation, Message, Role

if TYPE_CHECKING:
    from harmony import HarmonyEncoding


class ToolLoop:
    """The conversation between rounds."""

    def __init__(self, conversation: Conversation, encoding: HarmonyEncoding) -> None:
        self._messages = list(conversation.messages)
        self._encoding = encoding
        self._rounds = 0

    @property
    def conversation(self) -> Conversation:
        """All messages so far."""
        return Conversation(messages=list(self._messages))

    def add_answer(self, generation: Generation) -> Sequence[ToolCall]:
        """Adds the model's messages. Returns the calls that need results; none if the model answered."""
        self._rounds += 1
        sample = generation.sample
        for message in sample.messages:
            if message.author.role is Role.ASSISTANT:
                self._messages.append(renderable(message, self._encoding))
        if sample.finish_reason != "tool_calls":
            return ()
        return [
            ToolCall(c.id, c.name, c.arguments, renderable(c.message, self._encoding))
            for c in sample.tool_calls
        ]

    def add_result(self, result: Message) -> None:
        """Adds the result of a call."""
        self._messages.append(result)

    def finish(self, generation: Generation) -> ToolRun:
        """The result, after the last round."""
        return ToolRun(self.conversation, generation, self._rounds)
