"""A folder of documents as the back end of the browser, with SQLite's full-text search."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import posixpath
import re
import sqlite3
import stat
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.parse import unquote, urlsplit

from gptoss_jax.tools.browser.backend import BackendError, Document, Hit, Kind
from gptoss_jax.tools.browser.reading import page_from
from harmony.errors import shown

_KINDS: dict[str, Kind] = {
    ".txt": "text",
    ".rst": "text",
    ".md": "markdown",
    ".markdown": "markdown",
    ".html": "html",
    ".htm": "html",
}
_MOST_BYTES = 4 << 20
"""How much of a file is read."""

_QUERY_WORDS = 50
_WORD = re.compile(r"\w+")


@dataclasses.dataclass(frozen=True)
class _Stamp:
    """What changes when a file does."""

    modified: int
    size: int


class FolderBackend:
    """The documents (.txt, .rst, .md, .html) in a folder and the folders below it.

    An address is a path from the folder on, with slashes. Nothing outside the folder is read, also not by
    links. The index is in a temporary database; each search first takes in what has changed.
    """

    def __init__(self, folder: str | Path) -> None:
        """`folder` must exist.

        Raises:
            BackendError: it is no folder, or SQLite here has no full-text search.
        """
        self._folder = os.path.realpath(folder)
        if not os.path.isdir(self._folder):
            raise BackendError(f"{os.fspath(folder)} is no folder")
        self._lock = threading.Lock()
        self._stamps: dict[str, _Stamp] = {}
        self._index = sqlite3.connect("", check_same_thread=False)  # a file that SQLite makes and removes
        try:
            self._index.execute(
                "CREATE VIRTUAL TABLE pages USING fts5(address, title, text, "
                "tokenize = 'porter unicode61 remove_diacritics 2')"
            )
        except sqlite3.OperationalError as error:
            raise BackendError(f"SQLite cannot search in text here: {error}") from None

    async def search(self, query: str, count: int) -> Sequence[Hit]:
        """See `Backend`."""
        return await asyncio.to_thread(self._search, query, count)

    async def open(self, address: str) -> Document:
        """See `Backend`."""
        return await asyncio.to_thread(self._read, address)

    def resolve(self, link: str, base: str) -> str | None:
        """See `Backend`."""
        try:
            parts = urlsplit(link)
        except ValueError:
            return None
        if parts.scheme or parts.netloc or not parts.path or parts.path.startswith("/"):
            return None
        path = posixpath.normpath(posixpath.join(posixpath.dirname(base), unquote(parts.path)))
        is_document = os.path.splitext(path)[1].lower() in _KINDS
        return path if is_document and not path.startswith("../") else None

    def site(self, address: str) -> str:
        """See `Backend`: all documents of a folder belong together."""
        return ""

    def _search(self, query: str, count: int) -> list[Hit]:
        words = _WORD.findall(query)[:_QUERY_WORDS]
        with self._lock:
            self._update()
            if not words:
                return []
            # Each word is quoted: none of them is an operator of the query language.
            rows = self._index.execute(
                "SELECT address, title, text FROM pages WHERE pages MATCH ? "
                "ORDER BY bm25(pages, 3, 5, 1), address LIMIT ?",
                (" OR ".join(f'"{word}"' for word in words), count),
            )
            return [Hit(address, title, _summary(text, words)) for address, title, text in rows]

    def _update(self) -> None:
        """Takes what has changed in the folder into the index."""
        found = dict(self._files())
        for address in [address for address in self._stamps if found.get(address) != self._stamps[address]]:
            self._index.execute("DELETE FROM pages WHERE address = ?", (address,))
            del self._stamps[address]
        for address, stamp in found.items():
            if address in self._stamps:
                continue
            self._stamps[address] = stamp
            try:
                page = page_from(self._read(address), self)
            except BackendError:
                continue  # it is gone, or cannot be read
            text = "\n".join(page.lines).encode("utf-8", "replace").decode()
            self._index.execute("INSERT INTO pages VALUES (?, ?, ?)", (address, page.title, text))

    def _files(self) -> Iterator[tuple[str, _Stamp]]:
        """The address of every document. Hidden files and folders, and links to others, are left out."""
        for folder, folders, names in os.walk(self._folder):
            folders[:] = sorted(name for name in folders if not name.startswith("."))
            for name in sorted(names):
                path = os.path.join(folder, name)
                address = os.path.relpath(path, self._folder).replace(os.sep, "/")
                if name.startswith(".") or not _is_unicode(address):
                    continue
                if os.path.splitext(name)[1].lower() not in _KINDS or not self._is_inside(path):
                    continue
                try:
                    status = os.stat(path)
                except OSError:
                    continue
                if stat.S_ISREG(status.st_mode):
                    yield address, _Stamp(status.st_mtime_ns, status.st_size)

    def _read(self, address: str) -> Document:
        kind = _KINDS.get(os.path.splitext(address)[1].lower())
        is_local = "\0" not in address and _is_unicode(address) and not address.startswith(("/", "\\"))
        path = os.path.join(self._folder, address)
        if kind is None or not is_local or not self._is_inside(path):
            raise BackendError(f"there is no document {shown(address)}: open what search finds")
        try:
            # Not followed and not waited for: a link or a pipe that has taken the file's place.
            handle = os.open(os.path.realpath(path), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            with os.fdopen(handle, "rb") as file:
                if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                    raise BackendError(f"there is no document {shown(address)}: open what search finds")
                source = file.read(_MOST_BYTES + 1)
        except (OSError, ValueError):
            raise BackendError(f"there is no document {shown(address)}: open what search finds") from None
        canonical = os.path.relpath(os.path.realpath(path), self._folder).replace(os.sep, "/")
        return Document(canonical, kind, source[:_MOST_BYTES], is_cut=len(source) > _MOST_BYTES)

    def _is_inside(self, path: str) -> bool:
        real = os.path.realpath(path)
        return real.startswith(self._folder.rstrip(os.sep) + os.sep)


def _summary(text: str, words: Sequence[str]) -> str:
    """The text around the first of the words, or its beginning.

    FTS5's own `snippet` takes time that grows with the square of the matches.
    """
    stems = "|".join(re.escape(word[: max(3, len(word) - 3)]) for word in words)
    _, _, body = text.partition("\n\n")  # without the address
    found = re.search(rf"\b(?:{stems})", body, re.IGNORECASE)
    begin = max(found.start() - 60, 0) if found else 0
    return f"{'…' if begin else ''}{body[begin : begin + 240]}{'…' if begin + 240 < len(body) else ''}"


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
