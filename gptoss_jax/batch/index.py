"""The index of an output: which rows it has, so that a run goes on without reading all of them.

A file of records beside the output, one for each row in the output's order: the number of its input line,
whether it is an error row, where it ends, and its id. It only saves time: an output without an index, or with
one that does not fit it, is read in full. That makes it safe to trust:

- Records are written after their rows were made durable. So a crash or a power cut leaves an index of the
  output's beginning, and the rows behind it are read. Records that a power cut tore or emptied are not used,
  nor those behind them.
- When it is opened, the row of the last record and rows spread over the whole output are compared with their
  records. An output that was changed by hand does not fit: taking a row out or adding one moves all the rows
  behind it.
- Small outputs have none.
"""

from __future__ import annotations

import contextlib
import json
import os
import struct
from collections.abc import Iterator
from pathlib import Path

from gptoss_jax.batch.ids import ID_BYTES
from gptoss_jax.batch.row_lines import Entry, entry_of

INDEXED_FROM = 10_000
"""An output has an index from this many rows on."""

_HEADER = b"gptoss-jax rows, version 1\n".ljust(32, b"\0")
_RECORD = struct.Struct(f"<QQ{ID_BYTES}s")
_ERROR = 1 << 63
_NO_ID = bytes(ID_BYTES)
_PIECE = 1 << 15
"""Records that are read at a time."""
_SAMPLES = 64
"""Rows that are compared with their records."""


class Index:
    """The index at a path. `rows` is how many rows it has, and `end` where the last of them ends."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows = 0
        self.end = 0
        self._waiting: list[Entry] = []
        self._descriptor = -1

    def load(self, output: int) -> bool:
        """Checks the file against the output, an open descriptor. Returns False if it is not to be used."""
        try:
            with open(self.path, "rb") as file:
                if file.read(len(_HEADER)) != _HEADER:
                    return False
                self.rows, self.end = self._whole_records(os.fstat(output).st_size)
                step = max(1, self.rows // _SAMPLES)
                places = {*range(0, self.rows, step), self.rows - 1} if self.rows else set()
                fits = all(self._fits(file.fileno(), output, place) for place in sorted(places))
        except OSError:
            fits = False
        if not fits:
            self.rows = self.end = 0
        return bool(self.rows)

    def entries(self) -> Iterator[Entry]:
        """The entries of its rows, in the output's order."""
        left = self.rows
        if not left:
            return
        with open(self.path, "rb") as file:
            file.seek(len(_HEADER))
            while left:
                data = file.read(_RECORD.size * min(left, _PIECE))
                if not data:
                    return
                for line, end, id in _RECORD.iter_unpack(data):
                    yield Entry(line & ~_ERROR, bool(line & _ERROR), end, b"" if id == _NO_ID else id)
                left -= len(data) // _RECORD.size

    def begin(self) -> None:
        """Makes the file ready for more records behind those of `rows`; anew, if there are none.

        An index that cannot be written is left out: then there is no file.
        """
        self._waiting.clear()
        try:
            flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
            self._descriptor = os.open(self.path, flags, 0o666)
            if self.rows:
                os.ftruncate(self._descriptor, len(_HEADER) + self.rows * _RECORD.size)
            else:
                os.ftruncate(self._descriptor, 0)
                os.write(self._descriptor, _HEADER)
        except OSError:
            self.drop()

    @property
    def is_begun(self) -> bool:
        """True if records are written."""
        return self._descriptor >= 0

    def add(self, entry: Entry) -> None:
        """Adds the entry of the next row. It is written by `flush`."""
        if self.is_begun:
            self._waiting.append(entry)

    def flush(self) -> None:
        """Writes the entries that were added. Call it when their rows are durable."""
        if not self.is_begun or not self._waiting:
            return
        data = b"".join(
            _RECORD.pack(line | (_ERROR if is_error else 0), end, id or _NO_ID)
            for line, is_error, end, id in self._waiting
        )
        try:
            if os.write(self._descriptor, data) != len(data):
                raise OSError("the disk may be full")
        except OSError:
            self.drop()
            return
        self.rows += len(self._waiting)
        self.end = self._waiting[-1].end
        self._waiting.clear()

    def drop(self) -> None:
        """Removes the file."""
        self.close()
        self.rows = self.end = 0
        with contextlib.suppress(OSError):
            self.path.unlink()

    def close(self) -> None:
        """Closes the file. Entries that were not flushed are lost."""
        self._waiting.clear()
        if self.is_begun:
            descriptor, self._descriptor = self._descriptor, -1
            os.close(descriptor)

    def _whole_records(self, size: int) -> tuple[int, int]:
        """How many records are whole and inside an output of `size` bytes, and where the last row ends."""
        self.rows = max(0, self.path.stat().st_size - len(_HEADER)) // _RECORD.size
        rows = last = 0
        for entry in self.entries():
            if not last < entry.end <= size:
                break
            rows, last = rows + 1, entry.end
        return rows, last

    def _fits(self, index: int, output: int, place: int) -> bool:
        """True if the output has, where the record at a place says, the row that it says."""
        begin = 0
        if place:
            begin = _RECORD.unpack(_record(index, place - 1))[1]
        line, end, id = _RECORD.unpack(_record(index, place))
        raw = os.pread(output, end - begin, begin)
        try:
            row = json.loads(raw)
            expected = Entry(line & ~_ERROR, bool(line & _ERROR), end, b"" if id == _NO_ID else id)
            return raw.endswith(b"\n") and entry_of(row["line"], row, end) == expected
        except (ValueError, KeyError, TypeError, RecursionError):
            return False


def _record(index: int, place: int) -> bytes:
    return os.pread(index, _RECORD.size, len(_HEADER) + place * _RECORD.size)
