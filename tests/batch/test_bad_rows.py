"""Every kind of line that cannot be answered becomes one error row that names its line and what is wrong."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gptoss_jax.batch import run_batch

GOOD = {"id": "good", "prompt": "Hello"}


def chat(**body: Any) -> dict[str, Any]:
    body = {"messages": [{"role": "user", "content": "Hi"}], **body}
    return {"custom_id": "x", "method": "POST", "url": "/v1/chat/completions", "body": body}


def responses(**body: Any) -> dict[str, Any]:
    return {"custom_id": "x", "method": "POST", "url": "/v1/responses", "body": {"input": "Hi", **body}}


def tool(**function: Any) -> list[Any]:
    return [{"type": "function", "function": {"name": "f", **function}}]


def strict(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "a", "strict": True, "schema": schema}}


BAD = {
    "invalid JSON": (b'{"id": "x", "prompt": }', "invalid_json", "column 23"),
    "a bare NaN": (b'{"id": "x", "prompt": "Hi", "temperature": NaN}', "invalid_json", "NaN"),
    "nested too deeply": (b"[" * 100_000, "invalid_json", "deep"),
    "a truncated line": (b'{"id": "x", "pro', "invalid_json", "not valid JSON"),
    "not an object": ([1, 2], "not_an_object", "an array"),
    "a number": (7, "not_an_object", "7"),
    "invalid UTF-8": (b'{"id": "x", "prompt": "\xff\xfe"}', "invalid_utf8", "byte 24"),
    "no request at all": ({}, "invalid_request", "no messages, no prompt and no body"),
    "missing body": ({"custom_id": "x", "url": "/v1/responses"}, "missing_body", "body"),
    "body not an object": ({"custom_id": "x", "url": "/v1/responses", "body": "Hi"}, "invalid_body", '"Hi"'),
    "unknown url": ({**chat(), "url": "/v1/embeddings"}, "unknown_url", '"/v1/embeddings"'),
    "missing url": ({"custom_id": "x", "body": {}}, "unknown_url", "null"),
    "wrong method": ({**chat(), "method": "GET"}, "invalid_method", '"GET"'),
    "id of a wrong type": ({"id": ["x"], "prompt": "Hi"}, "invalid_id", "an array"),
    "empty messages": (chat(messages=[]), "invalid_request", "messages"),
    "no messages": (
        {"custom_id": "x", "url": "/v1/chat/completions", "body": {}},
        "invalid_request",
        "messages",
    ),
    "messages not an array": (chat(messages="Hi"), "invalid_request", "messages"),
    "a message not an object": (chat(messages=["Hi"]), "invalid_request", "messages[0]"),
    "unknown role": (chat(messages=[{"role": "robot", "content": "Hi"}]), "invalid_request", "robot"),
    "content of a wrong type": (
        chat(messages=[{"role": "user", "content": 5}]),
        "invalid_request",
        "content",
    ),
    "no input": ({"custom_id": "x", "url": "/v1/responses", "body": {}}, "invalid_request", "input"),
    "input of a wrong type": (responses(input=5), "invalid_request", "input"),
    "prompt not a string": ({"id": "x", "prompt": ["Hi"]}, "invalid_request", "prompt"),
    "prompt and messages": ({"id": "x", "prompt": "Hi", "messages": []}, "invalid_request", "both"),
    "prompt too long": ({"id": "x", "prompt": "long " * 1000}, "context_length_exceeded", "4096"),
    "temperature out of range": (chat(temperature=2.5), "invalid_request", "temperature"),
    "temperature a string": (chat(temperature="hot"), "invalid_request", '"hot"'),
    "temperature infinite": (
        b'{"id": "x", "prompt": "Hi", "temperature": 1e999}',
        "invalid_request",
        "temperature",
    ),
    "top_p of 0": (chat(top_p=0), "invalid_request", "top_p"),
    "top_k negative": (chat(top_k=-2), "invalid_request", "top_k"),
    "seed not whole": (chat(seed=1.5), "invalid_request", "seed"),
    "max_tokens of 0": (chat(max_tokens=0), "invalid_request", "max_tokens"),
    "two different limits": (chat(max_tokens=5, max_completion_tokens=6), "invalid_request", "differ"),
    "unknown effort": (chat(reasoning_effort="enormous"), "invalid_request", "enormous"),
    "reasoning not an object": (responses(reasoning="high"), "invalid_request", "reasoning"),
    "tool without a name": (chat(tools=[{"type": "function", "function": {}}]), "invalid_request", "name"),
    "tool schema not an object": (chat(tools=tool(parameters="string")), "invalid_request", "parameters"),
    "no choices": (chat(n=0), "invalid_request", "n must be a whole number from 1 to 128, not 0"),
    "too many choices": ({"id": "x", "prompt": "Hi", "n": 129}, "invalid_request", "not 129"),
    "several responses": (responses(n=2), "invalid_request", "n must be 1"),
    "the best of several": (chat(best_of=2), "unsupported_field", "best_of"),
    "stop of a wrong type": (chat(stop=5), "invalid_request", "stop must be a string or an array"),
    "too many stop strings": (chat(stop=["x"] * 17), "invalid_request", "at most 16 strings"),
    "an empty stop string": (responses(stop=["a", ""]), "invalid_request", "stop[1]"),
    "a stop string that is none": (
        b'{"id": "x", "prompt": "Hi", "stop": ["\\ud800"]}',
        "invalid_request",
        "stop[0]",
    ),
    "stop tokens of a wrong type": (chat(stop_token_ids=["a"]), "invalid_request", "stop_token_ids[0]"),
    "a stop token out of range": (chat(stop_token_ids=[-1]), "invalid_request", "stop_token_ids[0]"),
    "logprobs as a number": (chat(logprobs=5), "invalid_request", "logprobs must be true or false, not 5"),
    "too many top_logprobs": (
        chat(logprobs=True, top_logprobs=21),
        "invalid_request",
        "from 0 to 20, not 21",
    ),
    "top_logprobs alone": (chat(top_logprobs=3), "invalid_request", "it needs logprobs to be true"),
    "top_logprobs of a response alone": (responses(top_logprobs=3), "invalid_request", "in include"),
    "logprobs of a response": (responses(logprobs=True), "unsupported_field", "output_text.logprobs"),
    "include of a wrong type": (responses(include="all"), "invalid_request", '"all"'),
    "logit_bias of a wrong type": (chat(logit_bias=[]), "invalid_request", "logit_bias must be an object"),
    "logit_bias of a word": (chat(logit_bias={"the": 1}), "invalid_request", '"the": it must be a token id'),
    "logit_bias out of range": (
        chat(logit_bias={"5": -101}),
        "invalid_request",
        "from -100 to 100, not -101",
    ),
    "too much logit_bias": (
        chat(logit_bias={str(token): 1 for token in range(301)}),
        "invalid_request",
        "logit_bias has 301 tokens: at most 300",
    ),
    "presence_penalty out of range": (chat(presence_penalty=2.1), "invalid_request", "from -2 to 2, not 2.1"),
    "frequency_penalty out of range": (chat(frequency_penalty=-3), "invalid_request", "frequency_penalty"),
    "repetition_penalty of 0": (chat(repetition_penalty=0), "invalid_request", "from 0.1 to 10, not 0"),
    "min_p above 1": (chat(min_p=1.5), "invalid_request", "min_p must be a number from 0 to 1, not 1.5"),
    "min_tokens negative": (chat(min_tokens=-1), "invalid_request", "min_tokens"),
    "no reasoning tokens": (chat(reasoning={"max_tokens": 0}), "invalid_request", "reasoning.max_tokens"),
    "reasoning off": (responses(reasoning={"enabled": False}), "unsupported_field", "reasoning"),
    "a schema without a name": (
        chat(response_format={"type": "json_schema", "json_schema": {"strict": True}}),
        "invalid_request",
        "response_format.json_schema.name",
    ),
    "an unknown format": (responses(text={"format": {"type": "xml"}}), "invalid_request", "text.format.type"),
    "strict of a wrong type": (
        chat(tools=tool(strict="yes", parameters={})),
        "invalid_request",
        "tools[0].function.strict",
    ),
    "a schema that cannot be enforced": (
        chat(response_format=strict({"type": "array", "uniqueItems": True})),
        "invalid_json_schema",
        "response_format: the final content: ",
    ),
    "a response's schema that cannot be enforced": (
        responses(
            text={"format": strict({"not": {"type": "null"}})["json_schema"] | {"type": "json_schema"}}
        ),
        "invalid_json_schema",
        "text.format: the final content: ",
    ),
    "arguments that cannot be enforced": (
        chat(tools=tool(strict=True, parameters={"type": "object", "multipleOf": 12345789})),
        "invalid_json_schema",
        "tools: the arguments of function 'f': #: multipleOf is 12345789",
    ),
    "a call without functions": (responses(tool_choice="required"), "invalid_request", "tool_choice"),
    "a call of an unknown function": (
        chat(tools=tool(), tool_choice={"type": "function", "function": {"name": "g"}}),
        "invalid_request",
        "no function in tools has this name",
    ),
    "a tool_choice that is none": (chat(tool_choice="never"), "invalid_request", "never"),
    "a tool_choice of another type": (
        responses(tool_choice={"type": "web_search"}),
        "unsupported_field",
        'tool_choice of type "web_search" is not supported',
    ),
    "a field of the other API": (chat(max_output_tokens=5), "unsupported_field", "of /v1/responses"),
    "a field of the chat API": (responses(max_tokens=5), "unsupported_field", "of /v1/chat/completions"),
    "instructions beside a prompt": (
        {"id": "x", "prompt": "Hi", "instructions": "Be brief."},
        "unsupported_field",
        "instructions",
    ),
    "stored prompt": (responses(prompt={"id": "pmpt_1"}), "unsupported_field", "prompt"),
    "earlier response": (
        responses(previous_response_id="resp_1"),
        "unsupported_field",
        "previous_response_id",
    ),
    "duplicate id": ({"custom_id": "good", **GOOD}, "duplicate_id", "line 1"),
}


def error_of(row: dict[str, Any]) -> dict[str, Any]:
    if row["error"]:
        return row["error"]
    assert row["response"]["status_code"] == 400
    return row["response"]["body"]["error"]


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_line_becomes_one_error_row_and_the_run_goes_on(
    kind, engine, encoding, write_lines, read_rows, tmp_path
):
    line, code, words = BAD[kind]
    source = write_lines([GOOD, line, {"id": "last", "prompt": "Bye"}])
    report = run_batch(source, tmp_path / "out.jsonl", engine=engine, encoding=encoding)
    rows = read_rows(tmp_path / "out.jsonl")
    assert sorted(rows) == [1, 2, 3]
    assert rows[1]["text"] == "You said: Hello"
    assert rows[3]["text"] == "You said: Bye"
    error = error_of(rows[2])
    assert error["code"] == code
    assert error["message"].startswith("line 2: ")
    assert words in error["message"]
    assert "\n" not in error["message"]
    assert (report.answered, report.errors) == (2, 1)


def test_a_file_of_only_bad_lines_ends_and_a_second_run_adds_nothing(
    engine, encoding, write_lines, read_rows, tmp_path
):
    out = tmp_path / "out.jsonl"
    source = write_lines([line for line, _, _ in BAD.values() if line != BAD["duplicate id"][0]])
    first = run_batch(source, out, engine=engine, encoding=encoding)
    assert first.errors == first.rows == len(BAD) - 1 == len(read_rows(out))
    before = out.read_bytes()
    second = run_batch(source, out, engine=engine, encoding=encoding)
    assert (second.errors, second.resumed) == (0, first.rows)
    assert out.read_bytes() == before


def test_the_shape_of_an_error_row_follows_the_form_of_its_line(
    engine, encoding, write_lines, read_rows, tmp_path
):
    source = write_lines([chat(n=0), {"id": 7, "prompt": "Hi", "n": 0}, b"{"])
    run_batch(source, tmp_path / "out.jsonl", engine=engine, encoding=encoding)
    openai, plain, unknown = (row for _, row in sorted(read_rows(tmp_path / "out.jsonl").items()))
    assert openai["custom_id"] == "x"
    assert openai["error"] is None
    error = openai["response"]["body"]["error"]
    assert error["type"] == "invalid_request_error"
    assert error["param"] == "n"
    assert plain == {"id": 7, "line": 2, "error": plain["error"]}
    assert unknown["custom_id"] is None
    assert unknown["response"] is None


@pytest.mark.parametrize(
    ("line", "parameter"),
    [
        (chat(messages=[{"role": "robot", "content": "Hi"}]), "messages[0].role"),
        (chat(stop=["a", 5]), "stop[1]"),
        (chat(tools=tool(strict="yes", parameters={})), "tools[0].function.strict"),
        (chat(response_format=strict({"type": "array", "uniqueItems": True})), "response_format"),
        (responses(text={"format": {"type": "xml"}}), "text.format.type"),
        (responses(tool_choice="required"), "tool_choice"),
        (chat(logit_bias={"999": 1}), "logit_bias"),
    ],
)
def test_an_error_names_the_field_for_programs_too(
    line, parameter, engine, encoding, write_lines, read_rows, tmp_path
):
    run_batch(write_lines([line]), tmp_path / "out.jsonl", engine=engine, encoding=encoding)
    assert error_of(read_rows(tmp_path / "out.jsonl")[1])["param"] == parameter


def test_a_fault_inside_the_program_is_a_row_with_status_500(
    engine, encoding, write_lines, read_rows, tmp_path, monkeypatch
):
    def fail(*_: Any, **__: Any) -> None:
        raise KeyError("surprise")

    monkeypatch.setattr("gptoss_jax.openai_api.request.conversation_from_body", fail)
    report = run_batch(write_lines([chat()]), tmp_path / "out.jsonl", engine=engine, encoding=encoding)
    response = read_rows(tmp_path / "out.jsonl")[1]["response"]
    assert response["status_code"] == 500
    assert "KeyError: 'surprise'" in json.dumps(response["body"])
    assert report.errors == 1
