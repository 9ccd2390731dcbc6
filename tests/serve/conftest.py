from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from openai import OpenAI

from checkpoints import open_checkpoint
from gptoss_jax.engine.request import Request
from gptoss_jax.llm.loading import load_engine
from gptoss_jax.vocabulary import load_encoding_for
from harmony import HarmonyEncoding
from tests import tiny_engine
from tests.llm.fake_engine import FakeEngine, Script
from tests.serve.served import Scripted, serving


@pytest.fixture(scope="session")
def encoding() -> HarmonyEncoding:
    return load_encoding_for(open_checkpoint("tiny"))


@pytest.fixture(scope="session")
def tiny_url() -> Iterator[str]:
    """A server on the embedded checkpoint."""
    engine, encoding, _ = load_engine("tiny", dtype=tiny_engine.DTYPE, **tiny_engine.OPTIONS)
    with serving(engine, encoding, reasoning_share=0.75) as url:
        yield url


@pytest.fixture
def client(tiny_url: str) -> Iterator[OpenAI]:
    """The SDK's client of the embedded checkpoint."""
    with OpenAI(base_url=f"{tiny_url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture
def scripted(encoding: HarmonyEncoding) -> Iterator[Callable[..., Scripted]]:
    """Starts servers on scripted engines."""
    with contextlib.ExitStack() as servers:

        def start(
            text: str,
            finish_reason: Any = "stop",
            *,
            settings: dict[str, Any] | None = None,
            store: Any = None,
            sealer: Any = None,
            **engine: Any,
        ) -> Scripted:
            tokens = encoding.encode(text, allowed_special="all")

            def script(request: Request, sample: int) -> Script:
                return Script(tokens, finish_reason)

            fake = FakeEngine(script, **{"chunk": 5, **engine})
            url = servers.enter_context(serving(fake, encoding, store, sealer, **settings or {}))
            started = Scripted(url, fake, encoding)
            servers.callback(started.http.close)
            servers.callback(started.sdk.close)
            return started

        yield start
