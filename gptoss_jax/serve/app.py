"""The ASGI application."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from gptoss_jax.openai_api import ApiError
from gptoss_jax.serve.api import Api
from gptoss_jax.serve.generation import EngineClient
from gptoss_jax.serve.http import error_response, json_response, told
from gptoss_jax.serve.metrics import Metrics
from gptoss_jax.serve.middleware import KeyCheck, RequestLog
from gptoss_jax.serve.openapi import openapi_document
from gptoss_jax.serve.page import page_routes

if TYPE_CHECKING:
    from starlette.requests import Request

    from gptoss_jax.engine.engine_thread import EngineLike
    from gptoss_jax.engine.statistics import Occupancy, Statistics
    from gptoss_jax.serve.sealing import Sealer
    from gptoss_jax.serve.settings import ServerSettings
    from gptoss_jax.serve.store import ResponseStore
    from gptoss_jax.tools import Tool
    from harmony import HarmonyEncoding


class Extension(Protocol):
    """Addresses beside the server's own, and what is at work behind them."""

    def routes(self) -> Sequence[BaseRoute]:
        """The addresses."""

    async def start(self, client: EngineClient) -> None:
        """Called before the first request."""

    async def stop(self) -> None:
        """Called after the last request, while the engine still runs."""


def create_app(
    engine: EngineLike,
    encoding: HarmonyEncoding,
    settings: ServerSettings,
    *,
    statistics: Statistics | None = None,
    occupancy: Callable[[], Occupancy] | None = None,
    store: ResponseStore | None = None,
    sealer: Sealer | None = None,
    extensions: Sequence[Extension] = (),
    tools: Sequence[Tool] = (),
) -> Starlette:
    """The application in front of an engine, which belongs to it and is closed when it shuts down.

    Args:
        engine: what generates.
        encoding: what renders prompts and parses completions.
        settings: the server's.
        statistics, occupancy: the engine's own figures, for `/metrics`.
        store: keeps responses, and is closed as well; None keeps nothing.
        sealer: encrypts the chain of thought for clients that ask for it; None leaves it out.
        extensions: what is served besides.
        tools: the built-in tools that requests may ask for.

    Returns:
        The application; its `state.client` is the `EngineClient`.
    """
    metrics = Metrics(engine, statistics, occupancy)
    client = EngineClient(
        engine,
        encoding,
        metrics,
        name=settings.model,
        max_samples=settings.max_samples,
        max_seconds=settings.max_seconds,
        tools=tools,
        tool_limits=settings.tool_limits,
    )
    api = Api(client, settings, metrics, store, sealer)

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        for extension in extensions:
            await extension.start(client)
        warming = asyncio.ensure_future(api.warm())
        yield
        await warming
        for extension in extensions:
            await extension.stop()
        client.close()
        await api.close()
        await client.close_tools()
        if store is not None:
            store.close()

    async def document(request: Request) -> Response:
        """`GET /openapi.json`."""
        return json_response(described)

    routes: list[BaseRoute] = [
        Route("/v1/chat/completions", api.chat_completions, methods=["POST"]),
        Route("/v1/responses", api.responses, methods=["POST"]),
        Route("/v1/responses/{id}", api.stored_response, methods=["GET", "DELETE"]),
        Route("/v1/responses/{id}/input_items", api.input_items),
        Route("/v1/responses/{id}/cancel", api.cancel_response, methods=["POST"]),
        Route("/v1/harmony/tokens", api.tokens, methods=["POST"]),
        Route("/v1/models", api.models),
        Route("/v1/models/{model:path}", api.model),
        Route("/health", api.health),
        Route("/ready", api.ready),
        Route("/metrics", api.metrics),
        Route("/openapi.json", document),
        *(route for extension in extensions for route in extension.routes()),
    ]
    middleware = [
        Middleware(
            RequestLog, metrics=metrics, paths={route.path for route in routes if isinstance(route, Route)}
        )
    ]
    if settings.page:
        routes += page_routes()
    described = openapi_document(routes, settings)
    if settings.api_keys:
        middleware.append(Middleware(KeyCheck, keys=settings.api_keys))
    app = Starlette(
        routes=routes,
        middleware=middleware,
        lifespan=lifespan,
        exception_handlers={
            ApiError: _on_api_error,
            HTTPException: _on_http_error,
            ClientDisconnect: _on_disconnect,
            Exception: _on_fault,
        },
    )
    app.state.client = client
    return app


async def _on_api_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return error_response(error)


async def _on_http_error(request: Request, error: Exception) -> Response:
    """An address or a method that is none."""
    assert isinstance(error, HTTPException)
    what = f"{request.method} {request.url.path}"
    code, message = "not_found", f"there is no {what} here"
    if error.status_code == 405:
        code, message = "method_not_allowed", f"{what} is not possible: see the header Allow"
    return error_response(ApiError(code, message, status=error.status_code), error.headers)


async def _on_disconnect(request: Request, error: Exception) -> Response:
    """The client has gone while it sent its body: nobody reads this."""
    return Response(status_code=400)


async def _on_fault(request: Request, error: Exception) -> Response:
    """A fault of this program."""
    return error_response(told(error))
