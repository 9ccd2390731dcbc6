"""Built-in tools that do what a test wants, and servers whose engine speaks in rounds."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from typing import Any

from gptoss_jax.engine.request import Request
from gptoss_jax.tools import answer_to
from harmony import HarmonyEncoding, Message, ToolNamespaceConfig
from tests.llm.fake_engine import FakeEngine, Script


class FakeTool:
    """A tool whose answers `answer` makes of the texts of calls. `log` says what its sessions were told."""

    def __init__(
        self, name: str = "python", answer: Callable[[str], str] = lambda text: f"ran {text}"
    ) -> None:
        self.name = name
        self.declaration: ToolNamespaceConfig = getattr(ToolNamespaceConfig, name)()
        self.answer = answer
        self.log: list[tuple[int, str]] = []
        self.closed: list[int] = []
        self.begun = threading.Event()
        self.waits = False
        self.sessions = 0

    def session(self) -> FakeSession:
        self.sessions += 1
        return FakeSession(self, self.sessions)


class FakeSession:
    def __init__(self, tool: FakeTool, number: int) -> None:
        self._tool, self._number = tool, number

    async def run(self, call: Message) -> Message:
        text = call.content[0].text if call.content else ""  # type: ignore[attr-defined]
        self._tool.log.append((self._number, text))
        self._tool.begun.set()
        if self._tool.waits:
            await asyncio.sleep(600)
        return answer_to(call, self._tool.answer(text))

    async def close(self) -> None:
        self._tool.closed.append(self._number)


def engine_of_rounds(
    rounds: Sequence[str] | Callable[[int, int], str], encoding: HarmonyEncoding, **options: Any
) -> FakeEngine:
    """An engine that says the n-th text in the n-th round of each sample; the last one again and again."""

    def text_of(sample: int, number: int) -> str:
        return rounds(sample, number) if callable(rounds) else rounds[min(number, len(rounds) - 1)]

    def script(request: Request, sample: int) -> Script:
        parts = request.id.split("-")
        place = (int(parts[1]), int(parts[2])) if len(parts) == 3 else (sample, 0)
        text, _, reason = text_of(*place).partition("\0")
        cached = len(request.prompt) // 2
        tokens = encoding.encode(text, allowed_special="all")
        limit = request.sampling.max_tokens
        if limit is not None and len(tokens) > limit:
            tokens, reason = tokens[:limit], "length"
        return Script(tokens, "length" if reason == "length" else "stop", cached_tokens=cached)

    return FakeEngine(script, **{"chunk": 5, **options})
