"""Serving an application until a signal, or the engine's failure, ends it."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import threading
import warnings
from typing import TYPE_CHECKING, Any

import uvicorn
from sse_starlette.sse import AppStatus

if TYPE_CHECKING:
    from collections.abc import Iterator

    from starlette.applications import Starlette

    from gptoss_jax.serve.generation import EngineClient


class _Server(uvicorn.Server):
    """A server that gives requests at work some time when it is told to stop, and then ends them with an
    error that says why."""

    def __init__(self, config: uvicorn.Config, client: EngineClient, drain_seconds: float) -> None:
        super().__init__(config)
        self._client = client
        self._drain_seconds = drain_seconds
        self.failure: str | None = None
        client.on_failure = self._fail

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Waits for requests at work."""
        loop = asyncio.get_running_loop()
        timer = loop.call_later(self._drain_seconds, self._end_requests)
        try:
            await super().shutdown(sockets)
        finally:
            timer.cancel()

    def _end_requests(self) -> None:
        """Closes the engine in a thread, since a step may be in progress; waiting requests hear of it."""
        asyncio.get_running_loop().run_in_executor(None, self._client.close)

    def _fail(self, reason: str) -> None:
        self.failure = reason
        self.should_exit = True


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens; port 0 is any that is free.

    Raises:
        OSError: the address is not there, or in use.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen(4096)
    except OSError:
        listening.close()
        raise
    return listening


def uvicorn_config(app: Starlette) -> uvicorn.Config:
    """How uvicorn serves an application of this package."""
    AppStatus.disable_automatic_graceful_drain()  # which would end all streams at once
    options: dict[str, Any] = {"log_config": None, "access_log": False, "server_header": False}
    return uvicorn.Config(app, lifespan="on", timeout_keep_alive=75, backlog=4096, **options)


def run_server(app: Starlette, listening: socket.socket, *, drain_seconds: float) -> str | None:
    """Serves until SIGTERM or Ctrl-C; requests at work then have `drain_seconds` to end.

    Returns:
        Why the engine failed, if that ended the server; else None.
    """
    server = _Server(uvicorn_config(app), app.state.client, drain_seconds)
    # uvloop starts the processes of tools by a fork that ends in exec at once: the warning is about others.
    warnings.filterwarnings("ignore", r"os\.fork\(\) was called", RuntimeWarning)
    with _ending_by_signals():
        server.run(sockets=[listening])
    return server.failure


@contextlib.contextmanager
def _ending_by_signals() -> Iterator[None]:
    """Makes SIGTERM and Ctrl-C an ordinary end: uvicorn raises them once more when it has stopped."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, _pass) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _pass(number: int, frame: object) -> None:
    """Does nothing."""
