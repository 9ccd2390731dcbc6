from __future__ import annotations

import contextlib
import functools
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


@contextlib.contextmanager
def serving_batches(
    folder: Path,
    encoding: HarmonyEncoding,
    engine: dict[str, Any] | None = None,
    settings: dict[str, Any] | None = None,
    engine_settings: dict[str, Any] | None = None,
    **limits: Any,
) -> Iterator[tuple[Client, FakeEngine]]:
    """A server on a folder; gives its client and its engine."""
    fake = FakeEngine(echo(encoding), **{"chunk": 50, **(engine or {})})
    named = {"model": "tiny", "date": DATE, **(settings or {})}
    api = BatchApi(BatchSettings(folder, **limits), ServerSettings(**named), engine_settings or {})
    with serving(fake, encoding, extensions=[api], **(settings or {})) as url:
        client = Client(url)
        try:
            yield client, fake
        finally:
            fake.gate.set()
            client.close()


@pytest.fixture
def start(encoding: HarmonyEncoding, tmp_path: Path) -> Callable[..., Any]:
    """Starts servers on one folder."""
    return functools.partial(serving_batches, tmp_path / "data", encoding)


@pytest.fixture
def client(start) -> Iterator[Client]:
    with start() as (client, _):
        yield client


@pytest.fixture(scope="module")
def small(
    encoding: HarmonyEncoding, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Client, FakeEngine, Path]]:
    """A server that takes little: batches of 50 lines of 2000 bytes; and its folder."""
    folder = tmp_path_factory.mktemp("small") / "data"
    options = {"settings": {"max_body_bytes": 2000}, "max_rows": 50}
    with serving_batches(folder, encoding, **options) as (client, engine):
        yield client, engine, folder
