"""The page's files as they are served, without a browser."""

from __future__ import annotations

import fnmatch
import re
import tomllib
from html.parser import HTMLParser
from pathlib import Path

import pytest

from gptoss_jax.cli import new_parser

ROOT = Path(__file__).resolve().parents[2]
STATIC = ROOT / "gptoss_jax" / "serve" / "page" / "static"
ANSWER = "<|channel|>final<|message|>Good.<|return|>"


class Elements(HTMLParser):
    """Every element of a page, with its attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def test_the_page_may_run_and_ask_only_what_comes_from_its_server(scripted) -> None:
    server = scripted(ANSWER)
    page = server.http.get(f"{server.url}/")
    policy = dict(part.split(" ", 1) for part in page.headers["content-security-policy"].split("; "))
    assert policy.pop("default-src") == "'none'"
    assert {policy[name] for name in ("script-src", "style-src", "img-src", "connect-src")} == {"'self'"}
    assert not re.search(r"unsafe|https?:|\*|data:", page.headers["content-security-policy"])
    assert page.headers["x-content-type-options"] == "nosniff"
    elements = Elements(page.text).found
    linked = [value for _, given in elements for name, value in given.items() if name in ("src", "href")]
    assert len(linked) >= 3
    for path in linked:
        assert path is not None
        assert path.startswith("page/"), "relative, so that the page also works below a prefix"
    for tag, given in elements:
        assert not [name for name in given if name == "style" or name.startswith("on")], tag
        assert tag != "style"
        assert tag != "script" or "src" in given


def test_every_file_is_served_packaged_and_asks_nobody_else(scripted) -> None:
    server = scripted(ANSWER)
    names = sorted(path.name for path in STATIC.iterdir())
    assert {"index.html", "style.css", "app.js"} <= set(names)
    (patterns,) = (
        tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"][name]
        for name in ("gptoss_jax",)
    )
    kinds = {".js": "javascript", ".css": "text/css", ".html": "text/html", ".svg": "image/svg+xml"}
    for name in names:
        answer = server.http.get(f"{server.url}/page/{name}")
        assert (answer.status_code, answer.content) == (200, (STATIC / name).read_bytes())
        assert kinds[Path(name).suffix] in answer.headers["content-type"]
        tag = {"If-None-Match": answer.headers["etag"]}
        assert server.http.get(f"{server.url}/page/{name}", headers=tag).status_code == 304
        assert any(fnmatch.fnmatch(f"serve/page/static/{name}", pattern) for pattern in patterns)
        text = answer.text.replace('xmlns="http://www.w3.org/2000/svg"', "")
        assert not re.search(r"https?://|[\"'(]//", text), name
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", text), name


def test_without_a_page_there_is_none(scripted) -> None:
    server = scripted(ANSWER, page=False, api_keys=("one",))
    key = {"Authorization": "Bearer one"}
    for path in ("/", "/page/app.js", "/page"):
        answer = server.http.get(f"{server.url}{path}", headers=key)
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found")
    tokens = server.http.post("/harmony/tokens", json={"input": "Hi"}, headers=key)
    assert tokens.status_code == 200


@pytest.mark.parametrize(("arguments", "page"), [([], True), (["--no-page"], False)])
def test_the_command_has_a_page_unless_told(arguments: list[str], page: bool) -> None:
    assert new_parser().parse_args(["serve", *arguments]).page is page
