"""A server of Chat Completions that sends what a test says."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Reply = Any
"""Chunks of a stream (objects, or raw text), or (status, content type, body)."""


class ScriptedServer(ThreadingHTTPServer):
    """Answers each POST with the next reply; keeps what it was sent.

    bodies: the JSON bodies of the requests. headers: their headers. models: the names that it lists.
    hung_up: set when a client went away in mid-stream.
    """

    daemon_threads = True

    def __init__(self, replies: Iterable[Reply], models: Iterable[str] = ("scripted",)) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.replies = iter(replies)
        self.models = list(models)
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.paths: list[str] = []
        self.hung_up = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that go away are part of the tests."""


class _Handler(BaseHTTPRequestHandler):
    server: ScriptedServer

    def log_message(self, *_: object) -> None:
        pass

    def _whole(self, status: int, kind: str, body: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body.encode())))
        self.end_headers()
        self.wfile.write(body.encode())

    def do_GET(self) -> None:
        self.server.paths.append(self.path)
        models = [{"id": name, "object": "model"} for name in self.server.models]
        self._whole(200, "application/json", json.dumps({"object": "list", "data": models}))

    def do_POST(self) -> None:
        self.server.paths.append(self.path)
        self.server.headers.append(dict(self.headers))
        self.server.bodies.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        reply = next(self.server.replies)
        if isinstance(reply, tuple):
            self._whole(*reply)
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.end_headers()
        try:
            for chunk in reply:
                text = chunk if isinstance(chunk, str) else f"data: {json.dumps(chunk)}\n\n"
                self.wfile.write(text.encode())
                self.wfile.flush()
        except OSError:
            self.server.hung_up.set()


@contextmanager
def serving(*replies: Reply, models: Iterable[str] = ("scripted",)) -> Iterator[ScriptedServer]:
    """A running server."""
    server = ScriptedServer(replies, models)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()


def chunk(finish_reason: str | None = None, **delta: Any) -> dict[str, Any]:
    """A chunk with a delta."""
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish_reason}]}


USAGE = {
    "choices": [],
    "usage": {"completion_tokens": 12, "completion_tokens_details": {"reasoning_tokens": 5}},
}
DONE = "data: [DONE]\n\n"


def saying(text: str, reasoning: str = "") -> list[Any]:
    """A whole stream that gives an answer word by word."""
    words = [chunk(content=word) for word in text.replace(" ", "\0 ").split("\0")]
    thought = [chunk(reasoning=reasoning)] if reasoning else []
    return [chunk(role="assistant"), *thought, *words, chunk("stop"), USAGE, DONE]
