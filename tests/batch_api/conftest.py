from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from checkpoints import open_checkpoint
from gptoss_jax.batch_api import BatchApi, BatchSettings
from gptoss_jax.serve import ServerSettings
from gptoss_jax.vocabulary import load_encoding_for
from harmony import HarmonyEncoding
from tests.batch_api.batching import Client, echo
from tests.llm.fake_engine import FakeEngine
from tests.serve.served import DATE, serving


@pytest.fixture(scope="session")
def encoding() -> HarmonyEncoding:
    return load_encoding_for(open_checkpoint("tiny"))


@pytest.fixture
def start(encoding: HarmonyEncoding, tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Starts servers on one folder; each gives its client and its engine, and ends with its context."""

    @contextlib.contextmanager
    def started(
        engine: dict[str, Any] | None = None,
        settings: dict[str, Any] | None = None,
        engine_settings: dict[str, Any] | None = None,
        **limits: Any,
    ) -> Iterator[tuple[Client, FakeEngine]]:
        fake = FakeEngine(echo(encoding), **{"chunk": 50, **(engine or {})})
        named = {"model": "tiny", "date": DATE, **(settings or {})}
        api = BatchApi(
            BatchSettings(tmp_path / "data", **limits), ServerSettings(**named), engine_settings or {}
        )
        with serving(fake, encoding, extensions=[api], **(settings or {})) as url:
            client = Client(url)
            try:
                yield client, fake
            finally:
                fake.gate.set()
                client.close()

    yield started


@pytest.fixture
def client(start) -> Iterator[Client]:
    with start() as (client, _):
        yield client
