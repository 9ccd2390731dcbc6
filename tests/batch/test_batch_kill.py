"""kill -9 at any moment: in the end every row is there, each once."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROWS = 200


@pytest.fixture
def source(write_lines):
    """200 rows of all forms, every tenth one bad."""

    def line(i: int) -> object:
        if i % 10 == 9:
            return b'{"id": "torn' if i % 20 == 9 else {"id": "row 0", "prompt": "a duplicate"}
        if i % 3 == 0:
            return {"id": f"row {i}", "prompt": f"text {i}"}
        messages = [{"role": "user", "content": f"text {i}"}]
        url, body = (
            ("chat/completions", {"messages": messages}) if i % 3 == 1 else ("responses", {"input": messages})
        )
        return {"custom_id": f"row {i}", "method": "POST", "url": f"/v1/{url}", "body": body}

    return write_lines(line(i) for i in range(ROWS))


def start(command: list[str], **environment: str) -> subprocess.Popen[bytes]:
    paths = [str(Path(__file__).parents[2]), str(Path(__file__).parent)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "JAX_PLATFORMS": "cpu", **environment}
    return subprocess.Popen(
        [sys.executable, *command], env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )


def rows_in(out: Path) -> int:
    return out.read_bytes().count(b"\n") if out.exists() else 0


def kill_after(process: subprocess.Popen[bytes], out: Path, rows: int, pause: float) -> bool:
    """Kills the process when it has written `rows` more rows and `pause` seconds have passed."""
    target = rows_in(out) + rows
    while process.poll() is None and rows_in(out) < target:
        time.sleep(0.0005)
    time.sleep(pause)
    process.kill()
    process.communicate()
    return process.returncode == -signal.SIGKILL


def finish(command: list[str], **environment: str) -> None:
    process = start(command, **environment)
    process.communicate()
    assert process.returncode == 0


def answered_text(row: dict) -> str:
    return json.dumps(row.get("text") or row["response"]["body"])


def test_a_scripted_run_killed_at_ten_random_moments_has_each_row_once(source, tmp_path, read_rows):
    out, rng = tmp_path / "out.jsonl", random.Random(9)
    script = str(Path(__file__).with_name("killed_run.py"))
    command = [script, "batch", str(source), "--output", str(out), "--date", "2025-06-28"]
    environment = {"VOCABULARY_FOLDER": str(tmp_path)}
    for attempt in range(10):
        if attempt % 2:
            process = start(command, TEAR=str(rng.randint(1, 16)), **environment)
            process.communicate()
            assert process.returncode == -signal.SIGKILL
            assert not out.read_bytes().endswith(b"\n")
        else:
            assert kill_after(start(command, **environment), out, rng.randint(0, 12), rng.random() * 0.01)
    assert 0 < rows_in(out) < ROWS
    finish(command, **environment)
    rows = read_rows(out)
    assert sorted(rows) == list(range(1, ROWS + 1))
    for number, row in rows.items():
        if number % 10 == 0:
            assert row["error"]["code"] == ("invalid_json" if number % 20 == 10 else "duplicate_id")
        else:
            assert f"You said: text {number - 1}" in answered_text(row)


def test_a_run_of_the_real_engine_killed_at_random_moments_has_each_row_once_and_the_same_answers(
    source, random_checkpoint, tmp_path, read_rows
):
    cache = {
        "JAX_COMPILATION_CACHE_DIR": str(tmp_path / "cache"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }
    options = ["--checkpoint", str(random_checkpoint), "--max-tokens", "24", "--max-length", "512"]
    options += ["--date", "2025-06-28", "--seed", "5", "--slots", "8"]

    def command(out: Path) -> list[str]:
        return ["-m", "gptoss_jax.cli", "batch", str(source), "--output", str(out), *options]

    finish(command(tmp_path / "whole.jsonl"), **cache)
    out, rng = tmp_path / "out.jsonl", random.Random(11)
    for _ in range(10):
        assert kill_after(start(command(out), **cache), out, rng.randint(0, 12), rng.random() * 0.1)
    assert 0 < rows_in(out) < ROWS
    finish(command(out), **cache)
    rows, whole = read_rows(out), read_rows(tmp_path / "whole.jsonl")
    assert sorted(rows) == list(range(1, ROWS + 1))
    for number in rows:
        mine, theirs = rows[number], whole[number]
        for row in (mine, theirs):
            body = (row.get("response") or {}).get("body", {})
            body.pop("created", body.pop("created_at", None))
        assert mine == theirs
