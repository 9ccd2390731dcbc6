"""An evaluation on the embedded model, from the command line to the report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.command_runner import run


def rows_of(out: Path) -> dict[str, dict[str, Any]]:
    return {row["id"]: row for row in map(json.loads, out.read_bytes().splitlines())}


@pytest.mark.slow
def test_a_continued_run_draws_what_it_would_have_drawn(tmp_path) -> None:
    out = tmp_path / "o.jsonl"
    command = (
        "eval",
        "gpqa",
        "--data",
        "sample",
        "--attempts",
        "2",
        "--max-tokens",
        "40",
        "--temperature",
        "2",
    )
    options = ("--output", str(out), "--slots", "4", "--max-length", "512", "--dtype", "float32")
    done = run(*command, *options)
    assert done.code == 0, done.error
    assert "all 6 done" in done.output.decode()
    first = rows_of(out)
    assert len(first) == 6 and all(row["error"] is None for row in first.values())
    assert all(row["usage"]["completion_tokens"] <= 40 for row in first.values())
    assert len({row["reasoning"] + row["text"] for row in first.values()}) > 1
    out.write_bytes(b"".join(line + b"\n" for line in out.read_bytes().splitlines()[:2]))
    assert run(*command, *options).code == 0
    again = rows_of(out)
    assert {name: (row["reasoning"], row["text"]) for name, row in again.items()} == {
        name: (row["reasoning"], row["text"]) for name, row in first.items()
    }
