"""What a row may ask for, and gets: samples, stops, penalties, log-probabilities, grammars."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest

from gptoss_jax.batch import run_batch
from gptoss_jax.engine import SamplingParams
from gptoss_jax.engine.grammar import Grammar, HeaderGuard
from gptoss_jax.openai_api.sampling import WITH_LOGPROBS

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
FUNCTION = {"name": "f", "parameters": SCHEMA}


def chat(text: str = "Hi", /, **body: Any) -> dict[str, Any]:
    body = {"messages": [{"role": "user", "content": text}], **body}
    return {"custom_id": "c", "method": "POST", "url": "/v1/chat/completions", "body": body}


def responses(text: str = "Hi", /, **body: Any) -> dict[str, Any]:
    return {"custom_id": "r", "method": "POST", "url": "/v1/responses", "body": {"input": text, **body}}


def plain(text: str = "Hi", /, **body: Any) -> dict[str, Any]:
    return {"id": "p", "prompt": text, **body}


@pytest.fixture
def answer(engine, encoding, write_lines, read_rows, tmp_path):
    """Runs one line and returns its row, or the body of its response."""
    names = itertools.count()

    def answer(line: dict[str, Any], **arguments: Any) -> dict[str, Any]:
        out = tmp_path / f"out{next(names)}.jsonl"
        run_batch(write_lines([line]), out, engine=engine, encoding=encoding, **arguments)
        row = read_rows(out)[1]
        return row["response"]["body"] if "response" in row else row

    return answer


ASKED = {
    "min_p": (0.1, {"min_p": 0.1}),
    "presence_penalty": (-2, {"presence_penalty": -2.0}),
    "frequency_penalty": (0.5, {"frequency_penalty": 0.5}),
    "repetition_penalty": (1.2, {"repetition_penalty": 1.2}),
    "logit_bias": ({"7": -100, "012": 5}, {"logit_bias": {7: -100.0, 12: 5.0}}),
    "min_tokens": (4, {"min_tokens": 4}),
    "stop": ("\n", {"stop": ("\n",)}),
    "stop_token_ids": ([5, 6], {"stop_token_ids": (5, 6)}),
    "reasoning": ({"max_tokens": 30}, {"reasoning_budget": 30}),
}


@pytest.mark.parametrize("form", [chat, responses, plain])
@pytest.mark.parametrize("name", ASKED)
def test_a_field_of_a_row_reaches_the_engine_in_every_form(answer, engine, form, name):
    value, expected = ASKED[name]
    answer(form(seed=1, **{name: value}))
    assert engine.requests[0].sampling == SamplingParams(seed=1, header_guard=HeaderGuard(), **expected)


def test_stop_may_be_a_list_and_what_asks_for_nothing_is_nothing(answer, engine):
    answer(chat(seed=1, stop=["a", "bc"]))
    answer(chat(seed=1, stop="", stop_token_ids=[], logit_bias={}, logprobs=False, top_logprobs=0, n=1))
    assert [request.sampling.stop for request in engine.requests] == [("a", "bc"), ()]
    assert engine.requests[1].sampling == SamplingParams(seed=1, header_guard=HeaderGuard())


def test_text_ends_before_a_stop_string_and_the_reason_is_stop(answer):
    (choice,) = answer(chat("one two three", stop=["nothing", " two"]))["choices"]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("You said: one", "stop")
    output = answer(responses("one two three", stop=" two"))["output"]
    assert output[-1]["content"][0]["text"] == "You said: one"
    assert answer(plain("one two three", stop=" two"))["text"] == "You said: one"


# Several samples


def test_a_chat_row_has_a_choice_for_each_sample_and_counts_its_prompt_once(answer, engine):
    body = answer(chat("Hello", n=3))
    said = ["You said: Hello", "You said: Hello (1)", "You said: Hello (2)"]
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2]
    assert [choice["message"]["content"] for choice in body["choices"]] == said
    usage, (request,) = body["usage"], engine.requests
    assert request.sampling.n == 3
    assert usage["prompt_tokens"] == len(request.prompt)
    assert usage["prompt_tokens_details"] == {"cached_tokens": 16}, "what no sample had to compute"
    assert usage["completion_tokens_details"] == {"reasoning_tokens": 12}
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    one = answer(chat("Hello"))["usage"]["completion_tokens"]
    assert usage["completion_tokens"] == 3 * one + len(" (1)") + len(" (2)")


def test_a_plain_row_of_several_samples_lists_them_in_place_of_the_answer(answer):
    row = answer(plain("Hello", n=2))
    assert [sample["text"] for sample in row["samples"]] == ["You said: Hello", "You said: Hello (1)"]
    alone = answer(plain("Hello"))
    assert set(row) - {"samples"} == {"id", "line", "usage", "error"}
    assert set(row["samples"][0]) == set(alone) - {"id", "line", "usage", "error"}


def test_calls_of_several_samples_have_ids_of_their_own(answer):
    body = answer(chat("call: f", n=3, tools=[{"type": "function", "function": FUNCTION}]))
    calls = [choice["message"]["tool_calls"][0]["id"] for choice in body["choices"]]
    assert len(set(calls)) == 3
    assert all(choice["finish_reason"] == "tool_calls" for choice in body["choices"])


def test_diagnostics_of_several_samples_say_whose_they_are(
    engine, encoding, write_lines, read_rows, tmp_path
):
    report = run_batch(
        write_lines([plain("broken", n=2), chat("broken", n=2)]),
        tmp_path / "out.jsonl",
        engine=engine,
        encoding=encoding,
    )
    for row in read_rows(tmp_path / "out.jsonl").values():
        assert {found["sample"] for found in row["diagnostics"]} == {0, 1}
    assert (report.answered, report.malformed) == (2, 4)
    assert report.finish_reasons == {"stop": 4}


def test_rows_of_many_samples_are_written_once_each_when_they_are_whole(
    engine, encoding, write_lines, read_rows, tmp_path
):
    lines = [plain(str(number), id=f"row {number}", n=1 + number % 5) for number in range(30)]
    report = run_batch(write_lines(lines), tmp_path / "out.jsonl", engine=engine, encoding=encoding)
    rows = read_rows(tmp_path / "out.jsonl")
    assert report.answered == len(rows) == 30
    for number, line in enumerate(lines, 1):
        assert len(rows[number].get("samples", [0])) == line["n"]


def test_a_fault_in_one_sample_is_one_row_and_the_run_goes_on(
    engine, encoding, write_lines, read_rows, tmp_path, monkeypatch
):
    from gptoss_jax.batch import run

    read = run.read_sample

    def failing(completion, encoding):
        if completion.id == "1" and completion.sample == 1:
            raise KeyError("surprise")
        return read(completion, encoding)

    monkeypatch.setattr(run, "read_sample", failing)
    source = write_lines([plain("a", n=3), plain("b", id="q", n=2)])
    report = run_batch(source, tmp_path / "out.jsonl", engine=engine, encoding=encoding)
    rows = read_rows(tmp_path / "out.jsonl")
    assert "KeyError: 'surprise'" in rows[1]["error"]["message"]
    assert len(rows[2]["samples"]) == 2
    assert (report.answered, report.errors) == (1, 1)


# Log-probabilities: the scripted engine gives token t the logarithm -t / 1000, and rank r -(r + 1)


def expected_entries(text: str, top: int) -> list[dict[str, Any]]:
    likely = [{"token": chr(rank), "logprob": -float(rank + 1), "bytes": [rank]} for rank in range(top)]
    return [
        {
            "token": bytes([byte]).decode(errors="replace"),
            "logprob": -byte / 1000,
            "bytes": [byte],
            "top_logprobs": likely,
        }
        for byte in text.encode()
    ]


def test_chat_logprobs_are_those_of_the_content(answer):
    (choice,) = answer(chat("Hé", logprobs=True, top_logprobs=2))["choices"]
    assert choice["logprobs"] == {"content": expected_entries("You said: Hé", 2), "refusal": None}
    (choice,) = answer(chat("Hé", logprobs=True))["choices"]
    assert choice["logprobs"]["content"] == expected_entries("You said: Hé", 0)
    assert answer(chat("Hé"))["choices"][0]["logprobs"] is None


def test_response_logprobs_stand_beside_their_text(answer):
    body = answer(responses("Hello", include=[WITH_LOGPROBS], top_logprobs=1))
    reasoning, message = body["output"]
    assert message["content"][0]["logprobs"] == expected_entries("You said: Hello", 1)
    assert "logprobs" not in reasoning["content"][0]
    assert body["top_logprobs"] == 1
    assert answer(responses("Hello"))["output"][1]["content"][0]["logprobs"] == []


def test_plain_logprobs_stand_beside_the_answer_they_belong_to(answer):
    row = answer(plain("Hello", logprobs=True))
    assert row["logprobs"]["content"] == expected_entries("You said: Hello", 0)
    assert "logprobs" not in answer(plain("Hello"))
    second = answer(plain("Hello", logprobs=True, n=2))["samples"][1]
    assert second["logprobs"]["content"] == expected_entries("You said: Hello (1)", 0)


def test_logprobs_end_where_a_stop_string_cuts_the_text(answer):
    row = answer(plain("one two three", logprobs=True, stop="e t"))
    assert row["text"] == "You said: on"
    assert row["logprobs"]["content"] == expected_entries("You said: on", 0)


def test_a_call_has_no_logprobs_of_content(answer):
    (choice,) = answer(chat("call: f", logprobs=True))["choices"]
    assert choice["logprobs"] == {"content": [], "refusal": None}


def test_malformed_output_keeps_its_logprobs(answer):
    output = answer(responses("broken", include=[WITH_LOGPROBS]))["output"]
    texts = [item["content"][0] for item in output if item["type"] == "message"]
    # The stray word of the header is kept as text; it was no content, so it has no log-probabilities.
    assert "".join(text["text"] for text in texts) == "oopsRecovered."
    assert [entry for text in texts for entry in text["logprobs"]] == expected_entries("Recovered.", 0)


# Grammars


def strict(form: Any) -> dict[str, Any]:
    """What asks for the schema in the words of a form."""
    asked = {"name": "x", "strict": True, "schema": SCHEMA}
    if form is responses:
        return {"text": {"format": {"type": "json_schema", **asked}}}
    return {"response_format": {"type": "json_schema", "json_schema": asked}}


@pytest.mark.parametrize("form", [chat, responses, plain])
def test_a_strict_schema_is_shown_to_the_model_and_enforced(answer, engine, encoding, form):
    answer(form(**strict(form)))
    (request,) = engine.requests
    assert request.sampling.grammar == Grammar.json_schema(SCHEMA)
    assert "# Response Formats" in encoding.decode(request.prompt)


def test_a_schema_that_is_not_strict_is_only_shown(answer, engine, encoding):
    asked = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
    answer(chat(response_format=asked))
    assert engine.requests[0].sampling.grammar is None
    assert "# Response Formats" in encoding.decode(engine.requests[0].prompt)


def test_json_mode_is_enforced(answer, engine):
    answer(chat(response_format={"type": "json_object"}))
    assert engine.requests[0].sampling.grammar == Grammar.json_object()


@pytest.mark.parametrize(
    ("choice", "required"),
    [("required", True), ({"type": "function", "function": {"name": "f"}}, True), ("auto", False)],
)
def test_tool_choice_is_enforced_where_it_asks_for_a_call(answer, engine, choice, required):
    answer(chat("call: f", tools=[{"type": "function", "function": FUNCTION}], tool_choice=choice))
    grammar = engine.requests[0].sampling.grammar
    assert (grammar is not None and grammar.must_call) is required


def test_tool_choice_none_leaves_the_functions_out(answer, engine, encoding):
    answer(chat(tools=[{"type": "function", "function": FUNCTION}], tool_choice="none"))
    assert engine.requests[0].sampling.grammar is None
    assert "namespace functions" not in encoding.decode(engine.requests[0].prompt)


def test_a_strict_function_has_its_arguments_enforced(answer, engine):
    answer(responses("call: f", tools=[{"type": "function", "strict": True, **FUNCTION}]))
    (function,) = engine.requests[0].sampling.grammar.functions
    assert json.loads(function.arguments.text) == SCHEMA


def test_a_document_cut_by_length_or_a_stop_string_is_incomplete(answer):
    for body in ({"text": "cut"}, {"text": "one two", "stop": " t"}):
        text, rest = body.pop("text"), body
        assert answer(chat(text, **rest, **strict(chat)))["choices"][0]["finish_reason"] == "length"
        assert answer(plain(text, **rest, **strict(plain)))["finish_reason"] == "length"
        response = answer(responses(text, **rest, **strict(responses)))
        assert (response["status"], response["output"][-1]["status"]) == ("incomplete", "incomplete")
    assert answer(plain("one two", stop=" t"))["finish_reason"] == "stop"


def test_the_report_counts_cached_tokens_and_what_the_engine_did(engine, encoding, write_lines, tmp_path):
    engine.statistics.preemptions = 5  # before this run
    report = run_batch(
        write_lines([plain("a"), plain("b", id="q", n=2)]),
        tmp_path / "out.jsonl",
        engine=engine,
        encoding=encoding,
    )
    assert report.cached_tokens == 16 + 16
    assert (report.preemptions, report.compiled_programs) == (0, 3)
    assert "32 of them cached" in str(report)
    assert report.as_json()["cached_tokens"] == 32


# What a run does with fields and tools that nobody knows


def test_unknown_fields_are_counted_and_told_once_with_the_nearest_known_name(
    engine, encoding, write_lines, read_rows, tmp_path
):
    lines = [plain(str(number), id=f"row {number}", temprature=0.5) for number in range(5)]
    lines += [chat("Hi", custom={"x": 1}), responses("Hi", reasoning={"efort": "low"})]
    out = tmp_path / "out.jsonl"
    report = run_batch(write_lines(lines), out, engine=engine, encoding=encoding)
    assert all("error" not in row or row["error"] is None for row in read_rows(out).values())
    told = str(report).splitlines()[-3:]
    assert [" ".join(line.split()) for line in told] == [
        "unknown field temprature: 5 rows; temperature?",
        "unknown field custom: 1 row",
        "unknown field reasoning.efort: 1 row; reasoning.effort?",
    ]
    assert report.as_json()["unknown_fields"][0] == {
        "name": "temprature",
        "nearest": "temperature",
        "rows": 5,
    }
    json.dumps(report.as_json())


def test_a_strict_run_answers_rows_with_unknown_fields_by_errors(
    engine, encoding, write_lines, read_rows, tmp_path
):
    lines = [plain("a", temprature=0.5), plain("b", id="q")]
    out = tmp_path / "out.jsonl"
    report = run_batch(write_lines(lines), out, engine=engine, encoding=encoding, strict=True)
    rows = read_rows(out)
    assert rows[1]["error"] == {
        "code": "unknown_field",
        "message": "line 1: temprature is no field of this request; temperature?",
    }
    assert rows[2]["text"] == "You said: b"
    assert not report.unknown_fields


def test_tools_that_nobody_runs_are_errors_unless_they_are_ignored(
    engine, encoding, write_lines, read_rows, tmp_path
):
    own = {"type": "function", **FUNCTION}
    source = write_lines([responses("Hi", tools=[{"type": "web_search"}, own])])
    run_batch(source, tmp_path / "a.jsonl", engine=engine, encoding=encoding)
    error = read_rows(tmp_path / "a.jsonl")[1]["response"]["body"]["error"]
    assert error["code"] == "unsupported_tool"
    assert 'tools[0].type is "web_search": it must be "function"' in error["message"]
    run_batch(source, tmp_path / "b.jsonl", engine=engine, encoding=encoding, ignore_unknown_tools=True)
    assert read_rows(tmp_path / "b.jsonl")[1]["response"]["body"]["tools"] == [own]


def test_the_history_of_a_run_is_that_of_its_prompts(engine, encoding, write_lines, tmp_path):
    said = {"role": "assistant", "reasoning": "A thought.", "content": "An answer."}
    asked = {"role": "user", "content": "Hi"}
    source = write_lines([{"id": "x", "messages": [asked, said, asked, said, asked]}])
    thoughts = []
    for name, options in (("a", {}), ("b", {"history": "compatible"}), ("c", {"history": "all"})):
        run_batch(source, tmp_path / f"{name}.jsonl", engine=engine, encoding=encoding, **options)
        thoughts.append(encoding.decode(engine.requests[-1].prompt).count("A thought."))
    assert thoughts == [0, 1, 2]
    assert json.loads((tmp_path / "a.jsonl.run.json").read_text())["history"] == "guide"


@pytest.mark.parametrize("fields", [{"include_reasoning": False}, {"reasoning": {"exclude": True}}])
def test_reasoning_stays_out_of_every_form_of_answer(answer, fields):
    (choice,) = answer(chat("Hi", **fields))["choices"]
    assert choice["message"] == {"role": "assistant", "content": "You said: Hi"}
    assert [item["type"] for item in answer(responses("Hi", **fields))["output"]] == ["message"]
    row = answer(plain("Hi", **fields))
    assert (row["reasoning"], row["text"]) == ("", "You said: Hi")
    assert [message["channel"] for message in row["messages"]] == ["final"]
