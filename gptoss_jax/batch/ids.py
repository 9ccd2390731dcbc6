"""The ids of an input: which line had each of them first. Kept on disk, however many there are."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from gptoss_jax.batch.scratch import ScratchTable, room_for

ID_BYTES = 16
"""Bytes of `id_digest`."""


def id_digest(key: str) -> bytes:
    """Returns what an id is known by: 16 bytes of BLAKE2b.

    Two different ids of a billion have the same with a probability below 1e-20.
    """
    return hashlib.blake2b(key.encode("utf-8", "surrogatepass"), digest_size=ID_BYTES).digest()


class IdTable(ScratchTable):
    """Id → the line that had it first. Takes about 50 bytes of disk for each id."""

    def __init__(self) -> None:
        super().__init__("CREATE TABLE ids (id BLOB PRIMARY KEY, line INTEGER) WITHOUT ROWID")

    def first_line(self, id: bytes, line: int) -> int:
        """Returns the line that had an id first: `line` itself if none had it, which is noted then.

        Raises:
            BatchError: there is no room on the disk.
        """
        run = self.database.execute
        with room_for("the rows' ids"):
            if run("INSERT OR IGNORE INTO ids VALUES (?, ?)", (id, line)).rowcount == 1:
                return line
            return int(run("SELECT line FROM ids WHERE id = ?", (id,)).fetchone()[0])

    def add(self, known: Iterable[tuple[bytes, int]]) -> None:
        """Notes ids with their lines. Those that are noted already stay as they are.

        Raises:
            BatchError: there is no room on the disk.
        """
        with room_for("the rows' ids"):
            self.database.executemany("INSERT OR IGNORE INTO ids VALUES (?, ?)", known)

    def __enter__(self) -> IdTable:
        return self
