"""The page at `/`: a chat with the model, and the conversation as tokens.

Its files are in `static/`. They ask the server's own addresses only, which the header
`Content-Security-Policy` holds them to.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

ASSETS = "/page"
"""Where the page's files are, but for the page itself."""

_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'",
    "Cache-Control": "no-cache",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


class _Files(StaticFiles):
    """The files, each with the page's headers."""

    def file_response(self, *args: Any, **kwargs: Any) -> Response:
        """The file, or that it has not changed."""
        response = super().file_response(*args, **kwargs)
        response.headers.update(_HEADERS)
        return response


def is_page(path: str) -> bool:
    """Whether a path is the page's, which is told without a key: the page asks for the key."""
    return path == "/" or path.startswith(f"{ASSETS}/")


def page_routes() -> list[BaseRoute]:
    """The page's addresses."""
    files = _Files(directory=Path(__file__).with_name("static"))

    async def index(request: Request) -> Response:
        return await files.get_response("index.html", request.scope)

    return [Route("/", index), Mount(ASSETS, files)]
