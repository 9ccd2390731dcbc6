"""A run of an evaluation: each attempt once, whatever happens, with a seed of its own; what it refuses."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from gptoss_jax.commands import evaluate as command
from gptoss_jax.evals.run import answers_path, in_threads
from gptoss_jax.evals.samplers import AskError
from gptoss_jax.evals.types import EvaluationError
from tests.cli.command_runner import run
from tests.evals import scripted_eval

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def no_model(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("load_engine", "_answer_here"):
        monkeypatch.setattr(command, name, None)  # a test that wants one says so


def rows_of(out: Path) -> list[dict[str, Any]]:
    """The rows by their line; one that is there twice fails."""
    rows = sorted(map(json.loads, out.read_bytes().splitlines()), key=lambda row: row["line"])
    assert [row["line"] for row in rows] == sorted({row["line"] for row in rows})
    return rows


def evaluate(out: Path, *options: str, evaluation: str = "aime", data: str = "sample") -> Any:
    return run("eval", evaluation, "--data", data, "--output", str(out), *options)


def test_a_run_writes_rows_figures_and_a_page(tmp_path) -> None:
    scripted_eval.use_scripted_model()
    done = evaluate(tmp_path / "o.jsonl", "--attempts", "2", "--effort", "high")
    assert done.code == 0, done.error
    assert "3 problems, 2 attempts at each: all 6 done" in done.output.decode()
    assert done.error.count("sha256") == 2
    assert {path.name for path in tmp_path.iterdir()} == {
        *("o.jsonl", "o.jsonl.run.json", "o.report.json", "o.html")
    }
    settings = json.loads((tmp_path / "o.jsonl.run.json").read_bytes())
    names = ("evaluation", "effort", "attempts", "problems", "temperature", "max_tokens", "harness", "model")
    assert [settings[name] for name in names] == ["aime", "high", 2, 3, 1.0, None, "7b58334", "tiny"]
    rows = rows_of(tmp_path / "o.jsonl")
    assert [row["id"] for row in rows[:4]] == [
        *("aime-2025-I-1/0", "aime-2025-I-2/0", "aime-2025-II-1/0", "aime-2025-I-1/1")
    ]
    for row in rows:
        seed = str(row["seed"])
        assert row["text"] == f"\\boxed{{{seed}}}" and row["reasoning"] == "Hmm."
        assert row["harness"] == {"answer": seed, "score": 0.0} and row["error"] is None
    assert len({row["seed"] for row in rows}) == 6


def test_gpqa_rows_tell_which_choice_each_letter_is(tmp_path) -> None:
    scripted_eval.use_scripted_model(ask=lambda body: scripted_eval.Answer("**B**", "", "stop", {}))
    assert evaluate(tmp_path / "o.jsonl", "--attempts", "4", evaluation="gpqa").code == 0
    rows = rows_of(tmp_path / "o.jsonl")
    for row in rows:
        assert row["expected"] == "ABCD"[row["details"]["permutation"].index(0)]
        assert row["harness"]["score"] == row["strict"]["score"] == float(row["expected"] == "B")
    assert len({row["messages"][0]["content"] for row in rows if row["problem"] == "sample-1"}) > 1


def test_a_seed_is_made_of_names_and_not_of_the_order(tmp_path) -> None:
    scripted_eval.use_scripted_model()
    for name, options in {"all": ("--attempts", "2"), "some": ("--attempts", "1", "--examples", "2")}.items():
        assert evaluate(tmp_path / f"{name}.jsonl", *options).code == 0
    seeds = [
        {row["id"]: row["seed"] for row in rows_of(tmp_path / f"{name}.jsonl")} for name in ("all", "some")
    ]
    assert len(seeds[1]) == 2 and seeds[1].items() <= seeds[0].items()
    assert evaluate(tmp_path / "other.jsonl", "--attempts", "2", "--seed", "1").code == 0
    assert not {row["seed"] for row in rows_of(tmp_path / "other.jsonl")} & set(seeds[0].values())


def test_a_finished_run_needs_no_model(tmp_path) -> None:
    scripted_eval.use_scripted_model()
    first = evaluate(tmp_path / "o.jsonl", "--attempts", "1")
    command.load_engine = None
    assert evaluate(tmp_path / "o.jsonl", "--attempts", "1").text == first.text


def test_a_failed_attempt_has_an_error_and_is_tried_again_only_when_told(tmp_path) -> None:
    def fails(body: dict[str, Any]) -> Any:
        if "rolls" in body["messages"][0]["content"]:
            raise AskError("http_503", "too many\nrequests")
        return scripted_eval.answer(body)

    out = tmp_path / "o.jsonl"
    scripted_eval.use_scripted_model(ask=fails)
    assert evaluate(out, "--attempts", "1").code == 0
    failed, *answered = rows_of(out)
    assert failed["error"] == {"code": "http_503", "message": "too many requests"}
    assert failed["harness"] == {"answer": None, "score": None} and failed["finish_reason"] is None
    asked = tmp_path / "asked"
    scripted_eval.use_scripted_model(asked)
    assert evaluate(out, "--attempts", "1").code == 0 and not asked.exists()
    assert evaluate(out, "--attempts", "1", "--retry-errors").code == 0
    assert asked.read_text().split() == [str(failed["seed"])]
    again, *others = rows_of(out)
    assert again["error"] is None and others == answered


def test_a_run_that_cannot_go_on_keeps_its_rows_and_says_so_in_one_line(tmp_path) -> None:
    def gone(body: dict[str, Any]) -> Any:
        if "triangle" in body["messages"][0]["content"]:
            raise EvaluationError("http://x is not reached")
        return scripted_eval.answer(body)

    scripted_eval.use_scripted_model(ask=gone)
    done = evaluate(tmp_path / "o.jsonl", "--attempts", "1", "--slots", "1")
    assert done.code == 2
    last = done.error.splitlines()[-1]
    assert last == "gptoss-jax: http://x is not reached; the same command continues from here"
    scripted_eval.use_scripted_model()
    assert evaluate(tmp_path / "o.jsonl", "--attempts", "1").code == 0
    assert [row["error"] for row in rows_of(tmp_path / "o.jsonl")] == [None] * 3


def test_an_interrupt_says_how_to_go_on(tmp_path, monkeypatch) -> None:
    scripted_eval.use_scripted_model()

    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("gptoss_jax.evals.run.Run.answer", interrupted)
    done = evaluate(tmp_path / "o.jsonl")
    assert done.code == 130
    assert done.error.splitlines()[-1] == "gptoss-jax: interrupted; the same command continues from here"


def kill_and_continue(folder: Path, kills: int, attempts: int) -> None:
    out = folder / "o.jsonl"
    arguments = ["--data", "sample", "--attempts", str(attempts), "--slots", "2", "--output", str(out)]
    done = subprocess.run(
        [sys.executable, scripted_eval.__file__, str(out), str(kills), "3", "--", "aime", *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    *killed, last = json.loads(done.stdout)
    assert [end["code"] for end in killed] == [-signal.SIGKILL] * kills, done.stderr
    assert killed[0]["torn"] and last["code"] == 0, done.stderr
    rows = rows_of(out)
    assert [row["line"] for row in rows] == list(range(1, 3 * attempts + 1))
    assert (
        len({(row["problem"], row["attempt"]) for row in rows})
        == len({row["seed"] for row in rows})
        == 3 * attempts
    )
    assert all(row["text"] == f"\\boxed{{{row['seed']}}}" for row in rows)


def test_a_run_that_is_killed_in_a_write_has_each_attempt_once(tmp_path) -> None:
    kill_and_continue(tmp_path, 1, 20)


@pytest.mark.slow
def test_a_run_that_is_killed_ten_times_has_each_attempt_once(tmp_path) -> None:
    kill_and_continue(tmp_path, 10, 300)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--data", "missing"), "there is no folder missing"),
        (("--data", "."), "has no aime2025-I.jsonl: it comes from the data set opencompass/AIME2025"),
        (("--examples", "4"), "--examples is 4: there are 3 problems"),
        (("--api", "chat"), "--api needs a server: give --url too"),
        (("--no-seed",), "--no-seed needs a server: give --url too"),
        (("--url", "http://x/v1", "--checkpoint", "tiny2"), "--checkpoint is for a model in this process"),
        (("--url", "http://x/v1", "--api-key-env", "NOT_SET"), "--api-key-env is 'NOT_SET'"),
        (("--checkpoint", "missing"), "missing"),
        (("--output", "nowhere/o.jsonl"), "there is no folder"),
    ],
)
def test_wrong_input_is_one_line(options, words, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    given = {"--data": "sample", "--output": "o.jsonl"}
    for name, value in given.items():
        if name not in options:
            options += (name, value)
    done = run("eval", "aime", *options)
    assert done.code == 2 and words in done.error.splitlines()[-1]
    assert "Traceback" not in done.error


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("aime2025-I.jsonl", b'{"answer": 1}\n', 'problem 1 of aime2025-I.jsonl has no text "question"'),
        ("aime2025-I.jsonl", b"{\n", "line 1 of aime2025-I.jsonl is no JSON"),
        ("aime2025-I.jsonl", b"[1]\n", "line 1 of aime2025-I.jsonl is no JSON object"),
        ("aime2025-I.jsonl", b'{"question": "?", "answer": "x"}\n', "its answer must be a whole number"),
        ("aime2025-I.jsonl", b'{"question": "?", "answer": null}\n', "its answer must be a whole number"),
        ("aime2025-I.jsonl", b"\xff", "aime2025-I.jsonl is not UTF-8"),
        ("aime2025-I.jsonl", b"\n", "aime2025-I.jsonl has no problems"),
        ("gpqa_diamond.csv", b"", "gpqa_diamond.csv has no rows"),
        ("gpqa_diamond.csv", b"Question,Answer\n1,2\n", 'has no column "Correct Answer"'),
        ("gpqa_diamond.csv", b"a,b\n1,2,3\n", "row 1 of gpqa_diamond.csv has 3 cells for 2 columns"),
        ("gpqa_diamond.csv", b'a,b\n"1,2\n', "gpqa_diamond.csv is no CSV"),
    ],
)
def test_data_that_is_not_as_published_is_one_line(name, content, words, tmp_path) -> None:
    (tmp_path / "aime2025-II.jsonl").write_text("")
    (tmp_path / name).write_bytes(content)
    evaluation = "gpqa" if name.endswith("csv") else "aime"
    done = evaluate(tmp_path / "o.jsonl", evaluation=evaluation, data=str(tmp_path))
    assert done.code == 2 and words in done.error.splitlines()[-1]
    assert not (tmp_path / "o.jsonl").exists()


def test_other_data_or_another_effort_does_not_continue_a_run(tmp_path) -> None:
    scripted_eval.use_scripted_model()
    assert evaluate(tmp_path / "o.jsonl", "--attempts", "1").code == 0
    done = evaluate(tmp_path / "o.jsonl", "--attempts", "1", "--effort", "high")
    assert done.code == 2 and '"effort" "medium", this run has "effort" "high"' in done.error
    for part in ("I", "II"):
        (tmp_path / f"aime2025-{part}.jsonl").write_text('{"question": "1 + 1?", "answer": 2}\n')
    done = evaluate(tmp_path / "o.jsonl", "--attempts", "1", data=str(tmp_path))
    assert done.code == 2 and "was made with" in done.error and "unknown" in done.error


def test_threads_give_every_result_and_the_first_error() -> None:
    assert sorted(in_threads(lambda number: -number, range(50), 7)) == [
        (number, -number) for number in range(50)
    ]
    waiting = threading.Event()

    def fails(number: int) -> None:
        if number == 3:
            raise ValueError("three")
        if number > 3:
            waiting.wait()

    with pytest.raises(ValueError, match="three"):
        list(in_threads(fails, range(100), 4))
    waiting.set()


def test_answers_of_a_graded_evaluation_have_a_file_of_their_own() -> None:
    assert answers_path(Path("a/o.jsonl")) == Path("a/o.answers.jsonl")
    assert answers_path(Path("o")) == Path("o.answers.jsonl")
