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

Opening an output changes nothing except that it cuts off a torn line. So a run that cannot start, for example
because the model does not fit in memory, leaves the earlier rows as they are.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import stat
import sys
import time
from collections.abc import Mapping, Set
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Protocol

from gptoss_jax.batch.errors import BatchError, cannot

if TYPE_CHECKING:
    from harmony.json_types import Json, JsonObject

_FSYNC_SECONDS = 1.0
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
        self.done: set[int] = set()
        self.failed: set[int] = set()
        self.run = dict(run)
        self._stored: JsonObject = {}
        self._retried: set[int] = set()
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
                    self._retried, self.failed = self.failed, set()
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
                os.ftruncate(self._descriptor, 0)
            if self._is_new or self._stored != _as_json(self.run):
                self._write_run()
            if self._retried:
                self._drop_retried()
        except OSError as error:
            raise cannot("write", self.path, error) from None

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
            if time.monotonic() - self._synced >= _FSYNC_SECONDS:
                os.fsync(self._descriptor)
                self._synced = time.monotonic()
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
            elif self._made and os.fstat(descriptor).st_size == 0:
                with contextlib.suppress(OSError):  # an empty file does no harm
                    self.path.unlink()
        except OSError as error:
            raise cannot("write", self.path, error) from None
        finally:
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
        """Reads which lines have rows, and cuts off a torn line at the end."""
        with open(self._descriptor, "rb", closefd=False) as file:
            file.seek(0)
            for number, raw in enumerate(file, 1):
                if not raw.endswith(b"\n"):
                    break
                try:
                    row = json.loads(raw)
                    line = int(row["line"])
                except (ValueError, KeyError, TypeError, RecursionError):
                    raise BatchError(
                        f"line {number} of {self.path} is no row of a batch run: "
                        "correct it, or start anew with --overwrite"
                    ) from None
                self.done.add(line)
                if is_error_row(row):
                    self.failed.add(line)
                self._end += len(raw)
        os.ftruncate(self._descriptor, self._end)

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
            os.replace(temporary, self.path)
        except BaseException:
            os.close(copy)
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise
        self._descriptor, old = copy, self._descriptor
        os.close(old)
        self._end = os.fstat(copy).st_size
        self._retried = set()
        self._sync_folder()

    def _sync_folder(self) -> None:
        directory = os.open(self.path.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)


class StandardOutput:
    """The rows of one run on standard output. No earlier run can be continued."""

    def __init__(self, run: Mapping[str, Json]):
        if sys.stdout is None:
            raise BatchError("cannot write standard output: it is closed")
        self.run = dict(run)
        self.done: set[int] = set()
        self.failed: Set[int] = frozenset()

    def begin(self, settled: Mapping[str, Json] = MappingProxyType({})) -> None:
        """Adds the values of settings that were None."""
        self.run.update(settled)

    def append(self, line: int, row: Mapping[str, Json]) -> None:
        """Writes the row of an input line, unbuffered.

        Raises:
            BrokenPipeError: the reader of standard output has closed it.
            BatchError: the disk behind standard output is full or fails.
        """
        # Without Python's buffer: after an error, Python would try to write its contents again at exit.
        out = getattr(sys.stdout.buffer, "raw", sys.stdout.buffer)
        left = memoryview(encoded_row(line, row))
        try:
            while left:
                left = left[out.write(left) :]
        except BrokenPipeError:
            raise
        except OSError as error:
            raise cannot("write", "standard output", error) from None
        self.done.add(line)

    def close(self) -> None:
        """Does nothing: standard output stays open."""


def encoded_row(line: int, row: Mapping[str, Json]) -> bytes:
    """A row as one line of JSON in UTF-8, with the number of its input line and with its newline."""
    return json_line({**row, "line": line})


def json_line(document: Mapping[str, Json]) -> bytes:
    """An object as one line of JSON in UTF-8, with its newline."""
    try:
        data = json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()
    except UnicodeEncodeError:  # a lone surrogate: UTF-8 cannot encode it, an escape of JSON can
        data = json.dumps(document, separators=(",", ":")).encode()
    return data + b"\n"


def is_error_row(row: Mapping[str, Json]) -> bool:
    """True if a row is an error row: its line was not answered."""
    response = row.get("response")
    refused = isinstance(response, dict) and response.get("status_code") != 200
    return row.get("error") is not None or refused


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
