"""Documents as pages."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from gptoss_jax.tools.browser.backend import Backend, Document, Hit
from gptoss_jax.tools.browser.html import html_text
from gptoss_jax.tools.browser.page import Link, Page, one_line, page_of, plain

_MARKDOWN_LINK = re.compile(
    r"(?<!!)\[([^\[\]\n]{1,300})\]\(<?([^()<>\s]{1,1000})>?(?: \"[^\"\n]{0,300}\")?\)"
)
_HEADING = re.compile(r"^#{1,6} +(.+)$", re.MULTILINE)


class _Links:
    """The links of a page, numbered as they come. Two links to one address have one number."""

    def __init__(self, backend: Backend, base: str) -> None:
        self.links: list[Link] = []
        self._numbers: dict[str, int] = {}
        self._backend = backend
        self._base = base

    def mark(self, target: str, text: str) -> str:
        """The link as the model reads it; its text alone if it leads nowhere, or only within the page."""
        target = target.strip()
        address = None if target.startswith("#") else self._backend.resolve(target, self._base)
        return text if address is None else self.to(address, text)

    def to(self, address: str, text: str) -> str:
        """A link to an address."""
        number = self._numbers.setdefault(address, len(self.links))
        if number == len(self.links):
            self.links.append(Link(address))
        label = one_line(text).replace("†", "‡")
        site = self._backend.site(address)
        elsewhere = f"†{one_line(site)}" if site and site != self._backend.site(self._base) else ""
        return f"【{number}†{label}{elsewhere}】"


def page_from(document: Document, backend: Backend) -> Page:
    """The page of a document."""
    links = _Links(backend, document.address)
    if document.kind == "html":
        title, text = html_text(document.source, links.mark)
    else:
        text = plain(_decoded(document.source)).replace("\r\n", "\n").replace("\r", "\n")
        heading = _HEADING.search(text) if document.kind == "markdown" else None
        title = heading[1] if heading else ""
        if document.kind == "markdown":
            text = _MARKDOWN_LINK.sub(lambda found: links.mark(found[2], found[1]), text)
    if document.is_cut:
        text += "\n\n[The document is longer: only its beginning is here.]"
    return page_of(document.address, document.title or title, text, links.links)


def source_page(document: Document) -> Page:
    """The page of a document's source, as it is."""
    text = plain(_decoded(document.source)).replace("\r\n", "\n")
    return page_of(document.address, f"Source of {document.title or document.address}", text, [])


def results_page(query: str, hits: Sequence[Hit], backend: Backend) -> Page:
    """The list of a search's results."""
    links = _Links(backend, "")
    parts = ["# Search Results", ""]
    for hit in hits:
        summary = one_line(hit.summary, 600)
        parts.append(f"  * {links.to(hit.address, hit.title or hit.address)} {summary}".rstrip())
    if not hits:
        parts.append(f"No results for the query: {json.dumps(one_line(query), ensure_ascii=False)}")
    return page_of("", query, "\n".join(parts), links.links, is_list=True)


def _decoded(source: str | bytes) -> str:
    return source if isinstance(source, str) else source.decode("utf-8", "replace")
