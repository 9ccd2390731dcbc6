"""`--retry-errors`, and exit codes: error rows are answered again, and no row is ever there twice."""

from __future__ import annotations

import errno
import json
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gptoss_jax.batch import BatchError, BatchReport, run_batch
from gptoss_jax.batch.output import OutputFile, is_error_row
from tests.batch.scripted import ScriptedEngine

HERE = Path(__file__).parent
RUN = {"input_sha256": "abc", "max_length": 10}


def made(path: Path, rows: int = 8, failing: int = 3, **changes: Any) -> bytes:
    """An output whose every so manieth row is an error row."""
    with OutputFile(path, RUN | changes) as out:
        out.begin()
        for line in range(1, rows + 1):
            out.append(line, {"id": f"row {line}", "error": {"code": "x"} if line % failing == 0 else None})
    return path.read_bytes()


def lines_of(path: Path) -> list[int]:
    return [json.loads(line)["line"] for line in path.read_bytes().splitlines()]


@pytest.mark.parametrize(
    ("row", "is_error"),
    [
        ({"id": 1, "text": "", "error": None}, False),
        ({"id": 1, "error": {"code": "x", "message": "y"}}, True),
        ({"custom_id": "a", "response": {"status_code": 200, "body": {}}, "error": None}, False),
        ({"custom_id": "a", "response": {"status_code": 400, "body": {}}, "error": None}, True),
        ({"custom_id": "a", "response": {"status_code": 500, "body": {}}, "error": None}, True),
        ({"custom_id": None, "response": None, "error": {"code": "x"}}, True),
    ],
)
def test_error_rows_are_told_in_every_form(row, is_error):
    assert is_error_row(row) is is_error


def test_error_rows_leave_the_file_when_the_run_begins_and_not_before(tmp_path):
    path = tmp_path / "out.jsonl"
    before = made(path)
    with OutputFile(path, RUN, retry_errors=True) as out:
        assert (out.done, out.failed) == ({1, 2, 4, 5, 7, 8}, set())
        assert path.read_bytes() == before
        out.begin()
        assert lines_of(path) == [1, 2, 4, 5, 7, 8]
        out.append(3, {"error": None})
        assert lines_of(path) == [1, 2, 4, 5, 7, 8, 3]
    with OutputFile(path, RUN) as out:
        assert (out.done, out.failed) == ({1, 2, 3, 4, 5, 7, 8}, set())
    assert sorted(os.listdir(tmp_path)) == ["out.jsonl", "out.jsonl.run.json"]


def test_without_the_option_error_rows_are_done(tmp_path):
    before = made(tmp_path / "out.jsonl")
    with OutputFile(tmp_path / "out.jsonl", RUN) as out:
        out.begin()
        assert (len(out.done), out.failed) == (8, {3, 6})
    assert (tmp_path / "out.jsonl").read_bytes() == before


def test_the_lock_goes_over_to_the_file_without_the_error_rows(tmp_path):
    path = tmp_path / "out.jsonl"
    made(path)
    with OutputFile(path, RUN, retry_errors=True) as out:
        for _ in range(2):
            with pytest.raises(BatchError, match="being written by another run"):
                OutputFile(path, RUN)
            out.begin()
    OutputFile(path, RUN).close()


def test_who_opened_the_file_before_it_was_replaced_gets_the_new_one(tmp_path, monkeypatch):
    """Between opening a file and locking it, another run may put a new one there and end."""
    path = tmp_path / "out.jsonl"
    made(path)
    lock, others = os.open, []

    def slow_open(name: Any, flags: int, *mode: int) -> int:
        descriptor = lock(name, flags, *mode)
        if name == path and not others:
            others.append(1)
            with OutputFile(path, RUN, retry_errors=True) as other:
                other.begin()
        return descriptor

    monkeypatch.setattr(os, "open", slow_open)
    with OutputFile(path, RUN) as out:
        out.begin()
        assert out.done == {1, 2, 4, 5, 7, 8}
        out.append(3, {"error": None})
    assert lines_of(path) == [1, 2, 4, 5, 7, 8, 3]


def test_a_link_stays_a_link_and_permissions_stay(tmp_path):
    path, link = tmp_path / "real.jsonl", tmp_path / "out.jsonl"
    link.symlink_to(path)
    made(link)
    path.chmod(0o640)
    with OutputFile(link, RUN, retry_errors=True) as out:
        out.begin()
    assert link.is_symlink()
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert lines_of(path) == [1, 2, 4, 5, 7, 8]


def test_a_full_disk_while_error_rows_are_taken_out_changes_nothing(tmp_path, monkeypatch):
    path = tmp_path / "out.jsonl"
    before = made(path)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with OutputFile(path, RUN, retry_errors=True) as out:
        monkeypatch.setattr(os, "replace", full)
        with pytest.raises(BatchError, match=r"cannot write .*: No space left on device"):
            out.begin()
        monkeypatch.undo()
    assert path.read_bytes() == before
    assert sorted(os.listdir(tmp_path)) == ["out.jsonl", "out.jsonl.run.json"]


def test_a_setting_that_decides_what_is_refused_may_change_for_rows_that_were(tmp_path):
    path = tmp_path / "out.jsonl"
    made(path)
    with pytest.raises(BatchError, match='"max_length"'):
        OutputFile(path, RUN | {"max_length": 20}, changeable={"max_length"})
    with OutputFile(path, RUN | {"max_length": 20}, retry_errors=True, changeable={"max_length"}) as out:
        out.begin()
    assert json.loads((tmp_path / "out.jsonl.run.json").read_text())["max_length"] == 20
    OutputFile(path, RUN | {"max_length": 20}).close()


def test_rows_that_were_too_long_are_answered_with_a_larger_max_length(
    encoding, write_lines, read_rows, tmp_path
):
    source = write_lines([{"prompt": "short"}, {"prompt": "long " * 300}, b"{", {"prompt": "short"}])
    out = tmp_path / "out.jsonl"

    def run(max_length: int, **arguments: Any) -> tuple[BatchReport, ScriptedEngine]:
        engine = ScriptedEngine(encoding, max_length=max_length)
        settings = {"max_length": max_length}
        return run_batch(
            source, out, engine=engine, encoding=encoding, settings=settings, **arguments
        ), engine

    first, _ = run(1000)
    before = read_rows(out)
    assert "fewer than 1000 fit (--max-length, in Python max_length)" in before[2]["error"]["message"]
    assert (first.answered, first.errors, first.failed) == (2, 2, 2)
    again, idle = run(1000)
    assert (again.resumed, again.resumed_errors, again.failed, idle.requests) == (4, 2, 2, [])
    retried, engine = run(4000, retry_errors=True)
    assert (retried.resumed, retried.answered, retried.errors, retried.failed) == (2, 1, 1, 1)
    assert [request.id for request in engine.requests] == ["2"]
    rows = read_rows(out)
    assert rows[2]["text"].startswith("You said: long")
    assert rows[3]["error"]["code"] == "invalid_json"
    assert (rows[1], rows[4]) == (before[1], before[4])


@pytest.mark.parametrize(
    ("report", "max_errors", "code"),
    [
        (BatchReport(rows=0), None, 0),
        (BatchReport(rows=2, answered=2), 0, 0),
        (BatchReport(rows=2, answered=1, errors=1), None, 0),
        (BatchReport(rows=2, answered=1, errors=1), 1, 0),
        (BatchReport(rows=2, answered=1, errors=1), 0, 1),
        (BatchReport(rows=2, errors=2), None, 1),
        (BatchReport(rows=2, errors=2), 2, 1),
        (BatchReport(rows=2, resumed=2), 0, 0),
        (BatchReport(rows=2, resumed=2, resumed_errors=1), 0, 1),
        (BatchReport(rows=2, resumed=2, resumed_errors=2), None, 1),
        (BatchReport(rows=3, resumed=2, resumed_errors=2, answered=1), 1, 1),
        (BatchReport(rows=3, resumed=2, resumed_errors=2, answered=1), 2, 0),
    ],
)
def test_the_exit_code_tells_whether_rows_were_answered(report, max_errors, code):
    assert report.exit_code(max_errors) == code


KILLED = """
import json, os, signal, sys
from pathlib import Path

from gptoss_jax.batch.output import OutputFile

path, run = Path(sys.argv[1]), {"input_sha256": "abc", "max_length": 10}


def retry(seed):
    calls = seed % 17 + 1

    def mortal(name):
        # Dies before, or in the middle of, a call that changes the disk, when its turn has come.
        real = getattr(os, name)

        def call(*arguments, **options):
            nonlocal calls
            calls -= 1
            if calls == 0:
                if name == "write" and seed % 2:
                    real(arguments[0], arguments[1][: len(arguments[1]) // 2])
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*arguments, **options)

        setattr(os, name, call)

    for name in ("open", "write", "replace", "fsync", "ftruncate", "fchmod"):
        mortal(name)
    with OutputFile(path, run, retry_errors=seed % 3 > 0) as out:
        out.begin()
        for line in range(1, 25):
            if line not in out.done:
                out.append(line, {"error": {"code": "x"} if line % 6 == 0 else None})


found = []
for seed in range(60):
    child = os.fork()
    if not child:
        retry(seed)
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    found.append([code, path.read_text()])
print(json.dumps(found))
"""


def test_a_retry_that_is_killed_at_any_moment_has_each_row_at_most_once_and_in_the_end_once(tmp_path):
    """The process dies at the first, the second, … of the calls that change the disk, again and again, every
    third time without the option. Whatever it leaves, no row is there twice, and no answered row is lost."""
    path = tmp_path / "out.jsonl"
    made(path, rows=24, failing=3)
    answered = set(range(1, 25)) - set(range(3, 25, 3))
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(path)],
        env={**os.environ, "PYTHONPATH": str(HERE.parents[1])},
        capture_output=True,
        check=True,
    )
    codes = []
    for code, text in json.loads(done.stdout):
        codes.append(code)
        rows = [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]
        lines = [row["line"] for row in rows]
        assert len(set(lines)) == len(lines)
        assert answered <= set(lines)
        answered = {row["line"] for row in rows if row["error"] is None}
    assert set(codes) == {0, -signal.SIGKILL}
    assert codes.count(-signal.SIGKILL) >= 30
    with OutputFile(path, RUN) as out:
        out.begin()
        for line in range(1, 25):
            if line not in out.done:
                out.append(line, {"error": None})
    assert sorted(lines_of(path)) == list(range(1, 25))
    assert answered >= set(range(1, 25)) - {6, 12, 18, 24}
