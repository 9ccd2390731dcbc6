"""The input of a batch run: the lines of a file, a pipe or standard input, plain or gzip."""

from __future__ import annotations

import codecs
import contextlib
import gzip
import hashlib
import os
import stat
import sys
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Protocol

from gptoss_jax.batch.errors import BatchError, cannot
from gptoss_jax.batch.shards import Shard

STANDARD = "-"
"""The name of standard input and standard output; a file of that name is ``./-``."""

_PIECE = 1 << 20
"""Bytes of a pipe that are copied at a time."""

MAX_LINE_BYTES = 64 << 20
"""Bytes of the longest line that is read whole. Of a longer one, as many and one more are given."""

_GZIP = b"\x1f\x8b"
_UNREAD = {
    b"\x28\xb5\x2f\xfd": "compressed with zstd",
    b"\xfd7zXZ\x00": "compressed with xz",
    b"BZh": "compressed with bzip2",
    b"PK\x03\x04": "a zip archive",
    codecs.BOM_UTF16_LE: "UTF-16",
    codecs.BOM_UTF16_BE: "UTF-16",
}
"""The first bytes of files that cannot be read → what such a file is."""


class Source:
    """The input, which is read once when it is opened, to count and hash it. Use it as a context manager.

    A pipe, or standard input, is copied to a temporary file first, because the input is read twice: a run is
    identified by the hash of its whole input. Gzip is recognised by its first bytes.

    Args:
        source: a path, or "-" for standard input.
        shard: which of the lines are to be answered; None for all.

    Attributes:
        name: its name in error messages.
        sha256: the SHA-256 of its uncompressed bytes, in hexadecimal.
        rows: how many lines are to be answered: those of the shard that are not blank.
        is_regular: True if it is a regular file, or standard input that comes from one.

    Raises:
        BatchError: it cannot be read, or is in a format that is not supported.
    """

    def __init__(self, source: str | Path, shard: Shard | None = None):
        self.name = "standard input" if source == STANDARD else str(source)
        self._resources = contextlib.ExitStack()
        with contextlib.ExitStack() as on_failure:
            on_failure.callback(self.close)
            file = self._open(source)
            self._status = _status(file)
            self.is_regular = self._status is not None and stat.S_ISREG(self._status.st_mode)
            self._shard = shard
            self._file = file if self.is_regular and source != STANDARD else self._copy(file)
            self._gzip = self._read_kind()
            self.sha256, self.rows, self._lines = self._survey()
            on_failure.pop_all()

    def is_same_file(self, other: os.stat_result) -> bool:
        """True if the input comes from the file with this status."""
        return self._status is not None and os.path.samestat(self._status, other)

    def has(self, line: int) -> bool:
        """True if a line is to be answered. The others are read because ids must not be there twice."""
        return self._shard is None or self._shard.has(line)

    def read(self) -> Iterator[tuple[int, bytes]]:
        """Yields every line that is not blank, with its number from 1.

        Raises:
            BatchError: after the last line, if the input was changed since it was opened.
        """
        digest, changed = hashlib.sha256(), False
        for number, raw in self._numbered(digest):
            if number > self._lines:
                changed = True
                break
            if number == 1:
                raw = raw.removeprefix(codecs.BOM_UTF8)
            if raw.strip():
                yield number, raw
        if changed or digest.hexdigest() != self.sha256:
            raise BatchError("the input was changed while it was being read: start anew with --overwrite")

    def close(self) -> None:
        """Closes the files."""
        self._resources.close()

    def __enter__(self) -> Source:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _open(self, source: str | Path) -> BinaryIO:
        if source == STANDARD:
            if sys.stdin is None:
                raise BatchError("cannot read standard input: it is closed")
            return sys.stdin.buffer
        try:
            return self._resources.enter_context(open(source, "rb"))
        except OSError as error:
            raise cannot("read", self.name, error) from None

    def _copy(self, file: BinaryIO) -> BinaryIO:
        """Copies a pipe to a temporary file without a name, which disappears with the process."""
        try:
            copy = tempfile.TemporaryFile()  # noqa: SIM115 - it lives as long as this object
            self._resources.callback(copy.close)
        except OSError as error:
            raise cannot(f"keep {self.name} in", tempfile.gettempdir(), error) from None
        while True:
            try:
                piece = file.read(_PIECE)
            except OSError as error:
                raise cannot("read", self.name, error) from None
            if not piece:
                return copy
            try:
                copy.write(piece)
                copy.flush()
            except OSError as error:
                raise cannot(f"keep {self.name} in", tempfile.gettempdir(), error) from None

    def _read_kind(self) -> bool:
        """Returns True for gzip, False for plain text. Raises BatchError for other formats."""
        try:
            self._file.seek(0)
            start = self._file.read(max(map(len, _UNREAD)))
        except OSError as error:
            raise cannot("read", self.name, error) from None
        for magic, kind in _UNREAD.items():
            if start.startswith(magic):
                raise BatchError(f"{self.name} is {kind}: give JSON lines in UTF-8, as they are or as gzip")
        return start.startswith(_GZIP)

    def _survey(self) -> tuple[str, int, int]:
        """Returns the SHA-256, the number of lines to be answered, and the number of all lines."""
        digest, rows, number = hashlib.sha256(), 0, 0
        for number, raw in self._numbered(digest):
            if self.has(number):
                rows += bool((raw.removeprefix(codecs.BOM_UTF8) if number == 1 else raw).strip())
        return digest.hexdigest(), rows, number

    def _numbered(self, digest: _Digest) -> Iterator[tuple[int, bytes]]:
        """Yields all lines with their numbers, and adds them to the digest."""
        most = MAX_LINE_BYTES + 1
        try:
            self._file.seek(0)
            lines = gzip.GzipFile(fileobj=self._file) if self._gzip else self._file
            number = 0
            while raw := lines.readline(most):
                number += 1
                digest.update(raw)
                rest = raw
                while len(rest) == most and not rest.endswith(b"\n"):
                    rest = lines.readline(most)
                    digest.update(rest)
                yield number, raw
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise BatchError(f"cannot read {self.name}: it is no whole gzip file ({error})") from None
        except OSError as error:
            raise cannot("read", self.name, error) from None


class _Digest(Protocol):
    def update(self, data: bytes, /) -> None: ...


def _status(file: BinaryIO) -> os.stat_result | None:
    """The status of an open file; None for an object that is no file of the system, such as `BytesIO`."""
    try:
        return os.fstat(file.fileno())
    except OSError:
        return None
