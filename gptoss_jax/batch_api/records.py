"""What is known of files and batches: one SQLite file, which a killed process leaves whole."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import sqlite3
import threading
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

_VERSION = 1
_SETTINGS = ("locking_mode=EXCLUSIVE", "journal_mode=WAL", "synchronous=FULL")
_SCHEMA = """
CREATE TABLE IF NOT EXISTS files (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT UNIQUE NOT NULL,
    created INTEGER NOT NULL,
    name TEXT NOT NULL,
    purpose TEXT NOT NULL,
    size INTEGER NOT NULL,
    expires INTEGER NOT NULL
);
CREATE TABLE IF NOT EXISTS batches (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT UNIQUE NOT NULL,
    object TEXT NOT NULL,
    terms TEXT NOT NULL
);
"""
_FILE = "id, created, name, purpose, size, expires"

ENDS = frozenset({"completed", "failed", "expired", "cancelled"})
"""The statuses of batches that have ended."""


class RecordsError(ValueError):
    """The folder cannot be used. The message is one line."""


class Full(Exception):
    """There is no room for another file. The message says what there is."""


@dataclasses.dataclass(frozen=True)
class StoredFile:
    """A file. `created` and `expires` are Unix times in seconds, `size` is in bytes."""

    id: str
    created: int
    name: str
    purpose: str
    size: int
    expires: int

    def as_json(self) -> dict[str, Any]:
        """The `file` object."""
        return {
            "id": self.id,
            "object": "file",
            "bytes": self.size,
            "created_at": self.created,
            "expires_at": self.expires,
            "filename": self.name,
            "purpose": self.purpose,
            "status": "processed",
            "status_details": None,
        }


@dataclasses.dataclass(frozen=True)
class StoredBatch:
    """A batch.

    object: the `batch` object.
    terms: what its rows depend on beside their bodies, set when it begins; and how it is to end, set when
        that is known. Clients do not see it.
    """

    object: dict[str, Any]
    terms: dict[str, Any]

    @property
    def id(self) -> str:
        """The batch's id."""
        return str(self.object["id"])

    @property
    def status(self) -> str:
        """The batch's status."""
        return str(self.object["status"])


class Records:
    """Files and batches by id. Its methods may be called in any thread, and return when what they
    did is on the disk."""

    def __init__(self, path: Path) -> None:
        """Opens the file, or makes it.

        Raises:
            RecordsError: it cannot be written, is no such file, or another process has it open.
        """
        self._lock = threading.RLock()
        try:
            self._file = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=1)
            for setting in _SETTINGS:
                self._file.execute(f"PRAGMA {setting}").fetchone()
            (version,) = self._file.execute("PRAGMA user_version").fetchone()
            if version not in (0, _VERSION):
                raise RecordsError(f"{path} has the version {version}: this program reads {_VERSION}")
            self._file.executescript(_SCHEMA)
            self._file.execute(f"PRAGMA user_version={_VERSION}")
        except sqlite3.Error as error:
            raise RecordsError(f"{path} cannot hold files and batches: {error}") from None

    def close(self) -> None:
        """Lets go of the file."""
        with self._lock:
            self._file.close()

    # Files

    def add_file(self, file: StoredFile, *, max_files: int, max_bytes: int) -> None:
        """Adds a file.

        Raises:
            Full: there are too many files, or they are too long.
        """
        with self._transaction():
            count, size = self._file.execute("SELECT count(*), coalesce(sum(size), 0) FROM files").fetchone()
            if count >= max_files:
                raise Full(f"there are {count} files, of at most {max_files}")
            if size + file.size > max_bytes:
                raise Full(f"the files here have {size} bytes, of at most {max_bytes}")
            self._insert(file)

    def file(self, id: str) -> StoredFile | None:
        """The file of an id; None if there is none."""
        return next(iter(self._files("WHERE id = ?", id)), None)

    def files(self) -> list[StoredFile]:
        """All files, the oldest first."""
        return self._files("ORDER BY number")

    def delete_file(self, id: str) -> None:
        """Forgets a file."""
        with self._lock:
            self._file.execute("DELETE FROM files WHERE id = ?", (_text(id),))

    def _files(self, condition: str, *values: str) -> list[StoredFile]:
        with self._lock:
            rows = self._file.execute(f"SELECT {_FILE} FROM files {condition}", tuple(map(_text, values)))
            return [StoredFile(*row) for row in rows]

    def _insert(self, file: StoredFile) -> None:
        values = dataclasses.astuple(dataclasses.replace(file, name=_text(file.name)))
        self._file.execute(f"INSERT OR REPLACE INTO files ({_FILE}) VALUES (?, ?, ?, ?, ?, ?)", values)

    # Batches

    def add_batch(self, batch: StoredBatch) -> None:
        """Adds a batch."""
        with self._lock:
            self._file.execute(
                "INSERT INTO batches (id, object, terms) VALUES (?, ?, ?)",
                (batch.id, json.dumps(batch.object), json.dumps(batch.terms)),
            )

    def batch(self, id: str) -> StoredBatch | None:
        """The batch of an id; None if there is none."""
        return next(iter(self._batches("WHERE id = ?", id)), None)

    def batches(self) -> list[StoredBatch]:
        """All batches, the oldest first."""
        return self._batches("ORDER BY number")

    def unfinished(self) -> list[StoredBatch]:
        """The batches that have not ended, the oldest first."""
        return [batch for batch in self.batches() if batch.status not in ENDS]

    def delete_batch(self, id: str) -> None:
        """Forgets a batch."""
        with self._lock:
            self._file.execute("DELETE FROM batches WHERE id = ?", (id,))

    def change(
        self,
        id: str,
        statuses: Collection[str],
        changes: dict[str, Any],
        *,
        terms: dict[str, Any] | None = None,
        files: Sequence[StoredFile] = (),
    ) -> StoredBatch | None:
        """Changes fields of a batch whose status is one of `statuses`; of any other, changes nothing.

        Args:
            id: the batch.
            statuses: those in which it may be.
            changes: fields of its object.
            terms: fields of its terms.
            files: files that come with it, all or none; they replace those with their ids.

        Returns:
            The batch as it is then; None if nothing was changed.
        """
        with self._transaction():
            batch = self.batch(id)
            if batch is None or batch.status not in statuses:
                return None
            changed = StoredBatch(batch.object | changes, batch.terms | (terms or {}))
            self._file.execute(
                "UPDATE batches SET object = ?, terms = ? WHERE id = ?",
                (json.dumps(changed.object), json.dumps(changed.terms), id),
            )
            for file in files:
                self._insert(file)
            return changed

    def _batches(self, condition: str, *values: str) -> list[StoredBatch]:
        with self._lock:
            rows = self._file.execute(
                f"SELECT object, terms FROM batches {condition}", tuple(map(_text, values))
            )
            return [StoredBatch(json.loads(object), json.loads(terms)) for object, terms in rows]

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        """All of its statements, or none."""
        with self._lock:
            self._file.execute("BEGIN IMMEDIATE")
            try:
                yield
            except BaseException:
                self._file.execute("ROLLBACK")
                raise
            self._file.execute("COMMIT")


def _text(value: str) -> str:
    """Text that SQLite takes: without lone surrogates, which are no characters."""
    return value.encode("utf-8", "replace").decode()
