"""A value of any type at any key of a request is answered, or refused by a `ApiError` of one line."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from gptoss_jax.batch.rows import Envelope, RowContext, envelope_of, prepare
from gptoss_jax.engine import SamplingParams
from gptoss_jax.openai_api import ApiError, Prepared, parse_object
from tests.json_places import changed, places

SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "enum": ["Oslo"]}},
    "required": ["city"],
}
CALL = {"id": "a", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Oslo"}'}}
SAMPLING = {"temperature": 1.0, "top_p": 0.9, "top_k": 5, "seed": 3, "user": "u", "metadata": {"k": "v"}}
SAMPLING |= {"min_p": 0.1, "presence_penalty": 1, "frequency_penalty": -0.5, "repetition_penalty": 1.1}
SAMPLING |= {"logit_bias": {"5": -100}, "min_tokens": 1, "stop": ["a", "b"], "stop_token_ids": [7]}
SAMPLING |= {"top_logprobs": 2, "n": 1}
CHAT = {
    "model": "m",
    "messages": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "Oslo?"}], "name": "alice"},
        {"role": "assistant", "reasoning": "Hm.", "content": None, "refusal": None, "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "a", "content": "5 °C"},
    ],
    "tools": [{"type": "function", "function": {"name": "weather", "description": "", "parameters": SCHEMA}}],
    "tool_choice": "auto",
    "reasoning_effort": "low",
    "reasoning": {"effort": "low", "max_tokens": 9},
    "logprobs": True,
    "response_format": {
        "type": "json_schema",
        "json_schema": {"name": "c", "strict": True, "schema": SCHEMA},
    },
    "max_completion_tokens": 9,
    **SAMPLING,
}
RESPONSES = {
    "instructions": "Be brief.",
    "input": [
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Oslo?"}]},
        {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]},
        {"role": "assistant", "phase": "commentary", "content": [{"type": "output_text", "text": "So."}]},
        {"type": "function_call", "call_id": "a", "name": "weather", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "a", "output": "5 °C"},
    ],
    "tools": [{"type": "function", "name": "weather", "description": "", "parameters": SCHEMA}],
    "tool_choice": "auto",
    "reasoning": {"effort": "low", "max_tokens": 9},
    "include": ["message.output_text.logprobs"],
    "text": {"format": {"type": "json_schema", "name": "c", "strict": True, "schema": SCHEMA}},
    "max_output_tokens": 9,
    **SAMPLING,
}
DOCUMENTS = {
    "chat": {"custom_id": "x", "method": "POST", "url": "/v1/chat/completions", "body": CHAT},
    "responses": {"custom_id": "x", "method": "POST", "url": "/v1/responses", "body": RESPONSES},
    "plain": {"id": "x", **CHAT},
    "prompt": {"id": "x", "prompt": "Hi", "max_tokens": 9, "logprobs": True, **SAMPLING},
}

DEEP = json.loads("[" * 100 + "]" * 100)
# What JSON can say; 1e999 is read as infinity.
VALUES: list[Any] = [None, True, False, 0, 7, -1.5, 10**400, float("inf"), "", "x", "\ud800"]
VALUES += ["\x00 \n<|end|>", [], [7], ["x"], [[]], [{}], {}, {"x": 7}, {"type": []}, [{"type": {}}]]
VALUES += [DEEP, {"effort": {}}]


@pytest.fixture
def context(engine, encoding) -> RowContext:
    return RowContext(engine, encoding, SamplingParams(), seed=0, effort=None, date="2026-01-01")


def answer(line: bytes, context: RowContext) -> Prepared | ApiError:
    """What a run does with a line, up to the engine."""
    try:
        document = parse_object(line)
        envelope: Envelope = envelope_of(document, 1)
        return prepare(document, envelope, context)
    except ApiError as error:
        return error


@pytest.mark.parametrize("form", DOCUMENTS)
def test_any_value_at_any_key_is_a_request_or_one_line(form: str, context: RowContext) -> None:
    document = DOCUMENTS[form]
    assert isinstance(answer(json.dumps(document).encode(), context), Prepared)
    refused = 0
    for place in places(document):
        for value in VALUES:
            line = json.dumps(changed(document, place, value)).replace("Infinity", "1e999")
            done = answer(line.encode(), context)
            if isinstance(done, ApiError):
                refused += 1
                assert "\n" not in str(done), (place, value)
                assert len(str(done)) < 400, (place, value)
            else:
                assert done.request.prompt
    assert refused > 50


@pytest.mark.parametrize("kind", [[], {}, 7])
def test_a_part_whose_type_is_no_word_is_named(kind: Any, context: RowContext) -> None:
    body = {"messages": [{"role": "user", "content": [{"type": kind}]}]}
    done = answer(json.dumps(body).encode(), context)
    assert isinstance(done, ApiError)
    assert done.code == "invalid_request"
    assert str(done).startswith(f"messages[0].content[0].type is {kind}: it must be text")


@pytest.mark.parametrize("levels", [129, 500, 100_000])
def test_deep_nesting_is_one_line_wherever_it_stands(levels: int, context: RowContext) -> None:
    deep = b"[" * levels + b"]" * levels
    for line in (
        deep,
        b'{"prompt": "Hi", "metadata": ' + deep + b"}",
        b'{"messages": ' + deep + b"}",
        b'{"prompt": "Hi", "tools": [{"type": "function", "function": {"name": "f", "parameters": {"x": '
        + deep
        + b"}}}]}",
    ):
        done = answer(line, context)
        assert isinstance(done, ApiError)
        assert (done.code, str(done)) == ("invalid_json", "nested more than 128 levels deep")


@pytest.mark.parametrize("line", [b'{"prompt": "a\x01b"}', b'{"prompt": "Hi" "x"}', b'{"prompt": "Hi'])
def test_json_that_cannot_be_read_says_where_once(line: bytes, context: RowContext) -> None:
    done = answer(line, context)
    assert isinstance(done, ApiError)
    assert re.fullmatch(r"not valid JSON: .*[^ ] at column \d+", str(done))
    assert " at at " not in str(done) and str(done).count(" at column") == 1
