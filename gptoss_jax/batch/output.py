"""The output file of a batch run: append-only, owned by one run, one whole line per finished row.

How a row is there once, and once only, whatever kills the run:

- A row is written with its newline in a single ``write`` to a descriptor opened with ``O_APPEND``, so a
  killed process leaves whole lines and at most one torn line at the very end, without its newline. Opening
  the file again cuts that line off; its row counts as not done.
- Every row carries its input line's number, and ``OUT.run.json`` beside the output names the input (by
  hash) and the settings that made it. Opening with others is refused, so a line number always means the
  same request.
- An exclusive ``flock`` on the output lets one run at a time write it. It ends with the process.
- ``fsync`` follows a row when the last one is a second old, and closes the file. A killed process loses
  nothing; a power cut may lose the rows of the last second, which the next run answers again.
"""

from __future__ import annotations

import fcntl
import json
import os
import stat
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

_FSYNC_SECONDS = 1.0


class BatchError(ValueError):
    """A batch run that cannot start or go on; the message is one line and says why."""


class OutputFile:
    """The rows of one run, on disk. Use as a context manager.

    Args:
        path: the file; made if it is not there.
        run: what the rows depend on, as JSON: the input's hash and the settings.
        overwrite: start anew, whatever the file holds.
        inherited: names in `run` whose stored value wins over the given one when a run is resumed.

    Attributes:
        done: the input line numbers that have their row.
        run: `run`, with the inherited values of the run that is resumed.

    Raises:
        BatchError: another process is writing it, or it belongs to another run, or cannot be written.
    """

    def __init__(
        self,
        path: Path,
        run: Mapping[str, Any],
        *,
        overwrite: bool = False,
        inherited: frozenset[str] = frozenset(),
    ):
        self.path = path
        self.run_path = path.with_name(path.name + ".run.json")
        self.done: set[int] = set()
        self._synced = time.monotonic()
        try:
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise BatchError(f"cannot write {path}: {error.strerror}") from None
        try:
            self._lock()
            if overwrite:
                os.ftruncate(self._descriptor, 0)
            size = os.fstat(self._descriptor).st_size
            self.run = self._claim(run, inherited, empty=size == 0)
            self._end = self._read_done() if size else 0
            os.ftruncate(self._descriptor, self._end)
        except BaseException:
            os.close(self._descriptor)
            raise

    def append(self, line: int, row: Mapping[str, Any]) -> None:
        """Adds the row of an input line, whole or not at all.

        Raises:
            BatchError: the disk is full or fails; the file then ends with the row before.
        """
        text = json.dumps({**row, "line": line}, ensure_ascii=False, separators=(",", ":"))
        try:
            data = text.encode()
        except UnicodeEncodeError:  # a lone surrogate, which only JSON's own escapes can carry
            data = json.dumps({**row, "line": line}, separators=(",", ":")).encode()
        data += b"\n"
        try:
            written = os.write(self._descriptor, data)
            if written != len(data):
                raise OSError(f"only {written} of {len(data)} bytes were written")
            self._end += written
            self.done.add(line)
            if time.monotonic() - self._synced >= _FSYNC_SECONDS:
                os.fsync(self._descriptor)
                self._synced = time.monotonic()
        except OSError as error:
            os.ftruncate(self._descriptor, self._end)
            raise BatchError(f"cannot write {self.path}: {error.strerror or error}") from None

    def close(self) -> None:
        """Makes the rows durable and lets go of the file."""
        try:
            os.fsync(self._descriptor)
        finally:
            os.close(self._descriptor)

    def __enter__(self) -> OutputFile:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _lock(self) -> None:
        if not stat.S_ISREG(os.fstat(self._descriptor).st_mode):
            raise BatchError(f"cannot write {self.path}: it is not a regular file")
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BatchError(f"{self.path} is being written by another run") from None

    def _claim(self, run: Mapping[str, Any], inherited: frozenset[str], *, empty: bool) -> dict[str, Any]:
        """Checks that the file belongs to `run`, or makes it so when it is empty."""
        if empty:
            self._write_run(run)
            return dict(run)
        advice = "give another output, or start anew with --overwrite"
        try:
            stored = json.loads(self.run_path.read_bytes())
        except FileNotFoundError:
            raise BatchError(
                f"{self.path} is no batch run's output (there is no {self.run_path.name}): {advice}"
            ) from None
        except (OSError, ValueError) as error:
            raise BatchError(f"{self.run_path} cannot be read ({error}): {advice}") from None
        if not isinstance(stored, dict):
            raise BatchError(f"{self.run_path} is not a JSON object: {advice}")
        differing = [
            name
            for name in {**run, **stored}
            if name not in inherited and stored.get(name) != _as_json(run.get(name))
        ]
        if differing:
            name = differing[0]
            was, now = (f'"{name}" {json.dumps(side.get(name))}' for side in (stored, run))
            raise BatchError(f"{self.path} was made with {was}, this run has {now}: {advice}")
        return {**run, **{name: stored[name] for name in inherited if name in stored}}

    def _write_run(self, run: Mapping[str, Any]) -> None:
        """Puts the run's description in place, whole and durable, before the first row."""
        temporary = self.run_path.with_name(self.run_path.name + ".part")
        with open(temporary, "w", encoding="utf-8") as file:
            file.write(json.dumps(run, indent=2) + "\n")
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, self.run_path)
        directory = os.open(self.path.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)

    def _read_done(self) -> int:
        """Notes the finished lines and returns where the last whole line ends."""
        end = 0
        with open(self._descriptor, "rb", closefd=False) as file:
            file.seek(0)
            for number, raw in enumerate(file, 1):
                if not raw.endswith(b"\n"):
                    break
                try:
                    self.done.add(int(json.loads(raw)["line"]))
                except (ValueError, KeyError, TypeError):
                    raise BatchError(
                        f"line {number} of {self.path} is no row of a batch run: "
                        "mend it, or start anew with --overwrite"
                    ) from None
                end += len(raw)
        return end


def _as_json(value: object) -> Any:
    return json.loads(json.dumps(value))
