"""The examples on the trained tiny model: right answers, whatever stands beside a row, killed or not."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gptoss_jax.batch import run_batch
from gptoss_jax.engine import SamplingParams
from gptoss_jax.llm.loading import load_engine
from tests import tiny_engine

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples" / "requests.jsonl"
SLOTS, MAX_LENGTH = tiny_engine.OPTIONS["slots"], tiny_engine.OPTIONS["max_length"]
MAX_TOKENS, DATE = 200, "2025-06-28"

Row = dict[str, Any]
Answers = dict[str, Any]

EXPECTED: Answers = {
    "sum-plain": "214 + 387 = 601.",
    "sum-low": "56 + 78 = 134.",
    "sum-chat": "905 - 467 = 438.",
    "sum-chat-high": "99 + 1 = 100.",
    "sum-responses": "731 - 288 = 443.",
    "sum-responses-high": "640 + 359 = 999.",
    "sum-story": "12 + 30 = 42.",
    "sum-negative": "12 - 45 = -33.",
    "sum-instructed": "275 + 75 = 350.",
    "sum-after-sum": "11 + 20 = 31.",
    "sum-with-tool": "33 + 44 = 77.",
    "call-weather": ("get_weather", {"city": "Lisbon"}),
    "call-time": ("check_time", {"city": "New York"}),
    "call-event": ("add_event", {"title": "big party", "day": "Friday"}),
    "call-money": ("convert_money", {"amount": 250, "from": "USD", "to": "EUR"}),
    "call-translation": ("translate_text", {"text": "good morning", "language": "Italian"}),
    "call-location": ("get_location", {}),
    "call-light": ("switch_light", {"room": "kitchen", "state": "off"}),
    "call-product": ("multiply_numbers", {"a": 12, "b": 34}),
    "result-weather": "It is 21 degrees and sunny in Lisbon.",
    "result-distance": "It is 764 km from Rome to Vienna.",
    "result-order": "The order is ready.",
    "result-user": "The name is Nina.",
    "talk-hello": "Hello! How can I help you?",
    "talk-thanks": "You are welcome!",
}
"""What a reader of the request would call right: the answer, or the function called and its arguments."""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Any]:
    """Runs lines on one engine and gives what was said by id, or what `read` makes of the output."""
    engine, encoding, _ = load_engine("tiny", dtype=tiny_engine.DTYPE, **tiny_engine.OPTIONS)
    folder = tmp_path_factory.mktemp("runs")

    def run(lines: list[str], temperature: float = 0.0, read: Callable[..., Any] = by_id) -> Any:
        (folder / "in.jsonl").write_text("".join(lines), encoding="utf-8")
        run_batch(
            folder / "in.jsonl",
            folder / "out.jsonl",
            engine=engine,
            encoding=encoding,
            sampling=SamplingParams(temperature=temperature, max_tokens=MAX_TOKENS),
            date=DATE,
            overwrite=True,
        )
        return read(folder / "out.jsonl")

    return run


@pytest.fixture(scope="module")
def examples() -> list[str]:
    return EXAMPLES.read_text(encoding="utf-8").splitlines(keepends=True)


@pytest.fixture(scope="module")
def answered(run, examples) -> dict[str, Row]:
    """The greedy answers to all examples, run together in file order."""
    return run(examples)


def by_id(path: Path) -> dict[str, Row]:
    rows = [json.loads(line) for line in path.read_bytes().splitlines()]
    found = {row.get("custom_id") or row["id"]: what_was_said(row) for row in rows}
    assert len(found) == len(rows), "a row was answered twice"
    return found


def what_was_said(row: Row) -> Row:
    """A row's text, reasoning, calls and token counts, whatever its form.

    Without the count of cached tokens: it alone depends on what else runs, and on what ran before.
    """
    assert row["error"] is None, row
    if "response" not in row:
        return {
            "text": row["text"],
            "reasoning": row["reasoning"],
            "usage": counts(row["usage"]),
            "calls": calls(row["tool_calls"]),
        }
    body = row["response"]["body"]
    if body["object"] == "chat.completion":
        message = body["choices"][0]["message"]
        text, reasoning = message["content"] or "", message.get("reasoning", "")
        return {
            "text": text,
            "reasoning": reasoning,
            "usage": counts(body["usage"]),
            "calls": calls(message.get("tool_calls", [])),
        }
    parts = {"message": "", "reasoning": ""}
    for item in body["output"]:
        if item["type"] in parts:
            parts[item["type"]] += "".join(part["text"] for part in item["content"])
    made = [{"function": item} for item in body["output"] if item["type"] == "function_call"]
    return {
        "text": parts["message"],
        "reasoning": parts["reasoning"],
        "usage": counts(body["usage"]),
        "calls": calls(made),
    }


def counts(usage: Row) -> Row:
    for name in ("prompt_tokens_details", "input_tokens_details"):
        usage.get(name, {}).pop("cached_tokens", None)
    return usage


def calls(made: list[Row]) -> list[tuple[str, Any]]:
    return [(call["function"]["name"], json.loads(call["function"]["arguments"])) for call in made]


@pytest.mark.parametrize("name", EXPECTED)
def test_the_tiny_model_answers_the_example(answered, name):
    said, right = answered[name], EXPECTED[name]
    if isinstance(right, str):
        assert (said["text"], said["calls"]) == (right, [])
    else:
        assert said["calls"] == [right]


def test_a_higher_effort_reasons_longer(answered):
    low, high = answered["sum-low"]["reasoning"], answered["sum-high"]["reasoning"]
    assert len(high) > 2 * len(low) > 0


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_row_says_the_same_alone_among_others_and_in_any_order(run, examples, answered, temperature):
    together = answered if temperature == 0 else run(examples[::3], temperature)
    lines = examples if temperature == 0 else examples[::3]
    assert run(lines[::-1], temperature) == together
    for line in (lines[0], lines[-1]):
        ((name, said),) = run([line], temperature).items()
        assert said == together[name]


CITY = {
    "type": "object",
    "properties": {"name": {"enum": ["Oslo", "Rome"]}, "size": {"type": "integer", "minimum": 0}},
    "required": ["name", "size"],
    "additionalProperties": False,
}
ADD = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
    "required": ["a", "b"],
    "additionalProperties": False,
}


def bodies(path: Path) -> dict[int, Row]:
    rows = [json.loads(line) for line in path.read_bytes().splitlines()]
    return {row["line"]: row.get("response", {}).get("body", row) for row in rows}


@pytest.mark.slow
def test_strict_schemas_and_forced_calls_hold_at_a_high_temperature(run):
    """Each document that is complete is valid, one that is not says so, and the neighbours are as ever."""
    schema = {"name": "city", "strict": True, "schema": CITY}
    lines = []
    for index in range(8):
        asked = [{"role": "user", "content": f"Which city is number {index}?"}]
        shared = {"temperature": 1.5, "seed": index, "reasoning": {"max_tokens": 20}}
        chat = {"messages": asked, **shared, "n": 2}
        chat["response_format"] = {"type": "json_schema", "json_schema": schema}
        tools = [{"type": "function", "name": "add", "strict": True, "parameters": ADD}]
        response = {"input": asked, **shared, "tools": tools, "tool_choice": "required"}
        lines += [
            {"custom_id": f"c{index}", "url": "/v1/chat/completions", "body": chat},
            {"custom_id": f"r{index}", "url": "/v1/responses", "body": response},
            {"id": f"p{index}", "prompt": f"What is {index} + 5?", "temperature": 0},
        ]
    rows = run([json.dumps(line) + "\n" for line in lines], 1.0, bodies)
    whole = 0
    for index in range(8):
        for choice in rows[3 * index + 1]["choices"]:
            assert choice["finish_reason"] in ("stop", "length")
            if choice["finish_reason"] == "stop":
                city = json.loads(choice["message"]["content"])
                assert set(city) == {"name", "size"}
                assert city["name"] in ("Oslo", "Rome") and city["size"] >= 0
                whole += 1
        response = rows[3 * index + 2]
        call = response["output"][-1]
        assert (response["status"] == "completed") == (call["type"] == "function_call")
        if response["status"] == "completed":
            numbers = json.loads(call["arguments"])
            assert call["name"] == "add" and set(numbers) == {"a", "b"}
            assert all(isinstance(number, int) for number in numbers.values())
            whole += 1
        assert rows[3 * index + 3]["text"] == f"{index} + 5 = {index + 5}."
    assert whole >= 12


def test_samples_and_logprobs_of_the_tiny_model(run):
    line = {"id": "x", "prompt": "What is 56 plus 78?", "reasoning_effort": "low"}
    asked = {"temperature": 1, "n": 3, "logprobs": True, "top_logprobs": 4}
    rows = run([json.dumps({**line, **asked}) + "\n", json.dumps({**line, "id": "y"}) + "\n"], 0.0, bodies)
    samples = rows[1]["samples"]
    assert len(samples) == 3
    for sample in samples:
        entries = sample["logprobs"]["content"]
        assert b"".join(bytes(entry["bytes"]) for entry in entries).decode() == sample["text"]
        for entry in entries:
            likely = [top["logprob"] for top in entry["top_logprobs"]]
            assert likely == sorted(likely, reverse=True) and len(likely) == 4
            assert entry["logprob"] <= likely[0] <= 0
    assert rows[2]["text"] == "56 + 78 = 134."


def test_a_stop_string_ends_the_tiny_models_answer_before_it(run):
    line = {"id": "x", "prompt": "What is 56 plus 78?", "reasoning_effort": "low", "stop": [" ="]}
    row = run([json.dumps(line) + "\n"], 0.0, bodies)[1]
    assert (row["text"], row["finish_reason"]) == ("56 + 78", "stop")


def test_a_stop_string_ends_no_thought(run):
    """The digits of the sum stand in the reasoning first."""
    line = {"id": "x", "prompt": "What is 12 + 30?", "reasoning_effort": "high", "stop": ["2"]}
    row = run([json.dumps(line) + "\n"], 0.0, bodies)[1]
    assert "2" in row["reasoning"]
    assert (row["text"], row["finish_reason"]) == ("1", "stop")


@pytest.mark.slow
def test_more_tokens_than_fit_are_cut_to_what_fits(run):
    asked = {"prompt": "What is 56 plus 78?", "reasoning_effort": "low"}
    lines = [{"id": "a", **asked, "max_tokens": 131_072}, {"id": "b", **asked}]
    rows = run([json.dumps(line) + "\n" for line in lines], 0.0, bodies)
    assert rows[1]["text"] == rows[2]["text"] == "56 + 78 = 134."
    endless = {"id": "c", **asked, "max_completion_tokens": 2**31 - 1, "min_tokens": 2**31 - 1}
    (row,) = run([json.dumps(endless) + "\n"], 0.0, bodies).values()
    assert row["finish_reason"] == "length"
    assert row["usage"]["total_tokens"] == MAX_LENGTH
    long = {"id": "d", "prompt": "word " * MAX_LENGTH, "max_tokens": 1}
    (row,) = run([json.dumps(long) + "\n"], 0.0, bodies).values()
    assert row["error"]["code"] == "context_length_exceeded"


@pytest.mark.parametrize("kills", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_the_command_killed_answers_as_if_it_had_not_been(answered, tmp_path, kills):
    out = tmp_path / "out.jsonl"
    command = [sys.executable, "-m", "gptoss_jax.cli", "batch", str(EXAMPLES), "--output", str(out)]
    command += ["--temperature", "0", "--max-tokens", str(MAX_TOKENS), "--max-length", str(MAX_LENGTH)]
    command += ["--slots", str(SLOTS), "--date", DATE, "--dtype", "float32"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    rng = random.Random(4)
    for kill in range(kills + 1):
        process = subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        if kill < kills:
            complaints = kill_after(process, out, rng.randint(1, 10))
            assert process.returncode == -signal.SIGKILL, complaints
            assert rows_in(out) < len(answered)
    printed, complaints = process.communicate()
    assert process.returncode == 0, complaints
    assert f"{len(answered)} answered" not in printed, "the killed runs had answered nothing"
    assert by_id(out) == answered


def kill_after(process: subprocess.Popen[str], out: Path, rows: int) -> str:
    """Kills the process when it has written so many more rows; gives what it said."""
    target = rows_in(out) + rows
    while process.poll() is None and rows_in(out) < target:
        time.sleep(0.001)
    process.kill()
    return process.communicate()[1]


def rows_in(out: Path) -> int:
    return out.read_bytes().count(b"\n") if out.exists() else 0
