"""OpenAI's Node SDK: both APIs, and every stream adds up to the object that its client ends with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.clients.installed import Node

pytestmark = pytest.mark.slow
PROGRAM = Path(__file__).parent / "programs" / "sdk.mjs"
PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string", "enum": ["Oslo", "Lima"]}},
    "required": ["city"],
    "additionalProperties": False,
}
WEATHER = {"name": "get_weather", "description": "Get the weather.", "parameters": PARAMETERS, "strict": True}
SCHEMA = {
    "type": "object",
    "properties": {"answer": {"type": "integer", "enum": [5, 6]}},
    "required": ["answer"],
    "additionalProperties": False,
}
SUM, OSLO = "What is 2 + 3?", "What is the weather in Oslo?"
FORMAT = {"name": "sum", "schema": SCHEMA, "strict": True}

CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    # What is asked, and what differs between the two APIs.
    "an answer": (SUM, {}, {}),
    "a call": (
        OSLO,
        {"tools": [{"type": "function", "function": WEATHER}], "tool_choice": "required"},
        {"tools": [{"type": "function", **WEATHER}], "tool_choice": "required"},
    ),
    "a schema": (
        SUM,
        {"response_format": {"type": "json_schema", "json_schema": FORMAT}},
        {"text": {"format": {"type": "json_schema", **FORMAT}}},
    ),
    "no reasoning": (SUM, {"reasoning": {"exclude": True}}, {"reasoning": {"exclude": True}}),
    "a cut": (SUM, {"max_tokens": 8}, {"max_output_tokens": 8}),
    "log-probabilities": (
        SUM,
        {"logprobs": True, "top_logprobs": 2},
        {"include": ["message.output_text.logprobs"], "top_logprobs": 2},
    ),
    "encrypted reasoning": (SUM, {}, {"include": ["reasoning.encrypted_content"], "store": False}),
}


def bodies() -> list[dict[str, Any]]:
    common = {"model": "tiny", "temperature": 0}
    sent = []
    for asked, chat, responses in CASES.values():
        message = {"role": "user", "content": asked}
        sent.append({"api": "chat", "body": {"max_tokens": 200, **common, "messages": [message], **chat}})
        sent.append(
            {"api": "responses", "body": {"max_output_tokens": 200, **common, "input": asked, **responses}}
        )
    return sent


@pytest.fixture(scope="module")
def done(node_modules: Path, served_url: str, tmp_path_factory: pytest.TempPathFactory) -> dict[Any, Any]:
    """What came of every case, by its name and API. One process sends them all."""
    node = Node(node_modules, tmp_path_factory.mktemp("sdk"))
    came = node.run(PROGRAM, served_url, bodies())
    names = [(name, api) for name in CASES for api in ("chat", "responses")]
    return dict(zip(names, came, strict=True))


def chat_choice_of(chunks: list[dict[str, Any]]) -> dict[str, Any]:
    """The one choice of a chat stream, added up as the API's reference says."""
    message: dict[str, Any] = {"role": None, "content": None, "reasoning": None, "calls": {}}
    scored: list[Any] = []
    finish = None
    for chunk in chunks:
        for choice in chunk["choices"]:
            delta = choice["delta"]
            message["role"] = message["role"] or delta.get("role")
            for name in ("content", "reasoning"):
                if delta.get(name) is not None:
                    message[name] = (message[name] or "") + delta[name]
            for part in delta.get("tool_calls", ()):
                call = message["calls"].setdefault(part["index"], {"id": None, "name": "", "arguments": ""})
                call["id"] = call["id"] or part.get("id")
                for name in ("name", "arguments"):
                    call[name] += part["function"].get(name) or ""
            scored += (choice.get("logprobs") or {}).get("content") or []
            assert finish is None or choice["finish_reason"] is None
            finish = finish or choice["finish_reason"]
    return {**message, "calls": list(message["calls"].values()), "finish_reason": finish, "scored": scored}


def chat_choice_in(choice: dict[str, Any]) -> dict[str, Any]:
    """The same of a choice that came whole."""
    message = choice["message"]
    calls = [{"id": call["id"], **call["function"]} for call in message.get("tool_calls") or ()]
    return {
        "role": message["role"],
        "content": message.get("content"),
        "reasoning": message.get("reasoning"),
        "calls": [{name: call[name] for name in ("id", "name", "arguments")} for call in calls],
        "finish_reason": choice["finish_reason"],
        "scored": (choice.get("logprobs") or {}).get("content") or [],
    }


def without_ids(choice: dict[str, Any]) -> dict[str, Any]:
    return {**choice, "calls": [{**call, "id": None} for call in choice["calls"]]}


@pytest.mark.parametrize("name", CASES)
def test_chat_chunks_add_up_to_the_final_completion(done: dict[Any, Any], name: str) -> None:
    came = done[name, "chat"]
    added = chat_choice_of(came["events"])
    (whole,), (final,) = came["whole"]["choices"], came["final"]["choices"]
    assert without_ids(added) == without_ids(chat_choice_in(whole))
    # The SDK's own sum. It keeps the last piece of fields that it does not know, such as the reasoning.
    assert {**added, "reasoning": 0} == {**chat_choice_in(final), "reasoning": 0}
    assert came["events"][-1]["usage"] == came["final"]["usage"]
    for name in ("prompt_tokens", "completion_tokens", "total_tokens", "completion_tokens_details"):
        assert came["whole"]["usage"][name] == came["final"]["usage"][name]


def output_of(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The output of a stream of Responses, added up from its smallest events alone."""
    items: list[dict[str, Any]] = []
    for event in events:
        kind, place = event["type"], event.get("output_index")
        if kind == "response.output_item.added":
            assert place == len(items)
            items.append(
                {"type": event["item"]["type"], "id": event["item"]["id"], "texts": [], "arguments": ""}
            )
        elif kind == "response.content_part.added":
            assert event["content_index"] == len(items[place]["texts"])
            items[place]["texts"].append("")
        elif kind in ("response.output_text.delta", "response.reasoning_text.delta"):
            items[place]["texts"][event["content_index"]] += event["delta"]
        elif kind == "response.function_call_arguments.delta":
            items[place]["arguments"] += event["delta"]
    return items


def output_in(response: dict[str, Any]) -> list[dict[str, Any]]:
    """The same of a response that came whole."""
    return [
        {
            "type": item["type"],
            "id": item["id"],
            "texts": [part["text"] for part in item.get("content") or ()],
            "arguments": item.get("arguments", ""),
        }
        for item in response["output"]
    ]


def normal(value: Any) -> Any:
    """An object of the API without what is new in every answer."""
    if isinstance(value, dict):
        volatile = ("id", "call_id", "created_at", "encrypted_content", "cached_tokens", "output_parsed")
        return {name: normal(inner) for name, inner in value.items() if name not in volatile}
    return [normal(inner) for inner in value] if isinstance(value, list) else value


def without_parsed(value: Any) -> Any:
    """An object without what the SDK adds to it."""
    if isinstance(value, dict):
        added = ("parsed", "parsed_arguments", "output_parsed", "output_text")
        return {name: without_parsed(inner) for name, inner in value.items() if name not in added}
    return [without_parsed(inner) for inner in value] if isinstance(value, list) else value


@pytest.mark.parametrize("name", CASES)
def test_events_add_up_to_the_final_response(done: dict[Any, Any], name: str) -> None:
    came = done[name, "responses"]
    events, final = came["events"], came["final"]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert output_of(events) == output_in(final)
    ended = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert without_parsed(ended) == without_parsed(final["output"])
    assert without_parsed(events[-1]["response"]) == without_parsed(final)
    assert events[-1]["type"] == f"response.{final['status']}"
    for place, snapshot in came["snapshots"].items():
        item = output_in(final)[int(place)]
        assert snapshot == (item["arguments"] or item["texts"][0])
    assert normal(without_parsed(final)) == normal(without_parsed(came["whole"]))


def test_each_case_is_what_it_is_called(done: dict[Any, Any]) -> None:
    """The comparisons above would hold for empty answers as well."""

    def message(name: str) -> Any:
        return done[name, "chat"]["final"]["choices"][0]["message"]

    def kinds(name: str) -> list[str]:
        return [item["type"] for item in done[name, "responses"]["final"]["output"]]

    assert message("an answer")["content"] == "2 + 3 = 5."
    assert kinds("an answer") == ["reasoning", "message"]
    assert message("a call")["tool_calls"][0]["function"]["name"] == "get_weather"
    assert kinds("a call")[-1] == "function_call"
    assert json.loads(message("a schema")["content"])["answer"] in (5, 6)
    assert json.loads(done["a schema", "responses"]["final"]["output_text"])["answer"] in (5, 6)
    assert "reasoning" not in message("no reasoning")
    assert kinds("no reasoning") == ["message"]
    assert done["a cut", "responses"]["final"]["status"] == "incomplete"
    assert done["log-probabilities", "chat"]["final"]["choices"][0]["logprobs"]["content"]
    part = done["log-probabilities", "responses"]["final"]["output"][-1]["content"][0]
    assert part["logprobs"][0]["top_logprobs"]
    assert done["encrypted reasoning", "responses"]["final"]["output"][0]["encrypted_content"]
