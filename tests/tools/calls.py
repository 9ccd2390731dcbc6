"""Calls as a model writes them, and what is answered."""

from __future__ import annotations

import asyncio
import json

from gptoss_jax.tools import ToolSession
from harmony import Message, Role, TextContent


def call_of(recipient: str, content: object, channel: str = "analysis") -> Message:
    """A call; content that is no text is written as JSON."""
    text = content if isinstance(content, str) else json.dumps(content)
    message = Message.from_role_and_content(Role.ASSISTANT, text)
    return message.with_recipient(recipient).with_channel(channel)


def text_in(message: Message) -> str:
    part = message.content[0]
    assert isinstance(part, TextContent)
    return part.text


class Running:
    """A session on an event loop of its own, for tests that do not run on one."""

    def __init__(self, session: ToolSession, name: str) -> None:
        self._runner = asyncio.Runner()
        self.session = session
        self._name = name

    def run(self, content: object, function: str = "") -> str:
        recipient = f"{self._name}.{function}" if function else self._name
        return text_in(self.wait(self.session.run(call_of(recipient, content))))

    def wait(self, coroutine):
        return self._runner.run(coroutine)

    def close(self) -> None:
        self._runner.run(self.session.close())
        self._runner.close()
