"""The ids of an input: which line had each of them first. Kept on disk, however many there are."""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Iterable

from gptoss_jax.batch.errors import BatchError

ID_BYTES = 16
"""Bytes of `id_digest`."""

_CACHE_KIB = 16 * 1024


def id_digest(key: str) -> bytes:
    """Returns what an id is known by: 16 bytes of BLAKE2b.

    Two different ids of a billion have the same with a probability below 1e-20.
    """
    return hashlib.blake2b(key.encode("utf-8", "surrogatepass"), digest_size=ID_BYTES).digest()


class IdTable:
    """Id → the line that had it first.

    A nameless SQLite database in the folder of temporary files, which disappears with the process. It keeps
    at most 16 MiB in memory, and takes about 50 bytes of disk for each id.
    """

    def __init__(self) -> None:
        self._database = sqlite3.connect("", isolation_level=None, check_same_thread=False)
        for setting in (f"cache_size=-{_CACHE_KIB}", "journal_mode=OFF", "synchronous=OFF"):
            self._database.execute(f"PRAGMA {setting}")
        self._database.execute("CREATE TABLE ids (id BLOB PRIMARY KEY, line INTEGER) WITHOUT ROWID")
        self._database.execute("BEGIN")

    def first_line(self, id: bytes, line: int) -> int:
        """Returns the line that had an id first: `line` itself if none had it, which is noted then.

        Raises:
            BatchError: there is no room on the disk.
        """
        try:
            if self._database.execute("INSERT OR IGNORE INTO ids VALUES (?, ?)", (id, line)).rowcount == 1:
                return line
            return int(self._database.execute("SELECT line FROM ids WHERE id = ?", (id,)).fetchone()[0])
        except sqlite3.Error as error:
            raise _full(error) from None

    def add(self, known: Iterable[tuple[bytes, int]]) -> None:
        """Notes ids with their lines. Those that are noted already stay as they are.

        Raises:
            BatchError: there is no room on the disk.
        """
        try:
            self._database.executemany("INSERT OR IGNORE INTO ids VALUES (?, ?)", known)
        except sqlite3.Error as error:
            raise _full(error) from None

    def close(self) -> None:
        """Gives the room on the disk back."""
        self._database.close()

    def __enter__(self) -> IdTable:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _full(error: sqlite3.Error) -> BatchError:
    return BatchError(
        f"cannot keep the rows' ids in the folder of temporary files: {error}: set TMPDIR to another"
    )
