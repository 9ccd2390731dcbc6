"""What every request passes: the check of its key, and the count and log of its answer."""

from __future__ import annotations

import hashlib
import hmac
import logging
import time
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from starlette.datastructures import Headers

from gptoss_jax.openai_api import ApiError
from gptoss_jax.serve.http import error_response
from gptoss_jax.serve.page import is_page

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from gptoss_jax.serve.metrics import Metrics

_logger = logging.getLogger("gptoss_jax.serve")

OPEN_PATHS = ("/health", "/ready")
"""What is told without a key: load balancers have none."""


class KeyCheck:
    """Refuses requests without one of the keys."""

    def __init__(self, app: ASGIApp, keys: Sequence[str]) -> None:
        self._app = app
        self._digests = [_digest(key) for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes a request on, or refuses it."""
        if scope["type"] != "http" or _is_open(scope["path"]) or self._admits(Headers(scope=scope)):
            await self._app(scope, receive, send)
            return
        message = "the request has no valid API key: send it as Authorization: Bearer KEY"
        response = error_response(ApiError("invalid_api_key", message, status=401))
        await response(scope, receive, send)

    def _admits(self, headers: Headers) -> bool:
        scheme, _, key = headers.get("authorization", "").partition(" ")
        given = _digest(key.strip())
        # All are compared, each in a time that does not depend on how much of it is right.
        found = [hmac.compare_digest(given, digest) for digest in self._digests]
        return scheme.lower() == "bearer" and any(found)


def _is_open(path: str) -> bool:
    return path in OPEN_PATHS or is_page(path)


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


class RequestLog:
    """Counts requests and logs a line for each: the address, the status and the time; no part of bodies."""

    def __init__(self, app: ASGIApp, metrics: Metrics, paths: Collection[str]) -> None:
        """`paths`: the addresses that are counted by their names; all others count as one."""
        self._app, self._metrics, self._paths = app, metrics, paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes a request on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begin, status = time.perf_counter(), 500

        async def observe(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, observe)
        finally:
            seconds = time.perf_counter() - begin
            path = scope["path"] if scope["path"] in self._paths else "other"
            self._metrics.requests.labels(path, str(status)).inc()
            self._metrics.request_seconds.labels(path).observe(seconds)
            _logger.info("%s %s: %d after %.3f s", scope["method"], path, status, seconds)
