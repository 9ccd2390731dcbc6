from __future__ import annotations

import dataclasses
import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from checkpoints import open_checkpoint
from gptoss_jax.chat import Chat, Display, Transcript
from gptoss_jax.chat.local import LocalBackend
from gptoss_jax.chat.tools import ToolRunner
from gptoss_jax.engine.request import Request
from gptoss_jax.llm import LLM
from gptoss_jax.tools import Tool
from gptoss_jax.vocabulary import load_encoding_for
from harmony import HarmonyEncoding
from tests.llm.fake_engine import FakeEngine, Script


@pytest.fixture(scope="session")
def encoding() -> HarmonyEncoding:
    return load_encoding_for(open_checkpoint("tiny"))


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch) -> None:
    """Scripted servers are reached without the proxy that the machine may have."""
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


class Typed:
    """Input that was typed beforehand: texts, and exceptions in their places."""

    def __init__(self, *lines: str | type[BaseException], is_interactive: bool = True) -> None:
        self.is_interactive = is_interactive
        self.asked: list[str] = []
        self._lines = iter(lines)

    def message(self) -> str:
        line = next(self._lines, EOFError)
        if isinstance(line, str):
            return line
        raise line

    def result(self, name: str) -> str:
        self.asked.append(name)
        return self.message()


@dataclasses.dataclass
class Held:
    """What a chat showed, and what it asked the engine."""

    chat: Chat
    transcript: Transcript
    out: str
    notes: str
    prompts: list[str]
    asked: list[str]

    @property
    def messages(self) -> list[dict[str, Any]]:
        return self.transcript.messages


@pytest.fixture
def held(encoding: HarmonyEncoding) -> Iterator[Callable[..., Held]]:
    """Holds a chat with a scripted engine: `answers` in turn, or a function of the request."""
    made: list[LLM] = []

    def hold(
        answers: list[str | Script] | Callable[[Request, int], str | Script],
        *typed: str | type[BaseException],
        colour: bool = False,
        live: bool = False,
        show_reasoning: bool = False,
        is_interactive: bool = True,
        instructions: str | None = None,
        path: Path | None = None,
        transcript: Transcript | None = None,
        tools: list[dict[str, Any]] | None = None,
        stats: bool = False,
        engine: dict[str, Any] | None = None,
        built_in: list[Tool] | None = None,
        rounds: int = 50,
    ) -> Held:
        queue = iter(()) if callable(answers) else iter(answers)

        def script(request: Request, sample: int) -> Script:
            said = answers(request, sample) if callable(answers) else next(queue)
            return said if isinstance(said, Script) else Script(encoding.encode(said, allowed_special="all"))

        scripted = FakeEngine(script, **(engine or {}))
        llm = LLM.from_engine(scripted, encoding, "fake")
        made.append(llm)
        out, notes, lines = io.StringIO(), io.StringIO(), Typed(*typed, is_interactive=is_interactive)
        transcript = transcript or Transcript(instructions, path)
        display = Display(out, notes, colour=colour, live=live, show_reasoning=show_reasoning)
        declared = [tool.declaration for tool in built_in or ()]
        backend = LocalBackend(llm, tools=tools, date="2026-01-01", built_in_tools=declared)
        runner = ToolRunner(built_in) if built_in else None
        chat = Chat(backend, transcript, lines, display, stats=stats, tools=runner, rounds=rounds)
        try:
            chat.run()
        finally:
            if runner is not None:
                runner.close()
        prompts = [encoding.decode(request.prompt) for request in scripted.requests.values()]
        return Held(chat, chat._transcript, out.getvalue(), notes.getvalue(), prompts, lines.asked)

    yield hold
    for llm in made:
        llm.close()
