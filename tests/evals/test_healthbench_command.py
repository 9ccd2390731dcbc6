"""`gptoss-jax eval healthbench` against servers that say what a test wants."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gptoss_jax.cli import main
from gptoss_jax.evals.grader import TRIES
from tests.evals import harness_healthbench as oracle
from tests.evals import healthbench_cases as cases
from tests.evals.chat_server import ChatServer, Reply, serving
from tests.evals.test_healthbench import HARNESS, with_harness

pytest.importorskip("httpx", reason="the package httpx, of the extra eval, is missing")


def answer(body: dict[str, Any]) -> str:
    """The model: says how many messages it was given, and half of an emoji, as an answer that is cut may."""
    return f"You sent {len(body['messages'])} messages. \ud83d"


def grader(body: dict[str, Any]) -> str:
    """A grader whose verdicts depend on the prompt alone."""
    return oracle.reply(body["messages"][-1]["content"])


def command(output: Path, model: str, grades: str, *options: str) -> list[str]:
    where = ["--url", model, "--api", "chat", "--model", "m", "--grader-url", grades]
    return ["eval", "healthbench", "--data", "sample", "--output", str(output), *where, *options]


def rows_of(output: Path) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in output.read_text(encoding="utf-8").splitlines()]
    return sorted(rows, key=lambda row: row["line"])


def sample() -> list[dict[str, Any]]:
    import gptoss_jax.evals.data as data

    folder = Path(data.__file__).parent / "samples" / "healthbench"
    text = (folder / "2025-05-07-06-14-12_oss_eval.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def graded(judge: ChatServer) -> list[dict[str, Any]]:
    """The calls for rubric items. Before them the grader is asked for a sign of life."""
    return [body for body in judge.bodies if body["messages"][-1]["content"].startswith("Your job is")]


ITEMS = sum(len(example["rubrics"]) for example in sample())


def test_answers_are_graded_item_by_item_and_labelled(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JUDGE_KEY", "secret")
    out = tmp_path / "out.jsonl"
    with serving(answer) as model, serving(grader) as judge:
        assert main(command(out, model.url, judge.url, "--grader-key-env", "JUDGE_KEY")) == 0
    printed = capsys.readouterr()
    assert "gpt-4.1-2025-04-14" in printed.err and "not comparable" in printed.err
    assert "graded by gpt-4.1-2025-04-14, not comparable" in printed.out
    for name in ("out.html", "out.report.json"):
        assert "not comparable" in (tmp_path / name).read_text(encoding="utf-8")
    rows = rows_of(out)
    assert [row["id"] for row in rows] == ["sample-emergency/0", "sample-cough/0", "sample-water/0"]
    for row, example in zip(rows, sample(), strict=True):
        met = [item["criteria_met"] for item in row["details"]["rubric_items"]]
        points = [item["points"] for item in example["rubrics"]]
        score = sum(p for p, m in zip(points, met, strict=True) if m) / sum(p for p in points if p > 0)
        assert row["harness"]["score"] == pytest.approx(score)
        assert row["details"]["comparable"] is False
        assert row["error"] is None
        assert row["messages"] == example["prompt"]
    assert len(graded(judge)) == ITEMS
    assert {tuple(sorted(body)) for body in graded(judge)} == {
        ("max_tokens", "messages", "model", "temperature")
    }
    assert set(judge.keys) == {"Bearer secret"}
    assert {body["model"] for body in judge.bodies} == {"gpt-4.1-2025-04-14"}
    assert "secret" not in "".join(path.read_text(encoding="utf-8") for path in tmp_path.iterdir())


def hostile(replies: list[Reply]) -> Callable[[dict[str, Any]], Reply]:
    """A grader that gives each prompt these replies first."""
    asked: Counter[str] = Counter()
    lock = threading.Lock()

    def reply(body: dict[str, Any]) -> Reply:
        prompt = body["messages"][-1]["content"]
        with lock:
            asked[prompt] += 1
            number = asked[prompt]
        return replies[number - 1] if number <= len(replies) else f"```json\n{oracle.reply(prompt)}\n```"

    return reply


def test_a_grader_that_fails_at_first_costs_nothing_but_time(tmp_path: Path) -> None:
    now = {"Retry-After": "0"}
    hard_times: list[Reply] = [
        (429, now, '{"error": {"message": "slow down", "code": "rate_limit_exceeded"}}'),
        (503, now, "<html>overloaded</html>"),
        "",
        '{"criteria_met": "true"}',
        "```\n{}\n```",
        (500, now, ""),
        "I would say yes.",
    ]
    calm, rough = tmp_path / "calm.jsonl", tmp_path / "rough.jsonl"
    with serving(answer) as model:
        with serving(grader) as judge:
            assert main(command(calm, model.url, judge.url)) == 0
        with serving(hostile(hard_times)) as judge:
            assert main(command(rough, model.url, judge.url)) == 0
    assert [row["details"] for row in rows_of(rough)] == [row["details"] for row in rows_of(calm)]


def test_an_item_that_gets_no_verdict_is_an_error_and_retried_alone(tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    stubborn = "[-8] Names a dose"

    def sometimes(body: dict[str, Any]) -> str:
        prompt = body["messages"][-1]["content"]
        return "No." if stubborn in prompt else oracle.reply(prompt)

    with serving(answer) as model, serving(sometimes) as judge:
        main(command(out, model.url, judge.url))
        assert len(graded(judge)) == ITEMS - 1 + TRIES
        good, bad, other = rows_of(out)
        assert bad["harness"] == {"answer": None, "score": None}
        assert bad["error"]["code"] == "not_graded"
        assert bad["error"]["message"].startswith(
            "1 of 3 rubric items have no grade; item 3: none of 8 replies"
        )
        assert good["error"] is None and other["error"] is None
        report = json.loads((tmp_path / "out.report.json").read_text())
        assert report
        judge.reply, before = grader, len(graded(judge))
        assert main(command(out, model.url, judge.url, "--retry-errors")) == 0
        assert len(graded(judge)) == before + 1
        assert len(model.bodies) == 3
    assert all(row["error"] is None and row["harness"]["score"] is not None for row in rows_of(out))


@pytest.mark.parametrize(
    ("status", "reason"), [(401, "Incorrect API key"), (404, "no such model"), (400, "max_tokens")]
)
def test_a_grader_that_refuses_is_found_out_before_anything_is_answered(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], status: int, reason: str
) -> None:
    refusal = (status, {}, json.dumps({"error": {"message": reason}}))
    with serving(answer) as model, serving(lambda body: refusal) as judge:
        assert main(command(tmp_path / "out.jsonl", model.url, judge.url)) == 2
        assert reason in capsys.readouterr().err
        assert model.bodies == []


def test_a_grader_that_refuses_later_ends_the_run_and_the_answers_stay(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.jsonl"
    refusal = (401, {}, '{"error": {"message": "Incorrect API key provided"}}')

    def expired(body: dict[str, Any]) -> Reply:
        return refusal if "Your job is" in body["messages"][-1]["content"] else "yes"

    with serving(answer) as model, serving(expired) as judge:
        assert main(command(out, model.url, judge.url)) != 0
        said = capsys.readouterr().err
        assert "the key is refused" in said and "Incorrect API key provided" in said
        assert "Traceback" not in said
        judge.reply = grader
        assert main(command(out, model.url, judge.url)) == 0
        assert len(model.bodies) == 3
    assert len(rows_of(out)) == 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--grader-url", "http://x", "--grader-checkpoint", "tiny"], "not allowed with"),
        ([], "--grader-url --grader-checkpoint is required"),
        (["--grader-checkpoint", "tiny", "--grader-model", "m"], "--grader-model is for a server"),
        (["--grader-checkpoint", "no-such-folder"], "no-such-folder"),
        (["--grader-url", "ftp://x"], "it must begin with http:// or https://"),
        (["--grader-url", "http://x", "--grader-key-env", "NO_SUCH"], "this environment variable is not set"),
        (["--grader-url", "http://x", "--subset", "easy"], "invalid choice: 'easy'"),
    ],
)
def test_a_grader_that_cannot_be_is_refused_before_anything_is_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], message: str
) -> None:
    with serving(answer) as model:
        start = ["eval", "healthbench", "--data", "sample", "--output", str(tmp_path / "out.jsonl")]
        try:
            code = main([*start, "--url", model.url, "--model", "m", *options])
        except SystemExit as error:
            code = int(error.code or 0)
        assert code == 2
        assert message in capsys.readouterr().err
        assert model.bodies == []
    assert not (tmp_path / "out.jsonl").exists()


@pytest.mark.slow
def test_runs_that_are_killed_ask_for_no_answer_twice_and_for_no_kept_verdict(tmp_path: Path) -> None:
    """Each process is killed while the server holds back a call of the grader."""
    out = tmp_path / "out.jsonl"
    held, let_through = threading.Event(), 0
    lock = threading.Lock()

    def slow(body: dict[str, Any]) -> Reply:
        nonlocal let_through
        if "Your job is" not in body["messages"][-1]["content"]:
            return "yes"
        with lock:
            let_through -= 1
            stop = let_through < 0
        if stop:
            held.set()
            killed.wait(60)
            return None
        return grader(body)

    arguments = [sys.executable, "-m", "gptoss_jax"]
    with serving(answer) as model, serving(slow) as judge:
        for _ in range(3):
            let_through, killed = 3, threading.Event()
            held.clear()
            process = subprocess.Popen(
                [*arguments, *command(out, model.url, judge.url, "--grader-parallel", "2")],
                stderr=subprocess.DEVNULL,
                env={**os.environ, "JAX_PLATFORMS": "cpu"},
            )
            assert held.wait(60)
            process.send_signal(signal.SIGKILL)
            process.wait()
            killed.set()
        let_through = ITEMS
        assert main(command(out, model.url, judge.url, "--grader-parallel", "2")) == 0
        assert len(model.bodies) == 3
        prompts = Counter(body["messages"][-1]["content"] for body in graded(judge))
    assert len(prompts) == ITEMS
    # Beside one call for each item: at most those that were in the air when a process was killed.
    assert ITEMS <= sum(prompts.values()) <= ITEMS + 3 * 2
    assert sorted(row["id"] for row in rows_of(out)) == sorted(f"{e['prompt_id']}/0" for e in sample())


@pytest.mark.slow
def test_a_checkpoint_grades_under_its_schema(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out.jsonl"
    with serving(answer) as model:
        start = ["eval", "healthbench", "--data", "sample", "--subset", "consensus", "--output", str(out)]
        server = ["--url", model.url, "--api", "chat", "--model", "m"]
        assert main([*start, *server, "--grader-checkpoint", "tiny", "--grader-parallel", "8"]) == 0
    rows = rows_of(out)
    assert len(rows) == 3
    for row in rows:
        assert row["error"] is None
        assert row["details"]["comparable"] is False and row["details"]["grader"] == "tiny"
        (item,) = row["details"]["rubric_items"]
        assert isinstance(item["criteria_met"], bool) and isinstance(item["explanation"], str)
    assert "graded by tiny, not comparable" in capsys.readouterr().out


@with_harness
def test_the_running_harness_and_the_command_report_the_same_figures(tmp_path: Path) -> None:
    """The same answers and verdicts, from the data to the report."""
    harness = oracle.load(Path(HARNESS))
    examples = cases.examples(40, seed=11)
    data, out = tmp_path / "data", tmp_path / "out.jsonl"
    data.mkdir()
    lines = [json.dumps(example) + "\n" for example in examples]
    (data / "2025-05-07-06-14-12_oss_eval.jsonl").write_text("".join(lines), encoding="utf-8")

    def plain(body: dict[str, Any]) -> str:
        return answer(body)[:-1]  # at half an emoji the harness fails

    with serving(plain) as model, serving(grader) as judge:
        assert main([*command(out, model.url, judge.url), "--data", str(data)]) == 0
    ours = json.loads((tmp_path / "out.report.json").read_text(encoding="utf-8"))
    theirs = oracle.evaluated(harness, lines, lambda messages: plain({"messages": messages}))
    assert ours["harness"]["score"] == pytest.approx(theirs.score, rel=1e-12)
    tags = {tag["name"]: (tag["score"], tag["rows"]) for tag in ours["tags"]}
    assert tags == {
        name: (pytest.approx(value, rel=1e-12), theirs.metrics[f"{name}:n_samples"])
        for name, value in theirs.metrics.items()
        if ":n_samples" not in name and ":bootstrap_std" not in name and name != "overall_score"
    }
