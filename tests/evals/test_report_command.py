"""`gptoss-jax eval report`: the figures of a run, from its file alone."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cli.command_runner import run
from tests.evals import made_runs


def test_a_run_at_work_can_be_reported_and_reported_again(tmp_path: Path) -> None:
    settings = {"evaluation": "aime", "model": "tiny", "effort": "low", "problems": 2, "attempts": 2}
    rows = [made_runs.row("p", 0), made_runs.row("q", 0, 0.0), made_runs.row("p", 1), made_runs.row("q", 1)]
    path = made_runs.write(tmp_path / "out.jsonl", rows[:3], **settings)
    with path.open("ab") as file:
        file.write(b'{"problem": "q", "att')  # the row that is being written
    done = run("eval", "report", str(path))
    assert (done.code, done.error) == (0, "")
    assert "3 of 4 done" in done.text and "1 attempt missing" in done.text
    assert str(tmp_path / "out.html") in done.text
    assert json.loads((tmp_path / "out.report.json").read_text())["missing"] == 1
    made_runs.write(path, rows, **settings)
    done = run("eval", "report", str(path))
    assert "all 4 done" in done.text and "missing" not in done.text
    assert json.loads((tmp_path / "out.report.json").read_text())["harness"]["score"] == 0.75


def test_a_file_that_is_no_run_is_refused_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    path.write_text('{"custom_id": "1"}\n')
    done = run("eval", "report", str(path))
    assert done.code == 2
    assert done.error.startswith(f"gptoss-jax: line 1 of {path} is no row of an evaluation")
    assert done.error.count("\n") == 1
    assert not (tmp_path / "out.html").exists()
