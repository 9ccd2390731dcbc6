"""Bodies in, JSON and event streams out."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING, Any

from sse_starlette import EventSourceResponse, ServerSentEvent
from starlette.responses import Response

from gptoss_jax.openai_api import ApiError, error_object, parse_object
from gptoss_jax.serve.generation import RETRY_SECONDS

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.types import Receive, Scope, Send

    from gptoss_jax.serve.generation import Generation

_logger = logging.getLogger("gptoss_jax.serve")

_ENCODER = json.JSONEncoder(separators=(",", ":"))

DONE = ServerSentEvent("[DONE]", sep="\n").encode()
"""The end of a chat stream."""

UNREADABLE = 422
"""The status of a body that is no request at all. Clients try requests with some other statuses again."""


async def read_body(request: Request, max_bytes: int) -> dict[str, Any]:
    """The JSON object that is the body of a request.

    Raises:
        ApiError: it is too long (413), or no JSON object (422).
    """
    too_long = ApiError(
        "body_too_large", f"the body has more than {max_bytes} bytes (--max-body-mib)", status=413
    )
    length = request.headers.get("content-length", "")
    if length.isdigit() and int(length) > max_bytes:
        raise too_long
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > max_bytes:
            raise too_long
    try:
        return parse_object(bytes(body), finite=True)
    except ApiError as error:
        raise ApiError(error.code, f"the body: {error}", status=UNREADABLE) from None


def json_text(value: object) -> str:
    """A value as JSON on one line, in ASCII: no reader of lines takes a part of it for a line's end."""
    return _ENCODER.encode(value)


def json_response(value: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """An answer in JSON."""
    return Response(json_text(value), status, headers, media_type="application/json")


def error_response(error: ApiError, headers: Mapping[str, str] | None = None) -> Response:
    """The answer to a request that cannot be answered."""
    headers = dict(headers or {})
    if error.status == 429:
        headers["Retry-After"] = str(RETRY_SECONDS)
    if error.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return json_response(error_object(error), error.status, headers)


def told(error: Exception) -> ApiError:
    """What a client is told of an error. Of a fault of this program, which is logged, it is told no more."""
    if isinstance(error, ApiError):
        return error
    _logger.error("a request failed", exc_info=error)
    return ApiError("server_error", "the server failed on this request", status=500)


class EventStream(EventSourceResponse):
    """A stream of pieces, each of whole events. It ends its generation, if it has one, when it ends, however
    it does: also where its client has vanished, or before it began."""

    def __init__(
        self,
        events: AsyncIterator[bytes],
        generation: Generation | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(events, headers=headers, sep="\n")
        self._generation = generation

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends the stream."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            if self._generation is not None:
                self._generation.close()


def event(value: Mapping[str, Any], name: str | None = None) -> bytes:
    """An event of a stream."""
    return ServerSentEvent(json_text(value), event=name, sep="\n").encode()
