"""The output of a batch run: a file that belongs to one run, or standard output.

Each row is in the file exactly once, even if the run is killed at any moment:

- A row and its newline are written in a single ``write`` to a descriptor opened with ``O_APPEND``. A killed
  process leaves whole lines, and at most one torn line at the end, without its newline. Opening the file
  again cuts the torn line off; its row counts as not done.
- Every row has its input line's number. ``OUT.run.json`` beside the output has the input's hash and the
  settings. A run with another input or other settings is refused, so a line number always means the same
  request.
- An exclusive ``flock`` on the output allows one run at a time. It ends with the process.
- Error rows that will be answered again are removed before the first new row is written: a copy of the file
  without them, which is locked first, replaces the file in one ``rename``. If the run is killed before the
  rename, the file is unchanged; if after it, the removed rows count as not done, and the next run answers
  them.
- Rows are made durable with ``fsync`` at most once a second, and when the file is closed. A killed process
  loses nothing. A power cut can lose the rows of the last second; the next run answers them again.
- ``OUT.index`` beside a large output tells the next run what the output has: see `gptoss_jax.batch.index`.
  Nothing but time is lost without it.

Opening an output changes nothing except that it cuts off a torn line. So a run that cannot start, for example
because the model does not fit in memory, leaves the earlier rows as they are.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import stat
import time
from collections.abc import Iterator, Mapping, Set
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Protocol

from gptoss_jax.batch.errors import BatchError, cannot
from gptoss_jax.batch.index import INDEXED_FROM, Index
from gptoss_jax.batch.line_set import LineSet
from gptoss_jax.batch.row_lines import Entry, encoded_row, entry_of, is_error_row, json_line

if TYPE_CHECKING:
    from harmony.json_types import Json, JsonObject

__all__ = ["Output", "OutputFile", "encoded_row", "is_error_row", "json_line"]

_FSYNC_SECONDS = 1.0
_FLUSH_ROWS = 1 << 15
"""Entries of an index that are collected before they are written."""
_LAST_LINE = 1 << 33
"""The largest number of a line that is believed: a damaged number would take all memory."""
_ADVICE = "give another output, or start anew with --overwrite"


class Output(Protocol):
    """A destination of rows. Call `begin` first, then `append` for each row, then `close`."""

    @property
    def run(self) -> Mapping[str, Json]:
        """What the rows depend on: given settings, and those inherited from the continued run."""

    @property
    def done(self) -> Set[int]:
        """The numbers of the input lines that have a row."""

    @property
    def failed(self) -> Set[int]:
        """The part of `done` whose rows are error rows of an earlier run."""

    def begin(self, settled: Mapping[str, Json]) -> None:
        """Prepares the output for its first new row. `settled`: the values of settings that were None."""

    def known_ids(self) -> Iterator[tuple[bytes, int]]:
        """The ids of the rows that were there when the run began, as digests, with their input lines.

        May be called between `begin` and the first `append`. Rows that only repeat an id have none.
        """

    def append(self, line: int, row: Mapping[str, Json]) -> None:
        """Adds the row of an input line."""

    def close(self) -> None:
        """Closes the output."""


class OutputFile:
    """The rows of one run in a file. Use it as a context manager.

    Args:
        path: the file. It is made if it does not exist, and removed again if no run begins.
        run: what the rows depend on, as JSON: the input's hash and the settings. A value of None becomes
            known when the run begins; its name must be in `inherited`.
        overwrite: True begins a new run, whatever the file contains.
        retry_errors: True answers lines with an error row again.
        inherited: names in `run` whose stored values replace the given ones when a run is continued.
        changeable: names in `run` whose stored values may differ when error rows are answered again.

    Attributes:
        done: the numbers of the input lines that have a row; without error rows to be answered again.
        failed: the part of `done` whose rows are error rows.
        run: `run`, with the values inherited from the continued run.

    Raises:
        BatchError: another process is writing the file, it belongs to another run, or it cannot be written.
    """

    def __init__(
        self,
        path: Path,
        run: Mapping[str, Json],
        *,
        overwrite: bool = False,
        retry_errors: bool = False,
        inherited: Set[str] = frozenset(),
        changeable: Set[str] = frozenset(),
    ):
        # The target of a link: a rename must replace the target and not the link.
        self.path = Path(os.path.realpath(path))
        self.run_path = self.path.with_name(self.path.name + ".run.json")
        self.done = LineSet()
        self.failed = LineSet()
        self.run = dict(run)
        self._stored: JsonObject = {}
        self._retried = LineSet()
        self._index = Index(self.path.with_name(self.path.name + ".index"))
        self._end = 0
        self._begun = False
        self._synced = time.monotonic()
        self._descriptor = self._open()
        try:
            self._check_folder()
            size = os.fstat(self._descriptor).st_size
            self._is_new = overwrite or size == 0
            if not self._is_new:
                self._continue(inherited, changeable if retry_errors else frozenset())
                self._read_rows()
                if retry_errors:
                    self.done -= self.failed
                    self._retried, self.failed = self.failed, LineSet()
        except BaseException:
            self.close()
            raise

    def begin(self, settled: Mapping[str, Json] = MappingProxyType({})) -> None:
        """Prepares the file for its first new row.

        Empties it for a new run, stores what the rows depend on, and removes the error rows that will be
        answered again.

        Args:
            settled: the values in `run` that were None when the file was opened.

        Raises:
            BatchError: the continued run had another value, or the disk is full or fails.
        """
        settled = _as_json(dict(settled))
        for name, value in settled.items():
            if self.run.get(name) is not None and self.run[name] != value:
                raise self._differs(name, self.run[name], value)
        self.run = {**self.run, **settled}
        self._begun = True
        try:
            if self._is_new:
                self._index.drop()
                os.ftruncate(self._descriptor, 0)
            if self._is_new or self._stored != _as_json(self.run):
                self._write_run()
            if self._retried:
                self._drop_retried()
            self._complete_index()
        except OSError as error:
            raise cannot("write", self.path, error) from None

    def known_ids(self) -> Iterator[tuple[bytes, int]]:
        """The ids of the rows that were there when the run began: see `Output`."""
        indexed = self._index.is_begun and self._index.end == self._end
        for entry in self._index.entries() if indexed else self._rows_from(0):
            if entry.id:
                yield entry.id, entry.line

    def append(self, line: int, row: Mapping[str, Json]) -> None:
        """Adds the row of an input line, completely or not at all.

        Raises:
            BatchError: the disk is full or fails. Then the file ends with the previous row.
        """
        data = encoded_row(line, row)
        try:
            written = os.write(self._descriptor, data)
            if written != len(data):
                raise OSError(f"only {written} of {len(data)} bytes were written: the disk may be full")
            self._end += written
            self.done.add(line)
            if self._index.is_begun:
                self._index.add(entry_of(line, row, self._end))
            if time.monotonic() - self._synced >= _FSYNC_SECONDS:
                self._sync()
        except OSError as error:
            os.ftruncate(self._descriptor, self._end)
            raise cannot("write", self.path, error) from None

    def close(self) -> None:
        """Makes the rows durable and closes the file.

        Raises:
            BatchError: the disk is full or fails.
        """
        if self._descriptor < 0:
            return
        descriptor, self._descriptor = self._descriptor, -1
        try:
            if self._begun:
                os.fsync(descriptor)
                self._index.flush()
            elif self._made and os.fstat(descriptor).st_size == 0:
                with contextlib.suppress(OSError):  # an empty file does no harm
                    self.path.unlink()
        except OSError as error:
            raise cannot("write", self.path, error) from None
        finally:
            self._index.close()
            os.close(descriptor)

    def __enter__(self) -> OutputFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _open(self) -> int:
        """Opens and locks the file. Returns its descriptor."""
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        while True:
            try:
                try:
                    descriptor = os.open(self.path, flags | os.O_EXCL, 0o666)
                    self._made = True
                except FileExistsError:
                    descriptor = os.open(self.path, flags, 0o666)
                    self._made = False
            except FileNotFoundError:
                raise BatchError(f"cannot write {self.path}: there is no folder {self.path.parent}") from None
            except OSError as error:
                raise cannot("write", self.path, error) from None
            try:
                if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                    raise BatchError(
                        f"cannot write {self.path}: it is not a regular file; - is standard output"
                    )
                _lock(descriptor, self.path)
                if _is_at(descriptor, self.path):
                    return descriptor
            except BaseException:
                os.close(descriptor)
                raise
            os.close(descriptor)  # another run has replaced the file since it was opened: try again

    def _check_folder(self) -> None:
        """Raises BatchError if the run's description could not be written in the file's folder."""
        folder = self.path.parent
        if not os.access(folder, os.W_OK | os.X_OK):
            raise BatchError(f"cannot write {self.run_path}: the folder {folder} is not writable")
        if self.run_path.is_dir():
            raise BatchError(f"cannot write {self.run_path}: it is a folder")

    def _continue(self, inherited: Set[str], changeable: Set[str]) -> None:
        """Checks that the file belongs to `run`, and takes over the inherited values."""
        try:
            stored = json.loads(self.run_path.read_bytes())
        except FileNotFoundError:
            raise BatchError(
                f"{self.path} is no batch run's output (there is no {self.run_path.name}): {_ADVICE}"
            ) from None
        except OSError as error:
            raise BatchError(f"{self.run_path} cannot be read ({error.strerror}): {_ADVICE}") from None
        except (ValueError, RecursionError) as error:
            raise BatchError(f"{self.run_path} is not valid JSON ({error}): {_ADVICE}") from None
        if not isinstance(stored, dict):
            raise BatchError(f"{self.run_path} is not a JSON object: {_ADVICE}")
        given = _as_json(self.run)
        for name in {**given, **stored}:
            if name not in inherited | changeable and stored.get(name) != given.get(name):
                raise self._differs(name, stored.get(name), given.get(name))
        self.run = given | {name: stored[name] for name in inherited if name in stored}
        self._stored = stored

    def _differs(self, name: str, stored: object, given: object) -> BatchError:
        was, now = (f'"{name}" {json.dumps(value)}' for value in (stored, given))
        return BatchError(f"{self.path} was made with {was}, this run has {now}: {_ADVICE}")

    def _read_rows(self) -> None:
        """Learns which lines have rows, and cuts off a torn line at the end."""
        if self._index.load(self._descriptor):
            self._note(self._index.entries())
        self._note(self._rows_from(self._index.end))
        os.ftruncate(self._descriptor, self._end)

    def _note(self, entries: Iterator[Entry]) -> None:
        for entry in entries:
            self.done.add(entry.line)
            if entry.is_error:
                self.failed.add(entry.line)
            self._end = entry.end

    def _rows_from(self, begin: int) -> Iterator[Entry]:
        """The entries of the whole rows from a place on, which are read. A torn line ends them."""
        with open(self._descriptor, "rb", closefd=False) as file:
            file.seek(begin)
            for number, raw in enumerate(file, self._index.rows + 1 if begin else 1):
                if not raw.endswith(b"\n"):
                    break
                begin += len(raw)
                try:
                    row = json.loads(raw)
                    if not 0 < int(row["line"]) <= _LAST_LINE:
                        raise ValueError("no number of a line")
                    entry = entry_of(int(row["line"]), row, begin)
                except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
                    raise BatchError(
                        f"line {number} of {self.path} is no row of a batch run: "
                        "correct it, or start anew with --overwrite"
                    ) from None
                yield entry

    def _sync(self) -> None:
        """Makes the rows durable, and then their entries in the index readable."""
        os.fsync(self._descriptor)
        self._synced = time.monotonic()
        if self._index.is_begun:
            self._index.flush()
        elif len(self.done) >= INDEXED_FROM:
            self._complete_index()

    def _complete_index(self) -> None:
        """Adds the rows that the index lacks, and leaves it ready for more. Small outputs get none."""
        if len(self.done) < INDEXED_FROM:
            return
        self._index.begin()
        os.fsync(self._descriptor)
        for number, entry in enumerate(self._rows_from(self._index.end), 1):
            self._index.add(entry)
            if number % _FLUSH_ROWS == 0:
                self._index.flush()
        self._index.flush()

    def _write_run(self) -> None:
        """Stores the run's description, atomically and durably, before the first row."""
        temporary = self.run_path.with_name(self.run_path.name + ".part")
        with open(temporary, "w", encoding="utf-8") as file:
            file.write(json.dumps(self.run, indent=2) + "\n")
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, self.run_path)
        self._sync_folder()

    def _drop_retried(self) -> None:
        """Replaces the file by a copy without the rows that will be answered again.

        The copy is locked before the rename. A process that opened the old file notices that it is no longer
        at the path, and one that opens the new file finds it locked.
        """
        temporary = self.path.with_name(self.path.name + ".part")
        flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC
        copy = os.open(temporary, flags, 0o600)
        try:
            _lock(copy, temporary)
            os.fchmod(copy, stat.S_IMODE(os.fstat(self._descriptor).st_mode))
            with (
                open(self._descriptor, "rb", closefd=False) as rows,
                open(copy, "wb", closefd=False) as kept,
            ):
                rows.seek(0)
                for raw in rows:
                    if json.loads(raw)["line"] not in self._retried:
                        kept.write(raw)
                kept.flush()
            os.fsync(copy)
            self._index.drop()
            os.replace(temporary, self.path)
        except BaseException:
            os.close(copy)
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise
        self._descriptor, old = copy, self._descriptor
        os.close(old)
        self._end = os.fstat(copy).st_size
        self._retried = LineSet()
        self._sync_folder()

    def _sync_folder(self) -> None:
        directory = os.open(self.path.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)


def _lock(descriptor: int, path: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise BatchError(f"{path} is being written by another run") from None
    except OSError as error:
        raise cannot("lock", path, error) from None


def _is_at(descriptor: int, path: Path) -> bool:
    """True if an open file is still the one at its path."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False


def _as_json(value: Mapping[str, Json]) -> JsonObject:
    copy: JsonObject = json.loads(json.dumps(value))
    return copy
