from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from gptoss_jax.engine.request import Request, Update
from harmony import HarmonyEncoding
from tests.harmony.conftest import encoding, known, known_encoding, vocabulary_folder  # noqa: F401
from tests.llm.fake_engine import FakeEngine, Script
from tests.serve.served import Scripted, serving


class PausingEngine(FakeEngine):
    """A scripted engine that stops before the step `pause_at`, until `gate` is set; None: it does not."""

    pause_at: int | None = None

    def step(self) -> list[Update]:
        if self.steps == self.pause_at:
            self.gate.clear()
        return super().step()


@pytest.fixture
def scripted(encoding: HarmonyEncoding) -> Iterator[Callable[..., Scripted]]:  # noqa: F811
    """Starts servers whose engine answers each request with the next of some texts; the last one stays.

    A text that no stop token ends was cut by its limit.
    """
    with contextlib.ExitStack() as servers:

        def start(
            *texts: str,
            store: Any = None,
            sealer: Any = None,
            tools: Any = (),
            engine: Mapping[str, Any] | None = None,
            **settings: Any,
        ) -> Scripted:
            answers = itertools.chain(texts, itertools.repeat(texts[-1]))

            def script(request: Request, sample: int) -> Script:
                tokens = encoding.encode(next(answers), allowed_special="all")
                is_whole = tokens[-1] in encoding.stop_tokens()
                return Script(tokens, "stop" if is_whole else "length")

            playing = PausingEngine(script, **{"chunk": 2, **(engine or {})})
            url = servers.enter_context(serving(playing, encoding, store, sealer, tools, **settings))
            started = Scripted(url, playing, encoding)
            servers.callback(started.http.close)
            servers.callback(started.sdk.close)
            return started

        yield start
