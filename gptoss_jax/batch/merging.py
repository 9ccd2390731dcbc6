"""Joins the outputs of an input's shards into the output that a run over all of it would have."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

from gptoss_jax.batch.errors import BatchError, cannot
from gptoss_jax.batch.line_set import LineSet
from gptoss_jax.batch.output import OutputFile, is_error_row
from gptoss_jax.batch.scratch import ScratchTable, room_for
from gptoss_jax.batch.shards import Shard, whole_run

if TYPE_CHECKING:
    from harmony.json_types import JsonObject


class Merged(NamedTuple):
    """What was joined. rows: all rows. errors: those that are error rows. shards: how many outputs."""

    rows: int
    errors: int
    shards: int


class _Part(NamedTuple):
    """The output of a shard, open and locked. rows: how many it must have."""

    path: Path
    file: BinaryIO
    run: JsonObject
    shard: Shard
    rows: int


def merge(outputs: Sequence[str | Path], whole: str | Path, *, overwrite: bool = False) -> Merged:
    """Joins the outputs of all shards of an input, in the order of the input's lines.

    The result is the output of a run over the whole input: the same command without ``--shard`` finds all
    rows in it. Nothing is written before everything is checked. Host memory does not depend on the number of
    rows; the folder of temporary files needs about 25 bytes for each.

    Args:
        outputs: the outputs of the shards, in any order.
        whole: the file for all rows.
        overwrite: True replaces the rows of `whole`; False refuses a file that has some.

    Raises:
        BatchError: a shard is missing or given twice, is not finished or is being written; two were made from
            other inputs or with other settings; a row is torn, damaged, there twice, or another shard's; or
            the result cannot be written.
    """
    with contextlib.ExitStack() as resources:
        parts = [_open(Path(path), resources) for path in outputs]
        _check(parts)
        target = Path(whole)
        for part in parts:
            if target.exists() and os.path.samestat(os.stat(target), os.fstat(part.file.fileno())):
                raise BatchError(f"{target} is one of the shards: the output must be another file")
        places = resources.enter_context(_Places())
        for number, part in enumerate(parts):
            places.add(number, _rows_of(part))
        out = resources.enter_context(OutputFile(target, whole_run(parts[0].run), overwrite=overwrite))
        if out.done:
            raise BatchError(f"{target} has rows: give another output, or start anew with --overwrite")
        out.begin()
        errors = 0
        for line, number, begin, length in places.in_order():
            row = json.loads(os.pread(parts[number].file.fileno(), length, begin))
            out.append(line, row)
            errors += is_error_row(row)
        return Merged(len(out.done), errors, len(parts))


def _open(path: Path, resources: contextlib.ExitStack) -> _Part:
    """Opens the output of a shard, and keeps runs from writing it meanwhile."""
    run_path = path.with_name(path.name + ".run.json")
    try:
        file = resources.enter_context(open(path, "rb"))  # noqa: SIM115 - it is closed with the others
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        raise BatchError(f"{path} is being written by another run") from None
    except OSError as error:
        raise cannot("read", path, error) from None
    try:
        run = json.loads(run_path.read_bytes())
        noted = run.get("shard")
    except OSError as error:
        raise cannot("read", run_path, error) from None
    except (ValueError, RecursionError, AttributeError):
        raise BatchError(f"{run_path} describes no batch run") from None
    if noted is None:
        raise BatchError(f"{path} is no shard: its run had all lines of the input")
    try:
        return _Part(path, file, run, Shard(noted["index"], noted["count"]), int(noted["rows"]))
    except (KeyError, TypeError, ValueError):
        raise BatchError(f"{run_path} describes no shard of a batch run") from None


def _check(parts: Sequence[_Part]) -> None:
    """Raises BatchError if the outputs are not all shards of one run."""
    if not parts:
        raise BatchError("there are no shards to merge")
    first = parts[0]
    seen: dict[int, Path] = {}
    for part in parts:
        ours, theirs = whole_run(first.run), whole_run(part.run)
        for name in {**ours, **theirs}:
            if ours.get(name) != theirs.get(name):
                a, b = json.dumps(ours.get(name)), json.dumps(theirs.get(name))
                raise BatchError(f'{first.path} was made with "{name}" {a}, {part.path} with {b}')
        if part.shard.count != first.shard.count:
            counts = f"{first.path} is one of {first.shard.count} shards, {part.path}"
            raise BatchError(f"{counts} one of {part.shard.count}")
        if part.shard.index in seen:
            raise BatchError(f"{seen[part.shard.index]} and {part.path} are both shard {part.shard}")
        seen[part.shard.index] = part.path
    missing = [str(index) for index in range(first.shard.count) if index not in seen]
    if missing:
        shown = ", ".join(missing[:8]) + (", …" if len(missing) > 8 else "")
        raise BatchError(f"of {first.shard.count} shards these are missing: {shown}")


def _rows_of(part: _Part) -> Iterator[tuple[int, int, int]]:
    """Yields the line, begin and length of each row. Raises BatchError if the output is not whole."""
    found, begin = LineSet(), 0
    for number, raw in enumerate(part.file, 1):
        if not raw.endswith(b"\n"):
            raise BatchError(f"{part.path} ends in a torn row: continue the run of shard {part.shard}")
        try:
            line = json.loads(raw)["line"]
            if not isinstance(line, int):
                raise ValueError("no number of a line")
        except (ValueError, KeyError, TypeError, RecursionError):
            raise BatchError(f"line {number} of {part.path} is no row of a batch run") from None
        if line < 1 or not part.shard.has(line):
            raise BatchError(
                f"line {number} of {part.path} answers line {line}, which is not of shard {part.shard}"
            )
        if line in found:
            raise BatchError(f"{part.path} has two rows of input line {line}")
        found.add(line)
        yield line, begin, len(raw)
        begin += len(raw)
    if len(found) != part.rows:
        raise BatchError(
            f"{part.path} has {len(found)} of the {part.rows} rows of shard {part.shard}: continue its run"
        )


class _Places(ScratchTable):
    """Where each line's row is."""

    def __init__(self) -> None:
        super().__init__(
            "CREATE TABLE places (line INTEGER PRIMARY KEY, part INTEGER, begin INTEGER, length INTEGER)"
        )

    def add(self, part: int, rows: Iterator[tuple[int, int, int]]) -> None:
        """Notes the rows of an output: line, begin, length."""
        with room_for("the rows' places"):
            self.database.executemany(
                "INSERT INTO places VALUES (?, ?, ?, ?)",
                ((line, part, begin, length) for line, begin, length in rows),
            )

    def in_order(self) -> Iterator[tuple[int, int, int, int]]:
        """Yields line, part, begin and length of each row, by line."""
        yield from self.database.execute("SELECT line, part, begin, length FROM places ORDER BY line")

    def __enter__(self) -> _Places:
        return self
