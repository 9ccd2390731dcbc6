"""The files themselves, beside what is known of them."""

from __future__ import annotations

import contextlib
import os
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from gptoss_jax.batch_api.records import Full, Records, StoredFile
from gptoss_jax.batch_api.settings import BatchSettings
from gptoss_jax.openai_api import ApiError

_PIECE = 1 << 20
"""Bytes that are copied at a time."""

_MOST_NAME = 255
"""Characters of a file's name that are kept."""


class Files:
    """The files of a folder. A file is there before its record, and goes after it.

    What clients call a file is never part of a path: on the disk its name is its id, which is made here.
    """

    def __init__(self, records: Records, settings: BatchSettings) -> None:
        """Makes the folder, and removes from it what a killed process left.

        Raises:
            OSError: the folder cannot be written.
        """
        self._records, self._settings = records, settings
        self._folder = settings.folder / "files"
        self._folder.mkdir(exist_ok=True)
        known = {file.id for file in records.files()}
        for path in self._folder.iterdir():
            if path.name not in known:
                path.unlink()
        self.sweep()

    def path(self, id: str) -> Path:
        """Where a file is; `id` is one of a record."""
        return self._folder / id

    def keep(self, source: BinaryIO, name: str, purpose: str, expires_after: int | None) -> StoredFile:
        """Keeps an uploaded file. `expires_after`: after so many seconds it is gone; None for the usual.

        Raises:
            ApiError: there is no room for it.
        """
        self.sweep()
        id, now = f"file-{uuid.uuid4().hex}", int(time.time())
        try:
            with self.written(id) as target:
                while piece := source.read(_PIECE):
                    target.write(piece)
                size = target.tell()
            expires = now + (self._settings.keep_seconds if expires_after is None else expires_after)
            file = StoredFile(id, now, name[:_MOST_NAME] or "upload", purpose, size, expires)
            limits = {"max_files": self._settings.max_files, "max_bytes": self._settings.max_bytes}
            self._records.add_file(file, **limits)
        except Full as error:
            self._remove(id)
            raise ApiError("storage_full", f"{error}: delete some", status=413) from None
        except OSError as error:
            self._remove(id)
            message = f"the file cannot be kept: {error.strerror or error}"
            raise ApiError("storage_failed", message, status=507) from None
        return file

    @contextlib.contextmanager
    def written(self, id: str) -> Iterator[BinaryIO]:
        """A file to be written, which is on the disk and has its name when the block ends."""
        part = self._folder / f"{id}.part"
        with open(part, "wb") as target:
            yield target
            target.flush()
            os.fsync(target.fileno())
        os.replace(part, self.path(id))
        descriptor = os.open(self._folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def get(self, id: str) -> StoredFile:
        """The file of an id.

        Raises:
            ApiError: there is none (404).
        """
        file = self._records.file(id)
        if file is None or file.expires <= time.time():
            raise ApiError("not_found", f"there is no file {id[:80]!r}", "id", status=404)
        return file

    def all(self) -> list[StoredFile]:
        """All files, the oldest first."""
        now = time.time()
        return [file for file in self._records.files() if file.expires > now]

    def delete(self, id: str) -> None:
        """Deletes a file.

        Raises:
            ApiError: there is none (404), or a batch that has not ended reads it.
        """
        file = self.get(id)
        reader = self._readers().get(id)
        if reader is not None:
            message = f"file {id!r} is the input of {reader}, which has not ended: cancel the batch first"
            raise ApiError("file_in_use", message, "id")
        self._records.delete_file(file.id)
        self._remove(file.id)

    def sweep(self) -> None:
        """Removes the files that have expired; an input, not before its batch has ended."""
        now, readers = time.time(), self._readers()
        for file in self._records.files():
            if file.expires <= now and file.id not in readers:
                self._records.delete_file(file.id)
                self._remove(file.id)

    def _readers(self) -> dict[str, str]:
        """Input file → the batch that reads it."""
        return {batch.object["input_file_id"]: batch.id for batch in self._records.unfinished()}

    def _remove(self, id: str) -> None:
        for path in (self.path(id), self._folder / f"{id}.part"):
            path.unlink(missing_ok=True)
