"""What a built-in tool is to those that run its calls."""

from __future__ import annotations

from typing import Protocol

from harmony import Author, Message, Role, TextContent, ToolNamespaceConfig


class ToolSession(Protocol):
    """A tool in one conversation, with what it keeps between calls: variables, pages.

    A session belongs to one event loop. It starts what it needs at the first call.
    """

    async def run(self, call: Message) -> Message:
        """The answer to a call: an assistant's message whose recipient is the tool or a function of it.

        What goes wrong is said in the answer, for the model to read; nothing is raised. Cancelling the task
        interrupts the call, and the session goes on.
        """

    async def close(self) -> None:
        """Ends the session and all that it started. A second call does nothing."""


class Tool(Protocol):
    """A built-in tool.

    name: "python" or "browser"; the recipient of calls is the name, or the name and a function behind a dot.
    declaration: what the system message says of it.
    """

    @property
    def name(self) -> str:
        """The tool's name."""

    @property
    def declaration(self) -> ToolNamespaceConfig:
        """The tool's entry in the system message."""

    def session(self) -> ToolSession:
        """A new session, which has started nothing yet."""


def answer_to(call: Message, text: str) -> Message:
    """The message with a tool's text: by the call's recipient, to the assistant, on the channel of the call.

    A lone surrogate, which no token can carry, becomes U+FFFD.
    """
    clean = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return Message(
        author=Author(role=Role.TOOL, name=call.recipient),
        content=[TextContent(text=clean)],
        channel=call.channel,
        recipient="assistant",
    )


def text_of(call: Message) -> str:
    """The text of a call's content, its parts joined."""
    return "".join(part.text for part in call.content if isinstance(part, TextContent))
