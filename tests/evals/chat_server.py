"""A server of Chat Completions that answers as a function of the prompt says; it serves many at a time."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Reply = Any
"""The text of an answer; or (status, headers, body); or None to hang up without an answer."""


class ChatServer(ThreadingHTTPServer):
    """Keeps what it was sent. bodies: the JSON bodies of the requests. keys: their headers Authorization."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, reply: Callable[[dict[str, Any]], Reply]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.reply = reply
        self.bodies: list[dict[str, Any]] = []
        self.keys: list[str | None] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that go away are part of the tests."""


class _Handler(BaseHTTPRequestHandler):
    server: ChatServer
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def do_POST(self) -> None:
        assert self.path == "/v1/chat/completions"
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.keys.append(self.headers["Authorization"])
        self.server.bodies.append(body)
        reply = self.server.reply(body)
        if reply is None:
            self.close_connection = True
            return
        status, headers, content = reply if isinstance(reply, tuple) else (200, {}, _completion(reply))
        data = content.encode()
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def _completion(text: str | None) -> str:
    choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": text}}
    usage = {"prompt_tokens": 5, "completion_tokens": 7}
    return json.dumps({"object": "chat.completion", "choices": [choice], "usage": usage})


@contextmanager
def serving(reply: Callable[[dict[str, Any]], Reply]) -> Iterator[ChatServer]:
    """A running server."""
    server = ChatServer(reply)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
