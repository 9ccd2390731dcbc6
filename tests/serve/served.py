"""Servers in threads of the tests' process."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx
import uvicorn
from openai import OpenAI
from sse_starlette.sse import AppStatus

from gptoss_jax.serve import ServerSettings, create_app
from gptoss_jax.serve.server import listen
from harmony import HarmonyEncoding
from tests.llm.fake_engine import FakeEngine

DATE = "2026-01-01"


@contextlib.contextmanager
def serving(
    engine: Any,
    encoding: HarmonyEncoding,
    store: Any = None,
    sealer: Any = None,
    tools: Any = (),
    extensions: Any = (),
    **settings: Any,
) -> Iterator[str]:
    """The address of a server in a thread of its own."""
    AppStatus.disable_automatic_graceful_drain()
    listening = listen("127.0.0.1", 0)
    named = {"model": "tiny", "date": DATE, **settings}
    app = create_app(
        engine,
        encoding,
        ServerSettings(**named),
        statistics=getattr(engine, "statistics", None),
        occupancy=getattr(engine, "occupancy", None),
        store=store,
        sealer=sealer,
        tools=tools,
        extensions=extensions,
    )
    server = uvicorn.Server(uvicorn.Config(app, log_config=None, timeout_graceful_shutdown=5))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(30)
        assert not thread.is_alive()


class Scripted:
    """A server whose engine answers every request with the same text, special tokens spelled out."""

    def __init__(self, url: str, engine: FakeEngine, encoding: HarmonyEncoding) -> None:
        self.url, self.engine, self.encoding = url, engine, encoding
        self.http = httpx.Client(base_url=f"{url}/v1", timeout=30)
        self.sdk = OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)

    def chat(self, **fields: Any) -> httpx.Response:
        body = {"messages": [{"role": "user", "content": "Hi"}], **fields}
        return self.http.post("/chat/completions", json=body)

    def responses(self, **fields: Any) -> httpx.Response:
        return self.http.post("/responses", json={"input": "Hi", **fields})

    def prompt(self) -> list[int]:
        """The tokens of the last request that the engine was given."""
        return list(self.engine.requests.values())[-1].prompt

    def figures(self) -> str:
        """What `/metrics` says."""
        return httpx.get(f"{self.url}/metrics", timeout=60).text

    def decoded_prompt(self) -> str:
        """The last prompt as text."""
        return self.encoding.decode(self.prompt())

    def wait_for(self, id: str) -> dict[str, Any]:
        """A background response, once it has ended."""
        end = time.monotonic() + 20
        while True:
            response: dict[str, Any] = self.http.get(f"/responses/{id}").json()
            if response["status"] not in ("queued", "in_progress"):
                return response
            assert time.monotonic() < end
            time.sleep(0.01)

    def wait_until_idle(self) -> None:
        """Waits until nothing is at work in the engine."""
        end = time.monotonic() + 20
        while self.engine.unfinished:
            assert time.monotonic() < end
            time.sleep(0.005)
