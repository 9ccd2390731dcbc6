"""Runs the calls of built-in tools while a chat waits."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Generator, Sequence
from concurrent.futures import Future, wait
from typing import TYPE_CHECKING, Any, TypeVar

from gptoss_jax.tools import ToolSessions, text_of
from harmony import HarmonyFormatError, Message
from harmony.openai_formats import conversation_from_chat

if TYPE_CHECKING:
    from gptoss_jax.tools import Tool

_Result = TypeVar("_Result")

_WAKE_SECONDS = 0.2
"""The system may give Ctrl-C to any thread. The main thread notices when it wakes."""


class ToolRunner:
    """The sessions of a chat's tools, on an event loop in a thread of its own."""

    def __init__(self, tools: Sequence[Tool]) -> None:
        """Runs these tools; nothing of them is started yet."""
        self._sessions = ToolSessions(tools)
        self._running: asyncio.Task[Message] | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="tools", daemon=True)
        self._thread.start()

    def owns(self, call: dict[str, Any]) -> bool:
        """True for a call, as in Chat Completions, of one of the tools."""
        message = _message_of(call)
        return message is not None and self._sessions.owns(message)

    def run(self, call: dict[str, Any]) -> Generator[str]:
        """Yields the result of a call that `owns` is True for. Closing the iterator interrupts the call."""
        message = _message_of(call)
        assert message is not None
        answered: Future[Message] = Future()

        def begin() -> None:
            self._running = self._loop.create_task(self._sessions.run(message))
            self._running.add_done_callback(deliver)

        def deliver(task: asyncio.Task[Message]) -> None:
            if not task.cancelled():
                answered.set_result(task.result())

        try:
            self._loop.call_soon_threadsafe(begin)
            while not answered.done():
                wait([answered], _WAKE_SECONDS)
            yield text_of(answered.result())
        finally:  # Ctrl-C may come at any point above; the loop runs what it is given in order
            self._loop.call_soon_threadsafe(self._cancel)

    def reset(self) -> None:
        """Ends the sessions: the next call begins new ones."""
        self._submit(self._sessions.close()).result()

    def close(self) -> None:
        """Ends the sessions and the thread."""
        self.reset()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _cancel(self) -> None:
        if self._running is not None:
            self._running.cancel()
            self._running = None

    def _submit(self, coroutine: Coroutine[Any, Any, _Result]) -> Future[_Result]:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)


def _message_of(call: dict[str, Any]) -> Message | None:
    """The message of a call; None if no conversation can have it."""
    try:
        turn = conversation_from_chat([{"role": "assistant", "content": None, "tool_calls": [call]}])
    except HarmonyFormatError:
        return None
    return turn.messages[-1]
