"""What ends rows or the run early: each row is an error row, or is left to the next run, and none is lost."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import types
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gptoss_jax import cli
from gptoss_jax.batch import Limits, run_batch
from gptoss_jax.batch.limits import Watch
from gptoss_jax.batch.opening import open_batch
from gptoss_jax.commands import batch
from gptoss_jax.commands.batch_limits import _moment
from gptoss_jax.engine import Completion, Request
from tests.batch.scripted import ScriptedEngine

ROOT = Path(__file__).parents[2]


class CancellingEngine(ScriptedEngine):
    """Computes rows that say "slow" until they are cancelled. Each step takes a moment."""

    running: tuple[str, ...] = ()

    def cancel(self, id: str) -> None:
        self.cancelled.add(id)

    def has_begun(self, id: str) -> bool:
        return id in self.running

    def run(self, requests: Iterable[Request]) -> Iterator[Completion]:
        self.cancelled: set[str] = set()
        waiting, running = iter(requests), []
        while True:
            while len(running) < self.slots and (request := next(waiting, None)) is not None:
                self.requests.append(request)
                running.append(request)
            self.running = tuple(request.id for request in running)
            if not running:
                return
            time.sleep(self.delay)
            for request in list(running):
                prompt = self.encoding.decode(request.prompt)
                if "<|message|>slow<|end|>" not in prompt:
                    yield self._complete(request, 0)
                elif request.id in self.cancelled:
                    yield Completion(request.id, [], "cancelled", len(request.prompt))
                else:
                    continue
                running.remove(request)


@pytest.fixture
def slow_engine(encoding) -> CancellingEngine:
    return CancellingEngine(encoding, delay=0.005)


def run(source: Path, out: Path, engine: ScriptedEngine, limits: Limits, on_row: Any = None) -> Any:
    with open_batch(source, out, date="2025-06-28") as opened:
        return opened.answer(engine, engine.encoding, limits=limits, on_row=on_row)


def test_a_row_that_takes_too_long_is_an_error_row_and_the_others_go_on(
    slow_engine, write_lines, tmp_path, read_rows
):
    source = write_lines([{"prompt": text} for text in ("a", "slow", "b", "slow", "c")])
    report = run(source, tmp_path / "out.jsonl", slow_engine, Limits(row_seconds=0.3))
    rows = read_rows(tmp_path / "out.jsonl")
    assert [rows[line]["error"] is None for line in range(1, 6)] == [True, False, True, False, True]
    assert rows[2]["error"]["code"] == "row_timeout"
    assert "line 2: was computed for more than 0.3 seconds" in rows[2]["error"]["message"]
    assert (report.answered, report.errors, report.stopped, report.exit_code()) == (3, 2, "", 0)


def test_the_time_of_a_row_begins_when_it_is_computed_and_not_while_it_waits(monkeypatch):
    begun, cancelled, now = set(), [], [100.0]
    engine = types.SimpleNamespace(cancel=cancelled.append, has_begun=begun.__contains__)
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    watch = Watch(Limits(row_seconds=5), engine)
    watch.begin("a")
    for step in (0, 50, 0, 4.9, 0.2):
        now[0] += step
        watch._look()
        if step == 50:
            assert cancelled == []
            begun.add("a")
    assert cancelled == ["a"] and watch.late == {"a"}


@pytest.mark.parametrize("how", ["deadline", "drain"])
def test_rows_that_are_not_finished_at_the_end_are_left_to_the_next_run(
    slow_engine, encoding, write_lines, tmp_path, read_rows, how
):
    texts = ["a", "b", "slow", "c", "slow", *map(str, range(30))]
    source, out = (
        write_lines([{"id": f"row {n}", "prompt": text} for n, text in enumerate(texts)]),
        tmp_path / "o",
    )
    limits = Limits()

    def on_row(answered: bool) -> None:
        if out.read_bytes().count(b"\n") < 3:
            return
        if how == "drain":
            limits.drain("by a test", 0.2)
        else:
            limits.deadline = time.time()

    report = run(source, out, slow_engine, limits, on_row)
    there = read_rows(out)
    assert 0 < len(there) == report.answered < len(texts)
    assert all(row["error"] is None for row in there.values())
    assert report.stopped == ("at the deadline" if how == "deadline" else "by a test")
    assert (report.unanswered, report.exit_code()) == (len(texts) - len(there), 75)
    assert f"{report.unanswered} left" in str(report)
    run_batch(source, out, engine=ScriptedEngine(encoding), encoding=encoding, date="2025-06-28")
    assert sorted(read_rows(out)) == list(range(1, len(texts) + 1))
    assert {line: row for line, row in read_rows(out).items() if line in there} == there


def test_a_stop_that_comes_when_everything_is_done_changes_nothing(slow_engine, write_lines, tmp_path):
    limits = Limits()
    source = write_lines([{"prompt": "a"}])
    report = run(source, tmp_path / "o", slow_engine, limits, lambda answered: limits.drain("too late", 0.0))
    assert (report.answered, report.stopped, report.unanswered, report.exit_code()) == (1, "", 0, 0)


@pytest.mark.parametrize(
    ("lines", "most", "errors", "left"),
    [
        ([b"{"] * 300, 5, 100, 200),
        ([b"{"] * 300, 150, 151, 149),
        ([b"{"] * 90, 5, 90, 0),
        ([{"prompt": "a"}] + [b"{"] * 300, 5, 300, 0),
        ([b"{"] * 300, None, 300, 0),
    ],
)
def test_a_run_in_which_everything_fails_ends_early(
    slow_engine, write_lines, tmp_path, read_rows, lines, most, errors, left
):
    out = tmp_path / "out.jsonl"
    report = run(write_lines(lines), out, slow_engine, Limits(max_errors=most))
    assert (report.errors, report.unanswered, len(read_rows(out))) == (errors, left, len(lines) - left)
    assert report.exit_code(most) == 1 or most is None
    assert bool(left) == ("rows all failed" in report.stopped)


def test_an_engine_that_fails_on_every_row_ends_the_run_early(encoding, write_lines, tmp_path):
    class Broken(CancellingEngine):
        def _complete(self, request: Request, sample: int) -> Completion:
            return Completion(request.id, [], "cancelled", 1, error="out of order")

    source = write_lines([{"prompt": "a"}] * 1000)
    report = run(source, tmp_path / "o", Broken(encoding), Limits(max_errors=3))
    assert 100 <= report.errors < 200
    assert report.exit_code(3) == 1


def test_sigterm_ends_a_run_and_the_same_command_continues_it(
    encoding, write_lines, tmp_path, read_rows, capsys, monkeypatch
):
    class Terminated(CancellingEngine):
        def run(self, requests: Iterable[Request]) -> Iterator[Completion]:
            for number, completion in enumerate(super().run(requests)):
                if number == 3 and len(made) == 1:
                    signal.raise_signal(signal.SIGTERM)
                yield completion

    made: list[Terminated] = []

    def load(options: Any, slots: Any, announce: bool = False) -> Any:
        made.append(Terminated(encoding, delay=0.002))
        return made[-1], encoding, types.SimpleNamespace(path=tmp_path)

    monkeypatch.setattr(batch, "load_engine", load)
    handler = signal.getsignal(signal.SIGTERM)
    count, out = 400, tmp_path / "out.jsonl"
    command = ["batch", str(write_lines([{"prompt": "a"}] * count)), "--output", str(out)]
    assert cli.main(command) == 75
    error = capsys.readouterr().err
    assert "SIGTERM: rows that are computed have 20 seconds" in error
    there = len(read_rows(out))
    assert f"stopped by SIGTERM, {count - there} of {count} rows left; the same command continues" in error
    assert 0 < there < count
    assert signal.getsignal(signal.SIGTERM) == handler
    assert cli.main(command) == 0
    assert len(read_rows(out)) == count


STUCK = """
import sys, time
from gptoss_jax.commands import batch_limits
from tests.batch import scripted_command
from tests.batch.scripted import ScriptedEngine

batch_limits.LEAVE_SECONDS = 0.3
run = ScriptedEngine.run

def stuck(self, requests):
    completions = run(self, requests)
    yield next(completions)
    print("stuck", flush=True)
    while True:
        time.sleep(60)  # which a signal does not end

ScriptedEngine.run = stuck
from pathlib import Path
scripted_command.use_scripted_engine(Path(sys.argv[1]))
sys.exit(scripted_command.cli.main(sys.argv[2:]))
"""


@pytest.mark.slow
def test_sigterm_ends_a_process_that_is_stuck_in_a_step(write_lines, tmp_path, read_rows):
    folder, out = tmp_path / "vocabulary", tmp_path / "out.jsonl"
    folder.mkdir()
    source = write_lines([{"prompt": "a"}, {"prompt": "b"}])
    process = subprocess.Popen(
        [sys.executable, "-c", STUCK, str(folder), "batch", str(source), "--output", str(out)],
        env={**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None and process.stdout.readline() == "stuck\n"
    process.terminate()
    _, error = process.communicate()
    assert process.returncode == 75
    assert error.splitlines()[-1] == (
        "gptoss-jax: stopped by SIGTERM in the middle of a step; the same command continues"
    )
    assert len(read_rows(out)) == 1


@pytest.mark.parametrize(("text", "seconds"), [("90s", 90), ("5h30m", 19_800), ("0.5m", 30), ("2d", 172_800)])
def test_a_deadline_is_a_time_from_now(text, seconds, monkeypatch):
    monkeypatch.setattr(time, "time", lambda: 1000.0)
    assert _moment(text) == 1000.0 + seconds


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("2020-01-01T00:00", "--deadline has passed"),
        ("0s", "--deadline has passed"),
        ("tomorrow", "must be a time such as 90s"),
        ("2026-05-01", "must be a time such as 90s"),
        ("90", "must be a time such as 90s"),
        ("", "must be a time such as 90s"),
    ],
)
def test_a_deadline_that_is_none_is_one_line(text, words, write_lines, tmp_path, capsys):
    command = [
        "batch",
        str(write_lines([{"prompt": "a"}])),
        "--output",
        str(tmp_path / "o"),
        "--deadline",
        text,
    ]
    try:
        assert cli.main(command) == 2
    except SystemExit as left:
        assert left.code == 2
    assert words in capsys.readouterr().err.splitlines()[-1]


def test_the_report_s_json_says_that_the_run_was_stopped(slow_engine, write_lines, tmp_path):
    limits = Limits(deadline=time.time() - 1)
    report = run(write_lines([{"prompt": "a"}] * 3), tmp_path / "o", slow_engine, limits)
    written = json.loads(json.dumps(report.as_json()))
    assert (written["stopped"], written["unanswered"]) == ("at the deadline", 3)
