"""Stored responses: one SQLite file, which several threads and a killed process leave whole."""

from __future__ import annotations

import dataclasses
import json
import sqlite3
import threading
import time
from pathlib import Path
from typing import Any

from gptoss_jax.openai_api import ApiError

Items = list[dict[str, Any]]

_VERSION = 2
_SETTINGS = (
    "auto_vacuum=INCREMENTAL",  # before all else: a file keeps what it was made with
    "locking_mode=EXCLUSIVE",
    "journal_mode=WAL",
    "synchronous=NORMAL",
)
_SCHEMA = """
CREATE TABLE IF NOT EXISTS responses (
    id TEXT PRIMARY KEY,
    created REAL NOT NULL,
    previous TEXT,
    input TEXT NOT NULL,
    output TEXT NOT NULL,
    response TEXT NOT NULL,
    size INTEGER NOT NULL,
    events BLOB
);
CREATE INDEX IF NOT EXISTS by_age ON responses (created);
"""


@dataclasses.dataclass(frozen=True)
class Stored:
    """A stored response.

    response: the object as its client saw it.
    previous: the id of the response that it went on from; None if it began a conversation.
    input: the items of its request. output: its items with the chain of thought, whatever its client saw.
    events: the events of its stream, as `EventLog.dump` gives them; None if they were not kept.
    """

    response: dict[str, Any]
    previous: str | None
    input: Items
    output: Items
    events: bytes | None = None

    @property
    def id(self) -> str:
        """The response's id."""
        return str(self.response["id"])


class StoreError(ValueError):
    """The file of a store cannot be used. The message is one line."""


class ResponseStore:
    """Responses by id. Its methods may be called in any thread, and return when what they did is in the file.

    The oldest responses make room for new ones; those of an age are gone.
    """

    def __init__(self, path: Path, *, max_bytes: int, max_age_seconds: float) -> None:
        """Opens the file, or makes it.

        Raises:
            StoreError: it cannot be written, is no such file, or another process has it open.
        """
        self._max_bytes, self._max_age = max_bytes, max_age_seconds
        self._lock = threading.Lock()
        try:
            self._file = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=1)
            for setting in _SETTINGS:
                self._file.execute(f"PRAGMA {setting}").fetchone()
            (version,) = self._file.execute("PRAGMA user_version").fetchone()
            if version not in range(_VERSION + 1):
                raise StoreError(f"{path} is a store of version {version}: this program reads {_VERSION}")
            if version == 1:
                self._file.execute("ALTER TABLE responses ADD COLUMN events BLOB")
            self._file.executescript(_SCHEMA)
            self._file.execute(f"PRAGMA user_version={_VERSION}")
        except sqlite3.Error as error:
            raise StoreError(f"{path} cannot be a store of responses: {error}") from None
        self._fail_unfinished()

    def put(self, stored: Stored) -> None:
        """Keeps a response, or what has become of it since it was kept."""
        texts = [json.dumps(part) for part in (stored.input, stored.output, stored.response)]
        size = sum(map(len, texts)) + len(stored.events or b"")
        row = (stored.id, stored.response["created_at"], stored.previous, *texts, size, stored.events)
        with self._lock:
            with self._transaction():
                self._file.execute("INSERT OR REPLACE INTO responses VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row)
                self._make_room()
            # A script runs it to its end; `execute` frees one page only, before Python 3.12.
            self._file.executescript("PRAGMA incremental_vacuum")

    def get(self, id: str) -> Stored | None:
        """The response of an id; None if there is none."""
        if not id.isascii():  # SQLite takes no lone surrogates
            return None
        with self._lock:
            row = self._file.execute(
                "SELECT response, previous, input, output, events FROM responses "
                "WHERE id = ? AND created >= ?",
                (id, self._oldest()),
            ).fetchone()
        if row is None:
            return None
        response, previous, input, output, events = row
        return Stored(json.loads(response), previous, json.loads(input), json.loads(output), events)

    def delete(self, id: str) -> bool:
        """Forgets a response. Returns whether it was there."""
        with self._lock:
            return self._file.execute("DELETE FROM responses WHERE id = ?", (id,)).rowcount > 0

    def conversation(self, id: str) -> Items:
        """The items of a conversation up to and with a response, in their order.

        Raises:
            ApiError: it, or one that it goes on from, is not there or has not ended.
        """
        turns: list[Stored] = []
        name: str | None = id
        while name is not None:
            stored = self.get(name)
            if stored is None:
                message = f"previous_response_id is {id!r}: no response {name!r} is stored"
                raise ApiError("previous_response_not_found", message, "previous_response_id")
            if stored.response["status"] in ("queued", "in_progress"):
                message = f"previous_response_id is {id!r}: the response has not ended"
                raise ApiError("previous_response_unfinished", message, "previous_response_id")
            turns.append(stored)
            name = stored.previous
        return [item for turn in reversed(turns) for item in (*turn.input, *turn.output)]

    def close(self) -> None:
        """Lets go of the file."""
        with self._lock:
            self._file.close()

    def _oldest(self) -> float:
        return time.time() - self._max_age

    def _make_room(self) -> None:
        self._file.execute("DELETE FROM responses WHERE created < ?", (self._oldest(),))
        (size,) = self._file.execute("SELECT coalesce(sum(size), 0) FROM responses").fetchone()
        while size > self._max_bytes:
            id, freed = self._file.execute(
                "SELECT id, size FROM responses ORDER BY created, rowid LIMIT 1"
            ).fetchone()
            self._file.execute("DELETE FROM responses WHERE id = ?", (id,))
            size -= freed
        self._file.execute("PRAGMA incremental_vacuum").fetchall()  # each row frees a page

    def _fail_unfinished(self) -> None:
        """Marks the responses as failed that another process was at work on when it ended."""
        rows = self._file.execute(
            "SELECT id FROM responses WHERE json_extract(response, '$.status') IN ('queued', 'in_progress')"
        ).fetchall()
        for (id,) in rows:
            stored = self.get(id)
            if stored is not None:
                error = {"code": "server_error", "message": "the server ended before the response did"}
                response = {**stored.response, "status": "failed", "error": error}
                self.put(dataclasses.replace(stored, response=response))

    def _transaction(self) -> _Transaction:
        return _Transaction(self._file)


class _Transaction:
    """All of its statements, or none."""

    def __init__(self, file: sqlite3.Connection) -> None:
        self._file = file

    def __enter__(self) -> None:
        self._file.execute("BEGIN IMMEDIATE")

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._file.execute("COMMIT" if kind is None else "ROLLBACK")
