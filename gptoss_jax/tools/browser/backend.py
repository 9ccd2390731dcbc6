"""What a browser needs of whatever has the documents."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Literal, Protocol

Kind = Literal["html", "markdown", "text"]
"""How a document's source is read."""


class BackendError(RuntimeError):
    """A document or a search fails. The message is one line, for the model."""


@dataclasses.dataclass(frozen=True, slots=True)
class Document:
    """A document as it was found.

    address: what `open` finds it by: a URL, or a path in a folder.
    kind: how its source is read.
    source: the document itself; for HTML also bytes, whose encoding the document may name.
    title: its title; empty to take it from the source.
    is_cut: True if the source is only the beginning of it.
    """

    address: str
    kind: Kind
    source: str | bytes
    title: str = ""
    is_cut: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Hit:
    """A result of a search: where the document is, its title, and what it says about the query."""

    address: str
    title: str
    summary: str


class Backend(Protocol):
    """Has documents. It may be used by several sessions at once."""

    async def search(self, query: str, count: int) -> Sequence[Hit]:
        """The best results, at most `count`, the best first. Raises BackendError."""

    async def open(self, address: str) -> Document:
        """The document of an address. Raises BackendError."""

    def resolve(self, link: str, base: str) -> str | None:
        """The address that a link in the document `base` leads to; None if it leads nowhere."""

    def site(self, address: str) -> str:
        """What documents belong together by, such as a domain; links say it where it changes."""
