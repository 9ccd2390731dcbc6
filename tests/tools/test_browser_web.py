"""The browser on the web, by a server of the test's own: what is fetched, and what is refused."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import ipaddress
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from gptoss_jax.tools.browser.backend import BackendError
from gptoss_jax.tools.browser.brave import BraveBackend
from gptoss_jax.tools.browser.fetching import Fetcher, is_public
from gptoss_jax.tools.browser.tool import BrowserTool
from tests.tools.calls import Running

RESULTS = {
    "web": {
        "results": [
            {
                "title": "Tea &amp; <b>time</b>",
                "url": "http://127.0.0.1:{port}/tea",
                "description": "On <strong>tea</strong>",
            },
            {"title": None, "url": "https://example.com/a", "description": 3},
            {"title": "no url"},
            "nothing",
        ]
    }
}


class Handler(BaseHTTPRequestHandler):
    seen: list[tuple[str, dict[str, str]]]

    def do_GET(self) -> None:
        self.seen.append((self.path, {name.lower(): value for name, value in self.headers.items()}))
        path, port = self.path.partition("?")[0], self.server.server_address[1]
        if path == "/api/web/search":
            text = json.dumps(RESULTS).replace("{port}", str(port))
            return self.answer(text.encode(), "application/json")
        if path == "/tea":
            return self.answer(b"<title>Tea</title><p>Hot. <a href='/pot?a=1#b'>pot</a>", "text/html")
        if path == "/latin":
            return self.answer("é".encode("latin-1"), "text/plain; charset=ISO-8859-1")
        if path == "/bogus":
            return self.answer("é".encode(), "text/plain; charset=no-such")
        if path == "/pdf":
            return self.answer(b"%PDF", "application/pdf")
        if path == "/bomb":
            body = gzip.compress(b"tea " * (2 << 20))
            return self.answer(body, "text/plain", ("content-encoding", "gzip"))
        if path == "/zip":
            return self.answer(gzip.compress(b"zipped"), "text/plain", ("content-encoding", "gzip"))
        if path == "/broken":
            return self.answer(b"no gzip", "text/plain", ("content-encoding", "gzip"))
        if path == "/brotli":
            return self.answer(b"?", "text/plain", ("content-encoding", "br"))
        if path == "/loop":
            return self.answer(b"", "text/plain", ("location", "/loop"), status=302)
        if path == "/to-tea":
            return self.answer(b"", "text/plain", ("location", "tea"), status=301)
        if path == "/inside":
            return self.answer(b"", "text/plain", ("location", f"http://127.0.0.2:{port}/tea"), status=302)
        if path == "/file":
            return self.answer(b"", "text/plain", ("location", "file:///etc/passwd"), status=302)
        return self.answer(b"gone", "text/plain", status=404)

    def answer(self, body: bytes, kind: str, *headers: tuple[str, str], status: int = 200) -> None:
        self.send_response(status)
        for name, value in (("content-type", kind), ("content-length", str(len(body))), *headers):
            self.send_header(name, value)
        self.end_headers()
        with contextlib.suppress(OSError):
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[str, list[tuple[str, dict[str, str]]]]]:
    seen: list[tuple[str, dict[str, str]]] = []
    handler = type("Seen", (Handler,), {"seen": seen})
    http = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=http.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{http.server_address[1]}", seen
    http.shutdown()
    thread.join()
    http.server_close()


@pytest.fixture
def browser(server) -> Iterator[Running]:
    own = ipaddress.ip_address("127.0.0.1")
    backend = BraveBackend(
        "secret-key", service=server[0] + "/api", fetcher=Fetcher(lambda found: found == own)
    )
    running = Running(BrowserTool(backend).session(), "browser")
    yield running
    running.close()


def test_a_search_is_asked_with_the_key_and_its_results_open(browser: Running, server) -> None:
    found = browser.run({"query": "hot tea", "topn": 500}, "search")
    path, headers = server[1][-1]
    assert (
        path.startswith("/api/web/search?q=hot+tea&count=20")
        and headers["x-subscription-token"] == "secret-key"
    )
    assert (
        "  * 【0†Tea & time†127.0.0.1】 On tea" in found
        and "【1†https://example.com/a†example.com】" in found
    )
    opened = browser.run({"id": 0}, "open")
    assert opened.startswith(f"[1] Tea ({server[0]}/tea)") and "Hot. 【0†pot】" in opened
    assert "x-subscription-token" not in server[1][-1][1] and "cookie" not in server[1][-1][1]
    assert "answers 404" in browser.run({"id": 0}, "open")
    assert server[1][-1][0] == "/pot?a=1", "no fragment is sent"


def test_bodies_are_read_in_their_encoding_and_to_a_limit(browser: Running, server) -> None:
    def opened(path: str) -> str:
        return browser.run({"id": server[0] + path}, "open")

    assert "L3: é" in opened("/latin") and "L3: é" in opened("/bogus")
    assert "L3: zipped" in opened("/zip")
    assert "only text can be shown" in opened("/pdf")
    assert opened("/broken").startswith("error: cannot open") and "its encoding is 'br'" in opened("/brotli")
    assert "viewing lines [0 - " in opened("/bomb")
    assert "is longer" in browser.run({"pattern": "only its beginning"}, "find")


def test_redirects_are_followed_and_each_is_checked(browser: Running, server) -> None:
    assert browser.run({"id": server[0] + "/to-tea"}, "open").startswith(f"[0] Tea ({server[0]}/tea)")
    assert "more than 5 redirects" in browser.run({"id": server[0] + "/loop"}, "open")
    before = len(server[1])
    assert "'127.0.0.2' is not on the public internet" in browser.run({"id": server[0] + "/inside"}, "open")
    assert "must begin with http" in browser.run({"id": server[0] + "/file"}, "open")
    assert len(server[1]) == before + 2, "only the redirects themselves were asked for"


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:{port}/tea",
        "http://localhost:{port}/tea",
        "http://[::1]:{port}/tea",
        "http://[::ffff:127.0.0.1]:{port}/tea",
        "http://0.0.0.0:{port}/tea",
        "http://2130706433:{port}/tea",
        "http://0x7f.1:{port}/tea",
        "http://10.0.0.1/",
        "http://169.254.169.254/latest/meta-data/",
        "http://[fe80::1%25lo]/",
        "http://[64:ff9b::7f00:1]/",
        "http://[2002:7f00:1::]/",
        "http://user:pw@127.0.0.1:{port}/tea",
        "127.0.0.1:{port}/tea",
        "ftp://example.com/",
        "file:///etc/passwd",
        "http://",
        "http://[::1",
        "http://a b/",
        "http://" + "a" * 300 + "/",
        "http://\ud800/",
        "view-source:x",
        "\0",
    ],
)
def test_what_is_not_on_the_public_internet_is_not_opened(server, url: str) -> None:
    browser = Running(BrowserTool(BraveBackend("key", service=server[0])).session(), "browser")
    before = len(server[1])
    answer = browser.run({"id": url.replace("{port}", server[0].rpartition(":")[2])}, "open")
    assert answer.startswith("error: ") and "\n" not in answer and len(server[1]) == before
    browser.close()


def test_public_addresses_are_told_from_others() -> None:
    for text in ("8.8.8.8", "2606:4700:4700::1111", "64:ff9b::808:808"):
        assert is_public(ipaddress.ip_address(text)), text
    for text in (
        "127.0.0.1",
        "10.1.2.3",
        "100.64.0.1",
        "169.254.1.1",
        "224.0.0.1",
        "0.0.0.0",
        "255.255.255.255",
    ):
        assert not is_public(ipaddress.ip_address(text)), text
    for text in (
        "::1",
        "::",
        "fc00::1",
        "fe80::1",
        "ff02::1",
        "::ffff:10.0.0.1",
        "64:ff9b::a00:1",
        "2002:a00:1::",
    ):
        assert not is_public(ipaddress.ip_address(text)), text


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b'{"web": 3}', b'{"web": {"results": {}}}', b"[" * 100_000]
)
def test_odd_answers_of_the_service_are_an_error_or_no_results(body: bytes) -> None:
    class Odd(Handler):
        seen = []  # noqa: RUF012 - nobody reads it

        def do_GET(self) -> None:
            self.answer(body, "application/json")

    http = ThreadingHTTPServer(("127.0.0.1", 0), Odd)
    threading.Thread(target=http.serve_forever).start()
    try:
        backend = BraveBackend("key", service=f"http://127.0.0.1:{http.server_address[1]}")
        try:
            assert asyncio.run(backend.search("x", 3)) == []
        except BackendError as error:
            assert str(error).startswith("the search failed: ")
    finally:
        http.shutdown()
        http.server_close()
