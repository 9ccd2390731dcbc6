"""OpenAI's own client against the embedded checkpoint: both APIs, whole and streamed."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest
from openai import OpenAI
from openai.types.chat import ChatCompletion
from openai.types.responses import Response

QUESTION = "What is 2 + 3?"
ASKED = [{"role": "user", "content": QUESTION}]
WEATHER = {
    "name": "get_weather",
    "description": "Get the weather.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string", "enum": ["Oslo", "Lima"]}},
        "required": ["city"],
        "additionalProperties": False,
    },
    "strict": True,
}
SCHEMA = {
    "type": "object",
    "properties": {"answer": {"type": "integer", "enum": [5, 6]}},
    "required": ["answer"],
    "additionalProperties": False,
}


def chat(client: OpenAI, **fields: Any) -> Any:
    return client.chat.completions.create(
        **{"model": "tiny", "messages": ASKED, "temperature": 0, "max_tokens": 120, **fields}
    )


def respond(client: OpenAI, **fields: Any) -> Any:
    return client.responses.create(
        **{"model": "tiny", "input": QUESTION, "temperature": 0, "max_output_tokens": 120, **fields}
    )


def test_a_chat_and_its_stream_say_the_same(client: OpenAI) -> None:
    whole = chat(client)
    ChatCompletion.model_validate(whole.model_dump(), strict=True)
    message = whole.choices[0].message
    assert message.content == "2 + 3 = 5."
    assert message.reasoning
    usage = whole.usage
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    assert 0 < usage.completion_tokens_details.reasoning_tokens < usage.completion_tokens
    chunks = list(chat(client, stream=True, stream_options={"include_usage": True}))
    deltas = [chunk.choices[0].delta for chunk in chunks[:-1]]
    assert "".join(delta.content or "" for delta in deltas) == message.content
    assert "".join(getattr(delta, "reasoning", "") for delta in deltas) == message.reasoning
    assert chunks[-2].choices[0].finish_reason == whole.choices[0].finish_reason == "stop"
    assert chunks[-1].usage.completion_tokens == usage.completion_tokens


def test_a_response_and_its_stream_say_the_same(client: OpenAI) -> None:
    whole = respond(client)
    Response.model_validate(whole.model_dump(), strict=True)
    assert (whole.status, whole.output_text) == ("completed", "2 + 3 = 5.")
    assert [item.type for item in whole.output] == ["reasoning", "message"]
    assert whole.usage.total_tokens == whole.usage.input_tokens + whole.usage.output_tokens
    with client.responses.stream(
        model="tiny", input=QUESTION, temperature=0, max_output_tokens=120
    ) as stream:
        events = list(stream)
        final = stream.get_final_response()
    assert final.output_text == whole.output_text
    assert final.output[0].content[0].text == whole.output[0].content[0].text
    thought = [event.delta for event in events if event.type == "response.reasoning_text.delta"]
    assert "".join(thought) == whole.output[0].content[0].text
    assert final.usage.output_tokens == whole.usage.output_tokens


@pytest.mark.slow
def test_excluded_reasoning_is_in_no_field_and_no_event(client: OpenAI) -> None:
    thought = chat(client).choices[0].message.reasoning
    hidden = chat(client, logprobs=True, extra_body={"reasoning": {"exclude": True}})
    assert hidden.choices[0].message.content == "2 + 3 = 5."
    events = list(respond(client, stream=True, extra_body={"reasoning": {"exclude": True}}))
    for said in (hidden.model_dump_json(), *(event.model_dump_json() for event in events)):
        assert thought[:12] not in said
        assert "reasoning_text" not in said


@pytest.mark.parametrize("stream", [False, True])
def test_a_required_call_is_made_and_its_result_is_taken(client: OpenAI, stream: bool) -> None:
    tools = [{"type": "function", "function": WEATHER}]
    messages: list[Any] = [{"role": "user", "content": "What is the weather in Oslo?"}]
    fields: dict[str, Any] = {"messages": messages, "tools": tools, "tool_choice": "required"}
    if stream:
        with client.chat.completions.stream(
            model="tiny", temperature=0, max_tokens=200, **fields
        ) as streamed:
            choice = streamed.until_done().get_final_completion().choices[0]
    else:
        choice = chat(client, max_tokens=200, **fields).choices[0]
    (call,) = choice.message.tool_calls
    assert (choice.finish_reason, call.function.name) == ("tool_calls", "get_weather")
    assert json.loads(call.function.arguments)["city"] in ("Oslo", "Lima")
    messages += [
        choice.message.model_dump(exclude_none=True, exclude={"parsed"}, mode="json"),
        {"role": "tool", "tool_call_id": call.id, "content": "sunny, 20 degrees"},
    ]
    for part in messages[1].get("tool_calls", ()):
        part["function"].pop("parsed_arguments", None)
    assert chat(client, messages=messages, tools=tools).choices[0].message.content


def test_a_tool_loop_of_responses_passes_its_output_back(client: OpenAI) -> None:
    tools = [{"type": "function", **WEATHER}]
    items: list[Any] = [{"role": "user", "content": "What is the weather in Oslo?"}]
    first = respond(client, input=items, tools=tools, tool_choice="required", max_output_tokens=200)
    call = first.output[-1]
    assert (call.type, call.name) == ("function_call", "get_weather")
    items += [item.model_dump(mode="json") for item in first.output]
    items.append({"type": "function_call_output", "call_id": call.call_id, "output": "sunny"})
    second = respond(client, input=items, tools=tools)
    assert second.output_text
    assert second.usage.input_tokens > first.usage.input_tokens + first.usage.output_tokens - 3


@pytest.mark.slow
def test_a_schema_is_followed_in_both_apis(client: OpenAI) -> None:
    form = {"type": "json_schema", "name": "sum", "schema": SCHEMA, "strict": True}
    said = respond(client, text={"format": form}).output_text
    assert json.loads(said) in ({"answer": 5}, {"answer": 6})
    nested = {"type": "json_schema", "json_schema": {key: form[key] for key in ("name", "schema", "strict")}}
    choices = chat(client, response_format=nested, n=2).choices
    assert [json.loads(choice.message.content) for choice in choices] == [json.loads(said)] * 2


@pytest.mark.slow
def test_stop_strings_and_log_probabilities(client: OpenAI) -> None:
    assert chat(client, stop=[" ="]).choices[0].message.content == "2 + 3"
    choice = chat(client, logprobs=True, top_logprobs=2).choices[0]
    assert "".join(entry.token for entry in choice.logprobs.content) == choice.message.content
    assert all(len(entry.top_logprobs) == 2 for entry in choice.logprobs.content)
    streamed = [
        entry.token
        for chunk in chat(client, logprobs=True, stream=True)
        for entry in (chunk.choices[0].logprobs.content if chunk.choices[0].logprobs else ())
    ]
    assert streamed == [entry.token for entry in choice.logprobs.content]
    scored = respond(client, include=["message.output_text.logprobs"], top_logprobs=1)
    assert [entry.token for entry in scored.output[-1].content[0].logprobs] == streamed


def test_an_answer_that_is_cut_says_so(client: OpenAI) -> None:
    choice = chat(client, max_tokens=8).choices[0]
    assert (choice.finish_reason, choice.message.content) == ("length", None)
    assert choice.message.reasoning
    response = respond(client, max_output_tokens=8)
    assert (response.status, response.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert respond(client, max_output_tokens=10**6).status == "completed"


def test_what_cannot_be_answered_is_an_error_of_the_sdk(client: OpenAI) -> None:
    long = "word " * 3000
    with pytest.raises(openai.BadRequestError, match="the prompt has") as error:
        chat(client, messages=[{"role": "user", "content": long}])
    assert error.value.code == "context_length_exceeded"
    with pytest.raises(openai.BadRequestError, match="temperature"):
        respond(client, temperature=3)
    with pytest.raises(openai.NotFoundError, match="no model 'other'"):
        client.models.retrieve("other")
    assert [model.id for model in client.models.list()] == ["tiny"]
    assert client.models.retrieve("tiny").id == "tiny"
