"""The conversation between a model and the functions that it calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gptoss_jax.answers import ToolCall, text_of
from gptoss_jax.llm.results import Generation, ToolRun
from harmony import Author, Conversation, HarmonyError, Message, Role, TextContent

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
                self._messages.append(self._renderable(message))
        if sample.finish_reason != "tool_calls":
            return ()
        return [ToolCall(c.id, c.name, c.arguments, self._renderable(c.message)) for c in sample.tool_calls]

    def add_result(self, result: Message) -> None:
        """Adds the result of a call."""
        self._messages.append(result)

    def finish(self, generation: Generation) -> ToolRun:
        """The result, after the last round."""
        return ToolRun(self.conversation, generation, self._rounds)

    def _renderable(self, message: Message) -> Message:
        """The message, or one with the same text and a valid header if its own cannot be rendered.

        A model can sample any header. An invalid one must not end the conversation.
        """
        try:
            self._encoding.render(message)
            if message.is_call:
                author = Author(role=Role.TOOL, name=message.recipient)
                self._encoding.render(Message.from_author_and_content(author, ""))
        except HarmonyError:
            plain = Message(
                author=Author(role=Role.ASSISTANT),
                content=[TextContent(text=text_of(message))],
                channel="commentary" if message.is_call else "analysis",
            )
            return plain.with_recipient("functions.unknown") if message.is_call else plain
        return message
