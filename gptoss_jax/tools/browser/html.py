"""HTML as text with numbered links."""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable

import lxml.etree
import lxml.html

from gptoss_jax.tools.browser.page import one_line, plain

LinkMarker = Callable[[str, str], str]
"""Called with a link's target and its text; returns what the page has in its place."""

_HIDDEN = {"script", "style", "noscript", "template", "svg", "math", "head", "iframe", "object", "select"}
_APART = {"p", "ul", "ol", "dl", "table", "pre", "blockquote", "h1", "h2", "h3", "h4", "h5", "h6", "figure"}
"""Elements with a blank line before and after them."""

_OWN_LINE = _APART | {
    *("div", "li", "tr", "br", "hr", "dt", "dd", "section", "article", "header", "footer", "main", "nav"),
    *(
        "aside",
        "form",
        "fieldset",
        "address",
        "details",
        "summary",
        "figcaption",
        "caption",
        "option",
        "body",
    ),
}
_SPACES = re.compile(r"\s+")
_MANY_LINES = re.compile(r"\n(?:[ \t]*\n){2,}")


def html_text(source: str | bytes, mark: LinkMarker) -> tuple[str, str]:
    """The title and the text of an HTML document, whatever is wrong with it.

    `mark` gives what the text has in place of each link.
    """
    text = source if isinstance(source, bytes) else source.encode("utf-8", "replace")
    parser = lxml.html.HTMLParser(
        encoding="utf-8" if _is_utf8(text) else None,  # else the document says, or it is taken as Latin-1
        remove_comments=True,
        remove_pis=True,
        no_network=True,
    )
    try:
        root = lxml.html.document_fromstring(text, parser=parser)
    except (lxml.etree.ParserError, ValueError):  # there is nothing in it
        return "", ""
    heading = root.find(".//title")
    title = "" if heading is None else one_line("".join(heading.itertext()))
    reader = _Reader(mark)
    for event, element in lxml.etree.iterwalk(root, events=("start", "end")):
        if isinstance(element.tag, str):
            (reader.start if event == "start" else reader.end)(element)
    return title, _MANY_LINES.sub("\n\n", "".join(reader.parts)).strip("\n")


def _is_utf8(text: bytes) -> bool:
    """True for UTF-8, of which the end may be missing."""
    try:
        codecs.getincrementaldecoder("utf-8")().decode(text)
    except UnicodeDecodeError:
        return False
    return True


class _Reader:
    """Collects text while the elements of a document are walked through.

    parts: the text so far, in pieces.
    """

    def __init__(self, mark: LinkMarker) -> None:
        self.parts: list[str] = []
        self._mark = mark
        self._hidden = 0  # how many of the open elements are not shown
        self._kept = 0  # how many of them keep their white space
        self._links: list[int] = []  # where the text of each open link begins
        self._images = 0

    def start(self, element: lxml.html.HtmlElement) -> None:
        tag = element.tag
        self._hidden += tag in _HIDDEN
        if self._hidden:
            return
        self._break(tag)
        self._kept += tag == "pre"
        if tag == "a":
            self._links.append(len(self.parts))
        elif tag == "li":
            self.parts.append("  * ")
        elif tag in ("td", "th") and element.getprevious() is not None:
            self.parts.append(" | ")
        elif tag == "img":
            label = one_line(element.get("alt") or element.get("title") or "")
            self.parts.append(f"[Image {self._images}: {label}]" if label else f"[Image {self._images}]")
            self._images += 1
        elif len(tag) == 2 and tag[0] == "h" and tag[1] in "123456":
            self.parts.append("#" * int(tag[1]) + " ")
        self._add(element.text)

    def end(self, element: lxml.html.HtmlElement) -> None:
        tag = element.tag
        if not self._hidden:
            if tag == "a":
                self._end_link(element.get("href"))
            self._kept -= tag == "pre"
            if tag != "br":
                self._break(tag)
        self._hidden -= tag in _HIDDEN
        if not self._hidden:
            self._add(element.tail)

    def _end_link(self, target: str | None) -> None:
        begin = self._links.pop()
        text = one_line("".join(self.parts[begin:]))
        if target is not None and text:
            self.parts[begin:] = [self._mark(target, text)]

    def _break(self, tag: str) -> None:
        if tag in _OWN_LINE:
            self.parts.append("\n\n" if tag in _APART else "\n" if tag == "br" or not self._at_line() else "")

    def _at_line(self) -> bool:
        return not self.parts or self.parts[-1].endswith("\n") or self.parts[-1] == "  * "

    def _add(self, text: str | None) -> None:
        if not text:
            return
        shown = plain(text)
        if not self._kept:
            shown = _SPACES.sub(" ", shown)
            if self._at_line():
                shown = shown.lstrip()
        if shown:
            self.parts.append(shown)
