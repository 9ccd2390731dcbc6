"""`gptoss-jax bench serve`: its figures follow from what was measured, and both of its ways run."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest

from checkpoints import open_checkpoint
from gptoss_jax import cli
from gptoss_jax.bench.comparison import BenchError
from gptoss_jax.bench.engine.report import Part
from gptoss_jax.bench.engine.target import checkpoint_target
from gptoss_jax.bench.serve import run
from gptoss_jax.bench.serve.client import Reply, reply_of, tokens_of, told_error
from gptoss_jax.bench.serve.sides import Client, Step, steady_of
from gptoss_jax.engine import Completion
from gptoss_jax.engine.request import Update
from gptoss_jax.vocabulary import load_encoding_for
from tests import tiny_engine
from tests.llm.fake_engine import FakeEngine, Script
from tests.serve.served import serving

ENCODING = load_encoding_for(open_checkpoint("tiny"))
ANSWER = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>5.<|return|>"
CHAT = [
    'data: {"choices": [{"delta": {"role": "assistant"}}]}\n\n',
    'data: {"choices": [{"delta": {"reasoning": "Two "}}]}\n\ndata: {"choices": [{"delta": {"cont',
    'ent": "4"}}]}\n\ndata: {"choices": [], "usage": {"completion_tokens": 7}}\n\ndata: [DO',
    "NE]\n\n",
]
RESPONSES = [
    'event: response.created\ndata: {"type": "response.created", "response": {"usage": null}}\n\n',
    ': a comment\n\ndata: {"type": "response.reasoning_text.delta", "delta": "Two "}\n\n',
    'data: {"type": "response.output_text.delta", "delta": "4"}\n\n',
    'data: {"type": "response.completed", "response": {"usage": {"output_tokens": 7}}}\n\n',
]


@pytest.mark.parametrize("stream", [CHAT, RESPONSES])
def test_a_reply_is_what_the_events_of_either_api_add_up_to(stream: list[str]) -> None:
    parts = [(10.0 + second, part.encode()) for second, part in enumerate(stream)]
    assert reply_of(parts, None, 9.5) == Reply(first=1.5, end=3.5, tokens=7, text="Two 4")


def test_a_stream_that_fails_or_says_nothing_is_an_error() -> None:
    broken = b'data: {"error": {"message": "the engine stopped"}}\n\n'
    assert "the engine stopped" in str(reply_of([(1.0, broken)], None, 0.0).error)
    assert reply_of([(1.0, b"data: [DONE]\n\n")], None, 0.0).error == "the stream has no text"
    assert told_error({"type": "response.failed"}) is not None
    assert tokens_of({"choices": []}) is None


def turn(seconds: float, cpu: float, ended: bool, **tokens: int) -> Step:
    whole = Completion(id="x", tokens=[], finish_reason="length", prompt_tokens=1) if ended else None
    return Step(seconds, cpu, [Update(id, 0, [1] * count, completion=whole) for id, count in tokens.items()])


def test_a_step_is_measured_where_all_sequences_decode() -> None:
    steps = [
        turn(1.0, 0.5, False, a=1),
        turn(2.0, 1.0, False, a=16, b=1),
        turn(3.0, 1.3, False, a=16, b=16),
        turn(6.0, 2.0, True, a=4, b=4),
        turn(9.0, 9.0, True, b=16),
    ]
    steady = steady_of(steps, 2)  # 40 tokens of two sequences: 20 steps in 4 seconds, 1 of processor time
    assert steady.step_seconds == pytest.approx(4 / 20)
    assert steady.step_cpu == pytest.approx(1 / 20)
    with pytest.raises(BenchError, match="3 streams: the first ended before the last had begun"):
        steady_of(steps, 3)


def test_nine_tenths_have_their_first_text_by_the_ninetieth_percentile() -> None:
    assert run._ninetieth([float(value) for value in range(10, 0, -1)]) == 9.0
    assert run._ninetieth([3.0]) == 3.0
    assert run._ninetieth([float(value) for value in range(1, 65)]) == 58.0


@pytest.mark.slow
def test_a_server_and_its_engine_are_measured_in_turns_and_draw_the_same() -> None:
    target = checkpoint_target("tiny")
    settings = run.Settings(streams=(2,), rounds=1, generated=tiny_engine.OPTIONS["max_length"] - 256)
    cores = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None
    (part,) = run.measure_beside(
        target, settings, tiny_engine.OPTIONS["slots"], run.Cores(None, cores and [min(cores)])
    )
    assert isinstance(part, Part), part
    figures = {figure.what: figure for figure in part.figures}
    assert figures["engine: tokens/s"].median > 0
    for api in ("chat", "responses"):
        assert figures[f"{api}: first text, median"].median > 0
        of_engine = figures[f"{api}: tokens/s"].median / figures["engine: tokens/s"].median
        assert figures[f"{api}: tokens/s, of the engine's"].median == pytest.approx(of_engine)
        assert figures[f"{api}: processor time a token"].median > 0


@pytest.fixture
def url():
    engine = FakeEngine(lambda request, sample: Script(ENCODING.encode(ANSWER, allowed_special="all")))
    with serving(engine, ENCODING) as address:
        yield f"{address}/v1"


def test_any_server_is_measured_by_its_address(url: str, capsys) -> None:
    command = ["bench", "serve", "--url", url, "--streams", "2", "--rounds", "2", "--json"]
    assert cli.main(command) == 0
    said = json.loads(capsys.readouterr().out)
    assert [part["name"] for part in said["parts"]] == ["serve 2, chat", "serve 2, responses"]
    tokens = len(ENCODING.encode(ANSWER, allowed_special="all"))
    for part in said["parts"]:
        figures = {figure["what"]: figure["rounds"] for figure in part["figures"]}
        assert figures["tokens of an answer"] == [tokens, tokens]


def test_what_a_server_refuses_is_said_in_one_line(url: str, capsys) -> None:
    fields: dict[str, Any] = {"temperature": 7}
    command = ["bench", "serve", "--url", url, "--streams", "1", "--apis", "chat"]
    assert cli.main([*command, "--fields", json.dumps(fields)]) == 1
    assert "left out: 1 of 1 streams failed, the first: status 400" in capsys.readouterr().out


def test_a_server_that_is_not_there_is_one_line(capsys) -> None:
    assert cli.main(["bench", "serve", "--url", "http://127.0.0.1:9/v1"]) == 1
    assert "http://127.0.0.1:9/v1/models does not say which models there are" in capsys.readouterr().err
    assert (
        cli.main(["bench", "serve", "--url", "http://127.0.0.1:9/v1", "--model", "m", "--streams", "2"]) == 1
    )
    assert "refused" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        cli.main(["bench", "serve", "--fields", "[]"])
    assert "must be a JSON object, not '[]'" in capsys.readouterr().err


def test_the_client_says_when_its_process_fails(monkeypatch) -> None:
    monkeypatch.setattr("sys.executable", "/bin/false")
    with pytest.raises(BenchError, match="the client's process failed"):
        Client().run("http://127.0.0.1:9/v1", "chat", [])
