"""A table on disk that disappears with the process, for what grows with the number of rows."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator

from gptoss_jax.batch.errors import BatchError

_CACHE_KIB = 16 * 1024


class ScratchTable:
    """A nameless SQLite database in the folder of temporary files, of which 16 MiB are kept in memory.

    `create` is the statement that makes its table.
    """

    def __init__(self, create: str) -> None:
        self.database = sqlite3.connect("", isolation_level=None, check_same_thread=False)
        for setting in (f"cache_size=-{_CACHE_KIB}", "journal_mode=OFF", "synchronous=OFF"):
            self.database.execute(f"PRAGMA {setting}")
        self.database.execute(create)
        self.database.execute("BEGIN")

    def __enter__(self) -> ScratchTable:
        return self

    def __exit__(self, *_: object) -> None:
        self.database.close()


@contextlib.contextmanager
def room_for(what: str) -> Iterator[None]:
    """Raises BatchError where there is no room for `what` on the disk."""
    try:
        yield
    except sqlite3.Error as error:
        raise BatchError(
            f"cannot keep {what} in the folder of temporary files: {error}: set TMPDIR to another"
        ) from None
