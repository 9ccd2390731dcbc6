"""The tools of one conversation."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gptoss_jax.tools.types import Tool, ToolSession, answer_to
from harmony import Message


class ToolSessions:
    """The sessions of one conversation, each begun at the first call of its tool."""

    def __init__(self, tools: Iterable[Tool]) -> None:
        """Sessions of these tools; none is begun yet."""
        self._tools = {tool.name: tool for tool in tools}
        self._sessions: dict[str, ToolSession] = {}

    @property
    def tools(self) -> Sequence[Tool]:
        """The tools, in the order in which they were given."""
        return tuple(self._tools.values())

    def owns(self, message: Message) -> bool:
        """True for a call of one of the tools, whatever its function is called."""
        return message.is_call and _tool_name(message) in self._tools

    async def run(self, call: Message) -> Message:
        """The answer to a call that `owns` is True for.

        Raises:
            ValueError: it is no call of one of the tools.
        """
        if not self.owns(call):
            known = ", ".join(self._tools) or "none"
            raise ValueError(f"{call.recipient!r} is no tool of these sessions: they have {known}")
        name = _tool_name(call)
        session = self._sessions.get(name)
        if session is None:
            session = self._sessions[name] = self._tools[name].session()
        try:
            return await session.run(call)
        except Exception as error:  # a back end is a plug-in: its fault must not end the conversation
            return answer_to(call, f"error: {name} failed: {type(error).__name__}: {error}")

    async def close(self) -> None:
        """Ends all sessions. The next call begins new ones."""
        while self._sessions:
            _, session = self._sessions.popitem()
            await session.close()


def _tool_name(message: Message) -> str:
    return (message.recipient or "").partition(".")[0]
