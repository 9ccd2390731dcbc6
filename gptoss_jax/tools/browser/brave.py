"""The web as the back end of the browser: Brave's search service, and pages from where they are."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import urlsplit

import httpx

from gptoss_jax.tools.browser.backend import BackendError, Document, Hit
from gptoss_jax.tools.browser.fetching import Fetcher, resolve_url
from gptoss_jax.tools.browser.html import html_text

KEY_VARIABLE = "BRAVE_API_KEY"
_SERVICE = "https://api.search.brave.com/res/v1"
_SECONDS = 20.0
_MOST_RESULTS = 20
_MOST_BYTES = 4 << 20


class BraveBackend:
    """Searches with a key for Brave's search service; opens any public address."""

    def __init__(self, key: str, *, service: str = _SERVICE, fetcher: Fetcher | None = None) -> None:
        """A back end.

        Args:
            key: the API key.
            service: the address of the service.
            fetcher: opens pages; None for one that opens what is public.
        """
        self._key = key
        self._service = service
        self._fetcher = fetcher or Fetcher()

    async def search(self, query: str, count: int) -> Sequence[Hit]:
        """See `Backend`."""
        try:
            async with httpx.AsyncClient(timeout=_SECONDS) as client:
                response = await client.get(
                    f"{self._service}/web/search",
                    params={
                        "q": query[:400],
                        "count": min(count, _MOST_RESULTS),
                        "text_decorations": "false",
                    },
                    headers={"X-Subscription-Token": self._key, "Accept": "application/json"},
                )
            if not response.is_success:
                raise BackendError(f"the search service answers {response.status_code}")
            if len(response.content) > _MOST_BYTES:
                raise BackendError("the search service answers too much")
            body = response.json()
        except (httpx.HTTPError, OSError, ValueError, RecursionError) as error:
            reason = " ".join(str(error).split()) or type(error).__name__
            raise BackendError(f"the search failed: {reason}") from None
        found = body.get("web") if isinstance(body, dict) else None
        results = found.get("results") if isinstance(found, dict) else None
        return [
            Hit(result["url"], _text(result.get("title")), _text(result.get("description")))
            for result in (results if isinstance(results, list) else [])
            if isinstance(result, dict) and isinstance(result.get("url"), str)
        ]

    async def open(self, address: str) -> Document:
        """See `Backend`."""
        return await self._fetcher.fetch(address if "://" in address else f"https://{address}")

    def resolve(self, link: str, base: str) -> str | None:
        """See `Backend`."""
        return resolve_url(link, base)

    def site(self, address: str) -> str:
        """See `Backend`: the domain."""
        try:
            return urlsplit(address).hostname or ""
        except ValueError:
            return ""


def _text(value: object) -> str:
    """A field of a result, which may be HTML."""
    return html_text(value, lambda target, text: text)[1] if isinstance(value, str) else ""
