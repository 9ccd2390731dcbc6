"""`gptoss-jax batch` in pipelines, and beside another run, as programs."""

from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROWS = 30
LINES = "".join(f'{{"id": "row {i}", "prompt": "text {i}"}}\n' for i in range(1, ROWS + 1)).encode()


@pytest.fixture
def batch(tmp_path):
    """Starts `gptoss-jax batch` on the scripted engine, which takes 10 ms for each row."""
    folder = tmp_path / "vocabulary"
    folder.mkdir()
    environment = {**os.environ, "PYTHONPATH": str(HERE.parents[1]), "JAX_PLATFORMS": "cpu"}
    started = []

    def batch(*arguments: object, stdout: object = subprocess.PIPE) -> subprocess.Popen[bytes]:
        command = [sys.executable, str(HERE / "scripted_command.py"), str(folder), "batch"]
        process = subprocess.Popen(
            [*command, *map(str, arguments)],
            env=environment,
            cwd=tmp_path,
            stdin=subprocess.PIPE,
            stdout=stdout,
            stderr=subprocess.PIPE,
        )
        started.append(process)
        return process

    yield batch
    for process in started:
        process.kill()
        process.wait()


def answers(data: bytes) -> dict[int, str]:
    rows = [json.loads(line) for line in data.splitlines()]
    assert len({row["line"] for row in rows}) == len(rows)
    return {row["line"]: row["text"] for row in rows}


ALL = {i: f"You said: text {i}" for i in range(1, ROWS + 1)}


def test_rows_alone_go_to_standard_output_and_the_rest_to_standard_error(batch, tmp_path):
    process = batch("-", "--output", "-", "--report", "report.json")
    out, error = process.communicate(gzip.compress(LINES))
    assert process.returncode == 0, error
    assert answers(out) == ALL
    assert b"30 answered" in error and b"30/30" in error
    assert json.loads((tmp_path / "report.json").read_text())["answered"] == ROWS
    assert sorted(os.listdir(tmp_path)) == ["report.json", "vocabulary"]


def test_the_device_of_standard_output_is_standard_output(batch, tmp_path):
    """Also where it is a regular file, beside which a description would find room."""
    with open(tmp_path / "rows", "wb") as rows:
        process = batch("-", "--output", "/dev/stdout", stdout=rows)
        _, error = process.communicate(LINES)
    assert process.returncode == 0, error
    assert answers((tmp_path / "rows").read_bytes()) == ALL
    assert not os.path.exists("/dev/stdout.run.json")


def test_a_full_disk_behind_standard_output_is_one_line(batch):
    with open("/dev/full", "wb") as full:
        process = batch("-", "--output", "-", stdout=full)
        _, error = process.communicate(LINES)
    assert process.returncode == 2
    assert error.splitlines()[-1] == b"gptoss-jax: cannot write standard output: No space left on device"
    assert b"Traceback" not in error


def test_a_reader_that_goes_away_ends_the_run_without_a_word(batch):
    process = batch("-", "--output", "-")
    process.stdin.write(LINES)
    process.stdin.close()
    process.stdin = None
    process.stdout.readline()
    process.stdout.close()
    process.stdout = None
    _, error = process.communicate()
    assert process.returncode == 1
    assert b"gptoss-jax:" not in error and b"Traceback" not in error


def test_a_run_from_standard_input_goes_on_from_the_same_input_however_it_comes(batch, tmp_path):
    """Killed, refused with other lines, then continued from a gzip file; another run is refused meanwhile."""
    out = tmp_path / "out.jsonl"
    first = batch("-", "--output", out)
    first.stdin.write(LINES)
    first.stdin.close()
    first.stdin = None
    while not out.exists() or out.read_bytes().count(b"\n") < 3:
        assert first.poll() is None, first.stderr.read()
        time.sleep(0.002)
    second = batch("-", "--output", out)
    first.send_signal(signal.SIGSTOP)  # it neither ends nor lets go
    _, error = second.communicate(LINES)
    assert (second.returncode, error.count(b"\n")) == (2, 1)
    assert b"being written by another run" in error
    first.kill()
    first.wait()
    done = out.read_bytes().count(b"\n")
    assert 3 <= done < ROWS

    other = batch("-", "--output", out)
    _, error = other.communicate(LINES + b"{}\n")
    assert other.returncode == 2 and b'"input_sha256"' in error

    (tmp_path / "in.gz").write_bytes(gzip.compress(LINES))
    last = batch("in.gz", "--output", out)
    printed, error = last.communicate()
    assert last.returncode == 0, error
    assert f"{ROWS - done} answered, 0 errors, {done} resumed".encode() in printed
    assert answers(out.read_bytes()) == ALL
