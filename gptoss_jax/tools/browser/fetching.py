"""Fetches documents of the web, and of nothing that only this machine or its network can reach."""

from __future__ import annotations

import asyncio
import ipaddress
import re
import socket
import ssl
import zlib
from collections.abc import Callable
from urllib.parse import urljoin, urlsplit

import httpx

from gptoss_jax.tools.browser.backend import BackendError, Document, Kind
from harmony.errors import shown

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

_SECONDS = 20.0
_MOST_BYTES = 4 << 20
"""How much of a document is read, unpacked."""

_REDIRECTS = 5
_KINDS: dict[str, Kind] = {"text/html": "html", "application/xhtml+xml": "html", "text/markdown": "markdown"}
_TEXTS = re.compile(r"text/.*|application/(?:.*\+)?(?:json|xml)|application/(?:javascript|x-ndjson|yaml)")
_TRANSLATED = (ipaddress.IPv6Network("64:ff9b::/96"), ipaddress.IPv6Network("64:ff9b:1::/48"))
"""IPv6 addresses that stand for IPv4 ones."""


def is_public(address: Address) -> bool:
    """True for an address of the public internet: no loopback, private, link-local or reserved one.

    The same holds of an IPv4 address that an IPv6 one stands for.
    """
    if isinstance(address, ipaddress.IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour or (address.teredo or (None, None))[1]
        if inner is None and any(address in network for network in _TRANSLATED):
            inner = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
        if inner is not None and not is_public(inner):
            return False
    return address.is_global and not address.is_multicast


class Fetcher:
    """Fetches documents by HTTP and HTTPS.

    Names are looked up here, and the connection goes to the address that was checked, also after each
    redirect: what a name means cannot change in between. Proxies of the environment are not used.
    """

    def __init__(self, allowed: Callable[[Address], bool] = is_public) -> None:
        """`allowed` says which addresses may be connected to."""
        self._allowed = allowed
        self._tls = ssl.create_default_context()

    async def fetch(self, url: str) -> Document:
        """The document of a URL. Raises BackendError."""
        try:
            async with asyncio.timeout(_SECONDS), self._client() as client:
                for _ in range(_REDIRECTS + 1):
                    found = await self._one(client, url)
                    if isinstance(found, Document):
                        return found
                    url = found
        except TimeoutError:
            raise BackendError(f"{shown(url, 200)} was not there in {_SECONDS:.0f} seconds") from None
        except (httpx.HTTPError, httpx.InvalidURL, zlib.error, OSError, ValueError) as error:
            reason = " ".join(str(error).split()) or type(error).__name__
            raise BackendError(f"cannot open {shown(url, 200)}: {reason}") from None
        raise BackendError(f"{shown(url, 200)}: more than {_REDIRECTS} redirects")

    def _client(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(
            verify=self._tls, trust_env=False, follow_redirects=False, timeout=_SECONDS, http2=False
        )

    async def _one(self, client: httpx.AsyncClient, url: str) -> Document | str:
        """The document of a URL, or the URL that it redirects to."""
        target = httpx.URL(url)
        if target.scheme not in ("http", "https") or not target.host:
            raise BackendError(f"{shown(url, 200)} cannot be opened: it must begin with http:// or https://")
        address = await self._checked_address(target)
        request = client.build_request(
            "GET",
            target.copy_with(host=str(address), username=None, password=None, fragment=None),
            headers={
                "host": target.netloc.decode("ascii"),
                "accept": "text/html, text/*;q=0.9, */*;q=0.5",
                "accept-encoding": "gzip",
                "user-agent": "gptoss-jax",
            },
            extensions={"sni_hostname": target.raw_host.decode("ascii")},
        )
        response = await client.send(request, stream=True)
        try:
            if response.has_redirect_location:
                return urljoin(url, response.headers["location"])
            if not response.is_success:
                raise BackendError(f"{shown(url, 200)} answers {response.status_code}")
            return await _document(str(target), response)
        finally:
            await response.aclose()

    async def _checked_address(self, url: httpx.URL) -> str:
        """The address that a URL's host has. Raises BackendError if it may not be connected to."""
        port = url.port or (443 if url.scheme == "https" else 80)
        infos = await asyncio.get_running_loop().getaddrinfo(url.host, port, type=socket.SOCK_STREAM)
        addresses = [str(info[4][0]) for info in infos]
        for text in addresses:
            if not self._allowed(ipaddress.ip_address(text.partition("%")[0])):
                raise BackendError(f"{shown(url.host)} is not on the public internet, and is not opened")
        return addresses[0]


async def _document(url: str, response: httpx.Response) -> Document:
    name, _, rest = response.headers.get("content-type", "text/html").partition(";")
    name = name.strip().lower()
    kind = _KINDS.get(name, "text")
    if kind == "text" and not _TEXTS.fullmatch(name):
        raise BackendError(f"{shown(url, 200)} is {shown(name)}: only text can be shown")
    source, is_cut = await _body(response)
    charset = re.search(r"charset\s*=\s*[\"']?([\w.:-]{1,40})", rest, re.IGNORECASE)
    text: str | bytes = source
    if charset is not None:
        try:
            text = source.decode(charset[1], "replace")
        except (LookupError, ValueError):  # there is no such encoding, or it is none of text
            text = source
    elif kind != "html":
        text = source.decode("utf-8", "replace")
    return Document(url, kind, text, is_cut=is_cut)


async def _body(response: httpx.Response) -> tuple[bytes, bool]:
    """The beginning of a body, unpacked; and whether there is more. It is unpacked here, to a limit: a small
    body may unpack to a huge one."""
    encoding = response.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("identity", "", "gzip", "x-gzip"):
        raise BackendError(f"its encoding is {shown(encoding)}: it must be gzip or none")
    unpacker = zlib.decompressobj(zlib.MAX_WBITS | 16) if "gzip" in encoding else None
    body = bytearray()
    async for chunk in response.aiter_raw():
        body += chunk if unpacker is None else unpacker.decompress(chunk, _MOST_BYTES + 1 - len(body))
        if len(body) > _MOST_BYTES:
            return bytes(body[:_MOST_BYTES]), True
    return bytes(body), False


def resolve_url(link: str, base: str) -> str | None:
    """The URL that a link of a page leads to; None if it is none of the web."""
    try:
        url = urljoin(base, link)
        parts = urlsplit(url)
        if parts.scheme in ("http", "https") and parts.hostname:
            return url
    except ValueError:
        pass
    return None
