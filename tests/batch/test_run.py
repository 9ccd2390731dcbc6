"""A whole run on a scripted engine: each line once, in the right shape, resumed without a trace."""

from __future__ import annotations

import dataclasses
import itertools
import json
import random
from typing import Any

import pytest

from gptoss_jax.batch import BatchError, run_batch
from gptoss_jax.engine import SamplingParams
from gptoss_jax.engine.grammar import HeaderGuard
from tests.batch.scripted import ScriptedEngine

TOOL = {
    "type": "function",
    "function": {"name": "f", "parameters": {"type": "object", "properties": {"a": {"type": "number"}}}},
}


def chat(text: str, custom_id: str = "c", **body: Any) -> dict[str, Any]:
    body = {"model": "gpt-oss-20b", "messages": [{"role": "user", "content": text}], **body}
    return {"custom_id": custom_id, "method": "POST", "url": "/v1/chat/completions", "body": body}


def responses(text: str, custom_id: str = "r", **body: Any) -> dict[str, Any]:
    body = {"model": "gpt-oss-20b", "input": text, **body}
    return {"custom_id": custom_id, "method": "POST", "url": "/v1/responses", "body": body}


@pytest.fixture
def answer(engine, encoding, write_lines, read_rows, tmp_path):
    """Runs one line and returns its row."""
    names = itertools.count()

    def answer(line: dict[str, Any], **arguments: Any) -> dict[str, Any]:
        out = tmp_path / f"out{next(names)}.jsonl"
        run_batch(write_lines([line]), out, engine=engine, encoding=encoding, **arguments)
        return read_rows(out)[1]

    return answer


def tokens(encoding, text: str) -> int:
    return len(encoding.encode(text, allowed_special="all"))


def test_a_chat_row_becomes_a_chat_completion(answer, engine, encoding):
    row = answer(chat("Hello", custom_id="first"), model="tiny")
    assert row["custom_id"] == "first"
    assert row["error"] is None
    assert row["response"]["status_code"] == 200
    body = row["response"]["body"]
    assert body["object"] == "chat.completion"
    assert body["model"] == "tiny"
    (choice,) = body["choices"]
    assert choice["finish_reason"] == "stop"
    assert choice["message"]["role"] == "assistant"
    assert choice["message"]["content"] == "You said: Hello"
    assert choice["message"]["reasoning"] == "Hmm."
    prompt = len(engine.requests[0].prompt)
    said = tokens(
        encoding,
        "<|channel|>analysis<|message|>Hmm.<|end|><|start|>assistant"
        "<|channel|>final<|message|>You said: Hello<|return|>",
    )
    assert body["usage"] == {
        "prompt_tokens": prompt,
        "completion_tokens": said,
        "total_tokens": prompt + said,
        "prompt_tokens_details": {"cached_tokens": 16},
        "completion_tokens_details": {"reasoning_tokens": 4},
    }


def test_a_function_call_is_a_tool_call_in_every_form(answer):
    function = {"type": "function", **TOOL["function"]}
    (choice,) = answer(chat("call: f", tools=[TOOL]))["response"]["body"]["choices"]
    assert choice["finish_reason"] == "tool_calls"
    (call,) = choice["message"]["tool_calls"]
    assert (call["function"]["name"], json.loads(call["function"]["arguments"])) == ("f", {"a": 1})
    output = answer(responses("call: f", tools=[function]))["response"]["body"]["output"]
    assert [item["type"] for item in output] == ["reasoning", "function_call"]
    assert (output[1]["name"], json.loads(output[1]["arguments"])) == ("f", {"a": 1})
    plain = answer({"prompt": "call: f", "tools": [TOOL]})
    assert plain["finish_reason"] == "tool_calls"
    assert plain["tool_calls"][0]["function"]["name"] == "f"
    assert plain["messages"][-1]["recipient"] == "functions.f"


def test_a_responses_row_becomes_a_response(answer, engine):
    row = answer(responses("Hello", instructions="Be brief.", metadata={"a": "b"}, max_output_tokens=99))
    body = row["response"]["body"]
    assert (body["object"], body["status"], body["incomplete_details"]) == ("response", "completed", None)
    assert (body["instructions"], body["metadata"]) == ("Be brief.", {"a": "b"})
    reasoning, message = body["output"]
    assert reasoning["content"] == [{"type": "reasoning_text", "text": "Hmm."}]
    assert message["content"][0]["text"] == "You said: Hello"
    usage = body["usage"]
    assert usage["output_tokens_details"] == {"reasoning_tokens": 4}
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]
    assert engine.requests[0].sampling.max_tokens == 99


def test_a_plain_row_keeps_its_id_and_gives_messages_and_text(answer):
    row = answer({"id": 12, "prompt": "Hello"})
    assert row["id"] == 12
    assert (row["text"], row["reasoning"], row["tool_calls"]) == ("You said: Hello", "Hmm.", [])
    assert [message["channel"] for message in row["messages"]] == ["analysis", "final"]
    assert (row["finish_reason"], row["error"]) == ("stop", None)
    assert "diagnostics" not in row


def test_plain_messages_and_prompt_are_the_same_request(answer, engine):
    answer({"prompt": "Hello"}, date="2025-06-28")
    answer({"messages": [{"role": "user", "content": "Hello"}]}, date="2025-06-28")
    answer(chat("Hello"), date="2025-06-28")
    answer(responses("Hello"), date="2025-06-28")
    assert len({tuple(request.prompt) for request in engine.requests}) == 1


def test_a_completion_that_ran_out_of_tokens_says_so_in_every_form(answer):
    assert answer(chat("cut"))["response"]["body"]["choices"][0]["finish_reason"] == "length"
    body = answer(responses("cut"))["response"]["body"]
    assert (body["status"], body["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    plain = answer({"prompt": "cut"})
    assert (plain["finish_reason"], plain["text"], plain["reasoning"]) == ("length", "", "Hmm, let me")


def test_malformed_output_is_kept_with_its_diagnostics(answer):
    for row in (answer({"prompt": "broken"}), answer(chat("broken")), answer(responses("broken"))):
        assert "Recovered." in json.dumps(row)
        assert row["diagnostics"]
        assert set(row["diagnostics"][0]) == {"what", "where", "raw"}


def test_reasoning_is_left_out_where_the_request_excludes_it(answer):
    message = answer(chat("Hi", reasoning={"exclude": True}))["response"]["body"]["choices"][0]["message"]
    assert "reasoning" not in message
    assert message["content"] == "You said: Hi"


@pytest.mark.parametrize(
    ("line", "effort"),
    [
        (chat("Hi", reasoning_effort="high"), "high"),
        (chat("Hi", reasoning={"effort": "high"}), "high"),
        (responses("Hi", reasoning={"effort": "high"}), "high"),
        ({"prompt": "Hi", "reasoning_effort": "high"}, "high"),
        ({"prompt": "Hi"}, "low"),
    ],
)
def test_the_effort_of_the_row_wins_over_that_of_the_run(answer, engine, encoding, line, effort):
    answer(line, effort="low", date="2025-06-28")
    prompt = encoding.decode(engine.requests[0].prompt)
    assert f"Reasoning: {effort}" in prompt
    assert "Current date: 2025-06-28" in prompt


def test_sampling_of_the_row_wins_over_that_of_the_run(answer, engine):
    run = SamplingParams(temperature=0.5, top_p=0.9, top_k=5, max_tokens=77)
    answer(
        {"prompt": "Hi", "temperature": 0, "top_p": 0.3, "top_k": 2, "seed": 4, "max_tokens": 9}, sampling=run
    )
    answer({"prompt": "Hi"}, sampling=run)
    first, second = (request.sampling for request in engine.requests)
    guard = HeaderGuard()
    assert first == SamplingParams(
        temperature=0.0, top_p=0.3, top_k=2, seed=4, max_tokens=9, header_guard=guard
    )
    assert (second.temperature, second.top_p, second.top_k, second.max_tokens) == (0.5, 0.9, 5, 77)


def test_a_rows_seed_depends_on_its_id_and_the_run_only(encoding, write_lines, tmp_path):
    def seeds(lines: list[dict], **arguments: Any) -> dict[str, int]:
        engine = ScriptedEngine(encoding)
        run_batch(
            write_lines(lines),
            tmp_path / "out.jsonl",
            engine=engine,
            encoding=encoding,
            overwrite=True,
            **arguments,
        )
        said = {request.id: request.sampling.seed for request in engine.requests}
        return {line["id"]: said[str(number)] for number, line in enumerate(lines, 1)}

    lines = [{"id": f"row {i}", "prompt": "Hi"} for i in range(20)]
    forward = seeds(lines)
    assert seeds(lines[::-1]) == forward == seeds(lines[5:]) | forward
    assert len(set(forward.values())) == 20
    assert not set(forward.values()) & set(seeds(lines, seed=1).values())
    assert seeds([{"id": "row 3", "prompt": "Hi", "seed": 5}]) == {"row 3": 5}


def test_fields_that_ask_for_nothing_special_are_accepted(answer):
    row = answer(
        chat(
            "Hi",
            n=1,
            stop=None,
            logprobs=False,
            logit_bias={},
            presence_penalty=0,
            user="u",
            store=True,
            stream=False,
        )
    )
    assert row["response"]["status_code"] == 200
    row = answer(responses("Hi", truncation="disabled", store=False, include=[], previous_response_id=None))
    assert row["response"]["status_code"] == 200


def test_forms_may_be_mixed_and_blank_lines_are_no_rows(engine, encoding, write_lines, read_rows, tmp_path):
    source = write_lines([chat("a"), b"", {"prompt": "b"}, b"  \t", responses("c")])
    report = run_batch(source, tmp_path / "out.jsonl", engine=engine, encoding=encoding)
    rows = read_rows(tmp_path / "out.jsonl")
    assert sorted(rows) == [1, 3, 5]
    assert rows[3]["id"] == "line-3"
    assert (report.rows, report.answered) == (3, 3)


def test_a_byte_order_mark_windows_line_ends_and_a_missing_last_newline_are_fine(
    engine, encoding, read_rows, tmp_path
):
    (tmp_path / "in.jsonl").write_bytes(b'\xef\xbb\xbf{"id":"a","prompt":"x"}\r\n{"id":"b","prompt":"y"}')
    run_batch(tmp_path / "in.jsonl", tmp_path / "out.jsonl", engine=engine, encoding=encoding)
    rows = read_rows(tmp_path / "out.jsonl")
    assert [rows[1]["text"], rows[2]["text"]] == ["You said: x", "You said: y"]


def test_an_empty_input_gives_an_empty_output(engine, encoding, write_lines, tmp_path):
    report = run_batch(write_lines([]), tmp_path / "out.jsonl", engine=engine, encoding=encoding)
    assert (report.rows, report.answered, (tmp_path / "out.jsonl").read_bytes()) == (0, 0, b"")


def test_rows_are_read_only_as_the_engine_asks_for_them(encoding, write_lines, tmp_path):
    """After each answer at most the engine's slots have been read beyond what is written."""

    class Watching(ScriptedEngine):
        def run(self, requests):
            for finished, completion in enumerate(super().run(requests)):
                assert len(self.requests) <= finished + self.slots
                yield completion

    engine = Watching(encoding, slots=3)
    source = write_lines({"prompt": str(i)} for i in range(50))
    report = run_batch(source, tmp_path / "out.jsonl", engine=engine, encoding=encoding)
    assert report.answered == 50


def test_a_completion_that_the_engine_gave_up_is_the_error_of_its_row_alone(
    encoding, write_lines, read_rows, tmp_path
):
    class Failing(ScriptedEngine):
        def run(self, requests):
            for completion in super().run(requests):
                broken = completion.id == "2" and completion.sample == 0
                yield dataclasses.replace(completion, error="it broke") if broken else completion

    source = write_lines({"id": str(i), "prompt": f"text {i}", "n": 2} for i in range(4))
    report = run_batch(source, tmp_path / "out.jsonl", engine=Failing(encoding), encoding=encoding)
    rows = read_rows(tmp_path / "out.jsonl")
    assert rows[2]["error"] == {"code": "internal_error", "message": "line 2: it broke"}
    assert [rows[line]["error"] for line in (1, 3, 4)] == [None] * 3
    assert (report.answered, report.errors) == (3, 1)


def test_a_run_stopped_after_any_row_is_continued_without_a_repetition(
    encoding, write_lines, read_rows, tmp_path
):
    lines = [{"id": f"row {i}", "prompt": f"text {i}"} for i in range(12)]
    lines[7] = {"id": "row 3", "prompt": "a duplicate"}
    source, out = write_lines(lines), tmp_path / "out.jsonl"
    rng = random.Random(5)

    class Stopping(ScriptedEngine):
        def run(self, requests):
            for count, completion in enumerate(super().run(requests)):
                if count == self.stop:
                    raise KeyboardInterrupt
                yield completion

    stops = 0
    while True:
        engine = Stopping(encoding)
        engine.stop = rng.randrange(3)
        try:
            report = run_batch(source, out, engine=engine, encoding=encoding)
            break
        except KeyboardInterrupt:
            stops += 1
    assert stops >= 4
    rows = read_rows(out)
    assert sorted(rows) == list(range(1, 13))
    assert report.resumed + report.answered + report.errors == 12
    assert "line 4" in rows[8]["error"]["message"]
    for number, line in enumerate(lines, 1):
        if number != 8:
            assert rows[number]["text"] == f"You said: {line['prompt']}"


def test_a_finished_run_given_again_asks_the_engine_nothing(engine, encoding, write_lines, tmp_path):
    source, out = write_lines([{"prompt": "a"}, {"prompt": "b"}]), tmp_path / "out.jsonl"
    run_batch(source, out, engine=engine, encoding=encoding)
    before = out.read_bytes()
    idle = ScriptedEngine(encoding)
    report = run_batch(source, out, engine=idle, encoding=encoding)
    assert idle.requests == []
    assert (report.resumed, report.answered) == (2, 0)
    assert out.read_bytes() == before


def test_a_continued_run_keeps_the_date_it_began_with(encoding, write_lines, tmp_path):
    source, out = (
        write_lines([{"id": "a", "prompt": "a"}, {"id": "b", "prompt": "b"}]),
        tmp_path / "out.jsonl",
    )
    run_batch(source, out, engine=ScriptedEngine(encoding), encoding=encoding, date="2025-06-28")
    first_row = out.read_bytes().splitlines(keepends=True)[0]
    out.write_bytes(first_row)
    engine = ScriptedEngine(encoding)
    run_batch(source, out, engine=engine, encoding=encoding)
    assert "Current date: 2025-06-28" in encoding.decode(engine.requests[0].prompt)
    with pytest.raises(BatchError, match='"date"'):
        run_batch(source, out, engine=engine, encoding=encoding, date="2025-06-29")


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ({"seed": 1}, "seed"),
        ({"sampling": SamplingParams(temperature=0)}, "sampling"),
        ({"effort": "high"}, "effort"),
        ({"settings": {"checkpoint": "b"}}, "checkpoint"),
    ],
)
def test_an_output_made_with_other_arguments_is_refused(
    engine, encoding, write_lines, tmp_path, arguments, name
):
    source, out = write_lines([{"prompt": "a"}]), tmp_path / "out.jsonl"
    settings = {"settings": {"checkpoint": "a"}}
    run_batch(source, out, engine=engine, encoding=encoding, **settings)
    with pytest.raises(BatchError, match=f'"{name}"'):
        run_batch(source, out, engine=engine, encoding=encoding, **{**settings, **arguments})


def test_an_output_made_from_another_input_is_refused(engine, encoding, write_lines, tmp_path):
    out = tmp_path / "out.jsonl"
    run_batch(write_lines([{"prompt": "a"}]), out, engine=engine, encoding=encoding)
    with pytest.raises(BatchError, match='"input_sha256"'):
        run_batch(write_lines([{"prompt": "b"}]), out, engine=engine, encoding=encoding)


def test_an_input_that_changes_while_it_is_read_is_noticed(encoding, write_lines, tmp_path):
    source = write_lines({"prompt": str(i)} for i in range(5))

    class Changing(ScriptedEngine):
        def run(self, requests):
            with open(source, "r+b") as file:
                file.seek(-8, 2)
                file.write(b"9")
            return super().run(requests)

    with pytest.raises(BatchError, match="changed while it was being read"):
        run_batch(source, tmp_path / "out.jsonl", engine=Changing(encoding), encoding=encoding)


def test_the_input_cannot_be_its_own_output(engine, encoding, write_lines):
    source = write_lines([{"prompt": "a"}])
    before = source.read_bytes()
    with pytest.raises(BatchError, match="is the input"):
        run_batch(source, source, engine=engine, encoding=encoding, overwrite=True)
    assert source.read_bytes() == before


def test_a_missing_input_is_one_line(engine, encoding, tmp_path):
    with pytest.raises(BatchError, match=r"cannot read .*none"):
        run_batch(tmp_path / "none", tmp_path / "out.jsonl", engine=engine, encoding=encoding)


def test_the_report_adds_up(engine, encoding, write_lines, read_rows, tmp_path):
    source = write_lines(
        [chat("a", "1"), chat("cut", "2"), responses("call: f", "3"), {"prompt": "broken"}, b"{"]
    )
    report = run_batch(source, tmp_path / "out.jsonl", engine=engine, encoding=encoding)
    assert report.finish_reasons == {"stop": 2, "length": 1, "tool_calls": 1}
    assert (report.rows, report.answered, report.errors, report.malformed) == (5, 4, 1, 1)
    rows = read_rows(tmp_path / "out.jsonl")
    usages = [rows[n]["response"]["body"]["usage"] for n in (1, 2, 3)] + [rows[4]["usage"]]
    generated = sum(usage.get("completion_tokens", usage.get("output_tokens")) for usage in usages)
    assert report.generated_tokens == generated
    assert report.prompt_tokens == sum(len(request.prompt) for request in engine.requests)
    summary = report.as_json()
    assert json.loads(json.dumps(summary)) == summary
    assert summary["generated_tokens_per_second"] > 0
