"""The kinds of messages in a completion."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Literal

from harmony import Author, Cursor, HarmonyError, Message, Role, TextContent

if TYPE_CHECKING:
    from harmony import HarmonyEncoding

Kind = Literal["reasoning", "preamble", "text", "call"]
"""The chain of thought; text for the user before tool calls; the answer; a tool call."""


def kind_of(message: Message) -> Kind | None:
    """Returns the kind of a message; None if its role is not the assistant: the model made it up.

    A message without a channel, which comes from a malformed header, counts as reasoning: it may be chain of
    thought.
    """
    if message.author.role is not Role.ASSISTANT:
        return None
    if message.is_call:
        return "call"
    if message.channel == "final":
        return "text"
    return "preamble" if message.channel == "commentary" else "reasoning"


def text_of(message: Message) -> str:
    """The text of a message."""
    return "".join(part.text for part in message.content if isinstance(part, TextContent))


def renderable(message: Message, encoding: HarmonyEncoding) -> Message:
    """The message, or one with the same text and a valid header if its own cannot be rendered.

    A model can sample any header. An invalid one must not end the conversation.
    """
    try:
        encoding.render(message)
        if message.is_call:
            author = Author(role=Role.TOOL, name=message.recipient)
            encoding.render(Message.from_author_and_content(author, ""))
    except HarmonyError:
        plain = Message(
            author=Author(role=Role.ASSISTANT),
            content=[TextContent(text=text_of(message))],
            channel="commentary" if message.is_call else "analysis",
        )
        return plain.with_recipient("functions.unknown") if message.is_call else plain
    return message


def count_reasoning(tokens: Iterable[int], encoding: HarmonyEncoding) -> int:
    """Counts the content tokens of a completion's messages on the analysis channel."""
    cursor = Cursor(encoding)
    return sum(cursor.take(token) and cursor.channel == "analysis" for token in tokens)
