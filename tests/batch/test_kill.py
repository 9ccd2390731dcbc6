"""kill -9 at any moment: in the end every row is there, each once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROWS = 200


def line(i: int) -> object:
    """Rows of all forms, every tenth one bad."""
    if i % 10 == 9:
        return b'{"id": "torn' if i % 20 == 9 else {"id": "row 0", "prompt": "a duplicate"}
    if i % 3 == 0:
        return {"id": f"row {i}", "prompt": f"text {i}", "n": 1 + i % 4}
    messages = [{"role": "user", "content": f"text {i}"}]
    if i % 3 == 1:
        url, body = "/v1/chat/completions", {"messages": messages}
    else:
        url, body = "/v1/responses", {"input": messages}
    return {"custom_id": f"row {i}", "method": "POST", "url": url, "body": body}


@pytest.mark.slow
@pytest.mark.parametrize("kills", [4, 10])
def test_a_run_killed_at_random_moments_has_each_row_once(write_lines, tmp_path, read_rows, kills):
    source, out, folder = write_lines(map(line, range(ROWS))), tmp_path / "out.jsonl", tmp_path / "vocabulary"
    folder.mkdir()
    script = [
        sys.executable,
        str(Path(__file__).with_name("killed_runs.py")),
        str(folder),
        str(out),
        "9",
        str(kills),
        "--",
    ]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        [*script, str(source), "--output", str(out), "--date", "2025-06-28"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    *killed, last = json.loads(done.stdout)
    assert [end["code"] for end in killed] == [-signal.SIGKILL] * kills, done.stderr
    # A kill from outside may fall inside a write too; the runs that die inside one always tear a row.
    assert all(end["torn"] for end in killed[1::2])
    assert all(end["rows"] < ROWS for end in killed)
    assert len({end["rows"] for end in killed}) >= kills // 2
    assert last["code"] == 0, done.stderr
    rows = read_rows(out)
    assert sorted(rows) == list(range(1, ROWS + 1))
    for number, row in rows.items():
        if number % 10 == 0:
            assert row["error"]["code"] == ("invalid_json" if number % 20 == 10 else "duplicate_id")
        else:
            said = row if "id" in row and "custom_id" not in row else row["response"]["body"]
            assert f"You said: text {number - 1}" in json.dumps(said)
            if line(number - 1).get("n", 1) > 1:
                assert len(row["samples"]) == line(number - 1)["n"]
