"""The events of a stream add up to the object that is no stream, and are what the published types say."""

from __future__ import annotations

import json
from typing import Any, get_args

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from openai.lib.streaming.chat import ChatCompletionStreamState
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from gptoss_jax.answers import Sample, SampleReader, read_sample
from gptoss_jax.engine.request import Completion, Request, SamplingParams, TokenLogprobs, Update
from gptoss_jax.openai_api import (
    ApiError,
    ChatStream,
    Prepared,
    ResponseMaker,
    ResponseStream,
    chat_completion,
    response,
)
from harmony import HarmonyEncoding
from tests.answers.completions import ANSWER, CALL

PIECES = [
    "<|channel|>analysis<|message|>",
    "<|channel|>commentary<|message|>",
    "<|channel|>final<|message|>",
    "<|channel|>commentary to=functions.f <|constrain|>json<|message|>",
    "<|channel|>analysis to=python code<|message|>",
    "<|message|>",
    "<|end|><|start|>assistant",
    "<|end|><|start|>user<|message|>",
    "<|start|>",
    "<|call|>",
    "<|return|>",
    "ab",
    " stop here",
    " é🙂",
    '{"a":1}',
    "\n\n",
]
EVENT = TypeAdapter(ResponseStreamEvent)
PUBLISHED_EVENTS = {
    get_args(member.model_fields["type"].annotation)[0]
    for member in get_args(get_args(ResponseStreamEvent)[0])
}


def prepared_for(form: Any, completions: list[Completion], *, scored: bool, shown: bool) -> Prepared:
    sampling = SamplingParams(n=len(completions), logprobs=1 if scored else None)
    return Prepared(form, {}, [], Request("x", [1], sampling), shown)


def completion_of(text: str, encoding: HarmonyEncoding, *, scored: bool, sample: int = 0, cut: bool = False):
    tokens = encoding.encode(text, allowed_special="all")
    logprobs = tuple(TokenLogprobs(-token / 7, ((token, -1.0),)) for token in tokens) if scored else None
    return Completion(
        "x", tokens, "length" if cut else "stop", 9, sample=sample, cached_tokens=4, logprobs=logprobs
    )


def streamed(
    completion: Completion, chunk: int, encoding: HarmonyEncoding, *, pieces: bool = True
) -> list[Any]:
    reader = SampleReader(encoding, completion.id, completion.sample, call_deltas=pieces)
    events = []
    for begin in range(0, max(len(completion.tokens), 1), chunk):
        end = begin + chunk
        scores = None if completion.logprobs is None else completion.logprobs[begin:end]
        last = completion if end >= len(completion.tokens) else None
        update = Update("x", completion.sample, completion.tokens[begin:end], scores, last)
        events += reader.read(update)
    return events


def added_up(chunks: list[dict[str, Any]]) -> dict[str, Any]:
    """The completion that the SDK makes of chunks, with what it says of reasoning."""
    state = ChatCompletionStreamState()
    for chunk in chunks:
        state.handle_chunk(ChatCompletionChunk.model_validate(chunk))
    return state.current_completion_snapshot.model_dump()


def said(completion: dict[str, Any]) -> list[Any]:
    """What a chat completion says, whatever the object it is read into adds to it."""
    found = []
    for choice in completion["choices"]:
        message = choice["message"]
        calls = [
            (call["id"], call["function"]["name"], call["function"]["arguments"], call.get("extra_content"))
            for call in message.get("tool_calls") or ()
        ]
        scores = (choice["logprobs"] or {}).get("content") or []
        found.append((message.get("content"), message.get("reasoning"), calls, scores))
        found.append((choice["index"], choice["finish_reason"]))
    return [*found, completion["usage"]]


texts = st.lists(st.sampled_from(PIECES), max_size=9).map("".join)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    texts=st.lists(texts, min_size=1, max_size=2),
    chunk=st.integers(1, 5),
    cut=st.booleans(),
    scored=st.booleans(),
    shown=st.booleans(),
    pieces=st.booleans(),
)
def test_chunks_add_up_to_the_completion(
    encoding: HarmonyEncoding,
    texts: list[str],
    chunk: int,
    cut: bool,
    scored: bool,
    shown: bool,
    pieces: bool,
) -> None:
    completions = [
        completion_of(text, encoding, scored=scored, sample=index, cut=cut)
        for index, text in enumerate(texts)
    ]
    prepared = prepared_for("chat", completions, scored=scored, shown=shown)
    names: dict[str, Any] = {"unique": "u", "model": "m", "created": 3}
    stream = ChatStream(prepared, encoding, include_usage=True, **names)
    chunks = stream.start()
    for completion in completions:
        for event in streamed(completion, chunk, encoding, pieces=pieces):
            chunks += stream.add(event)
    chunks += stream.end()
    samples = [read_sample(completion, encoding) for completion in completions]
    whole = chat_completion(prepared, samples, encoding, **names)
    ChatCompletion.model_validate(whole)
    assert said(added_up(chunks)) == said(ChatCompletion.model_validate(whole).model_dump())
    assert [chunk["choices"][0]["delta"] for chunk in chunks[: len(texts)]] == [{"role": "assistant"}] * len(
        texts
    )
    assert [bool(chunk["choices"]) for chunk in chunks] == [True] * (len(chunks) - 1) + [False]
    if not shown:
        assert "reasoning" not in json.dumps([chunk["choices"] for chunk in chunks])


def replayed(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The output that a client makes of the deltas alone, without looking at what is whole."""
    output: list[dict[str, Any]] = []
    for event in events:
        kind = event["type"].removeprefix("response.")
        if kind == "output_item.added":
            assert event["output_index"] == len(output)
            output.append(json.loads(json.dumps(event["item"])))
            continue
        if kind == "content_part.added":
            output[event["output_index"]]["content"].append(json.loads(json.dumps(event["part"])))
        if "item_id" in event:
            assert output[event["output_index"]]["id"] == event["item_id"]
        if kind in ("reasoning_text.delta", "output_text.delta"):
            part = output[event["output_index"]]["content"][event["content_index"]]
            part["text"] += event["delta"]
            if "logprobs" in event:
                part["logprobs"] += event["logprobs"]
        if kind == "reasoning_summary_part.added":
            assert event["summary_index"] == len(output[event["output_index"]]["summary"])
            output[event["output_index"]]["summary"].append(dict(event["part"]))
        if kind == "reasoning_summary_text.delta":
            output[event["output_index"]]["summary"][event["summary_index"]]["text"] += event["delta"]
        if kind == "reasoning_summary_part.done":
            assert output[event["output_index"]]["summary"][event["summary_index"]] == event["part"]
        if kind == "function_call_arguments.delta":
            output[event["output_index"]]["arguments"] += event["delta"]
        if kind in ("reasoning_text.done", "output_text.done"):
            assert output[event["output_index"]]["content"][0]["text"] == event["text"]
        if kind == "content_part.done":
            assert output[event["output_index"]]["content"][0] == event["part"]
        if kind == "output_item.done":
            item = output[event["output_index"]]
            item["status"] = event["item"]["status"]
            if "encrypted_content" in event["item"]:
                item["encrypted_content"] = event["item"]["encrypted_content"]
            assert item == event["item"]
    return output


def response_events(
    completion: Completion,
    chunk: int,
    maker: ResponseMaker,
    encoding: HarmonyEncoding,
    *,
    pieces: bool = True,
) -> list[dict[str, Any]]:
    stream = ResponseStream(maker)
    events = json.loads(json.dumps(stream.start()))
    for event in streamed(completion, chunk, encoding, pieces=pieces):
        events += json.loads(json.dumps(stream.add(event)))  # as it is when it is sent
    return events


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    text=texts,
    chunk=st.integers(1, 5),
    cut=st.booleans(),
    scored=st.booleans(),
    shown=st.booleans(),
    sealed=st.booleans(),
    pieces=st.booleans(),
)
def test_response_events_add_up_to_the_response(
    encoding: HarmonyEncoding,
    text: str,
    chunk: int,
    cut: bool,
    scored: bool,
    shown: bool,
    sealed: bool,
    pieces: bool,
) -> None:
    completion = completion_of(text, encoding, scored=scored, cut=cut)
    prepared = prepared_for("responses", [completion], scored=scored, shown=shown)
    seal = (lambda thought: thought[::-1]) if sealed else None
    maker = ResponseMaker(prepared, encoding, "u", "m", 3, seal=seal)
    events = response_events(completion, chunk, maker, encoding, pieces=pieces)
    whole = maker.whole(read_sample(completion, encoding))
    Response.model_validate(whole)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    for event in events:
        assert event["type"] in PUBLISHED_EVENTS
        EVENT.validate_python(event)
    assert [event["type"] for event in events[:2]] == ["response.created", "response.in_progress"]
    assert events[-1] == {
        "type": "response.incomplete" if cut else "response.completed",
        "sequence_number": len(events) - 1,
        "response": whole,
    }
    assert replayed(events) == whole["output"]
    if not shown:
        assert "reasoning_text" not in json.dumps(events)


def test_an_answer_with_a_call_has_the_published_sequence(encoding: HarmonyEncoding) -> None:
    completion = completion_of(CALL, encoding, scored=False)
    maker = ResponseMaker(
        prepared_for("responses", [completion], scored=False, shown=True), encoding, *"um", 3
    )
    events = response_events(completion, 1000, maker, encoding)
    kinds = [event["type"].removeprefix("response.") for event in events]
    assert kinds == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "reasoning_text.delta",
        "reasoning_text.done",
        "content_part.done",
        "output_item.done",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "output_item.added",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "output_item.done",
        "completed",
    ]


def test_arguments_come_as_they_are_drawn(encoding: HarmonyEncoding) -> None:
    completion = completion_of(CALL, encoding, scored=False)
    prepared = prepared_for("responses", [completion], scored=False, shown=True)
    events = response_events(completion, 1, ResponseMaker(prepared, encoding, *"um", 3), encoding)
    kinds = [event["type"].removeprefix("response.") for event in events]
    added = max(index for index, kind in enumerate(kinds) if kind == "output_item.added")
    arguments = [kind.removeprefix("function_call_arguments.") for kind in kinds[added + 1 : -2]]
    assert arguments == ["delta"] * (len(arguments) - 1) + ["done"]
    assert len(arguments) > 3
    chat = ChatStream(prepared, encoding, unique="u", model="m", created=3)
    deltas = [
        chunk["choices"][0]["delta"]
        for event in streamed(completion, 1, encoding)
        for chunk in chat.add(event)
    ]
    first, *others = [delta["tool_calls"][0] for delta in deltas if "tool_calls" in delta]
    assert first.keys() == {"index", "id", "type", "function"}
    assert first["function"]["arguments"] == ""
    assert all(other.keys() == {"index", "function"} for other in others)
    assert len(others) == len(arguments) - 1


def test_calls_of_built_in_tools_come_whole(encoding: HarmonyEncoding) -> None:
    completion = completion_of(
        "<|channel|>analysis to=python code<|message|>print(1 + 2)<|call|>", encoding, scored=False
    )
    prepared = prepared_for("responses", [completion], scored=False, shown=True)
    events = response_events(completion, 1, ResponseMaker(prepared, encoding, *"um", 3), encoding)
    assert [event["delta"] for event in events if "delta" in event] == ["print(1 + 2)"]


def test_a_failure_in_mid_stream_is_an_error_and_a_failed_response(encoding: HarmonyEncoding) -> None:
    completion = completion_of(ANSWER, encoding, scored=False)
    maker = ResponseMaker(
        prepared_for("responses", [completion], scored=False, shown=True), encoding, *"um", 3
    )
    stream = ResponseStream(maker)
    events = stream.start() + stream.add(streamed(completion, 1000, encoding)[0])
    events += stream.fail(ApiError("engine_failed", "the engine failed: on fire", status=500))
    for event in events:
        EVENT.validate_python(event)
    error, failed = events[-2:]
    assert (error["type"], error["message"]) == ("error", "the engine failed: on fire")
    assert failed["response"]["status"] == "failed"
    assert failed["response"]["error"] == {"code": "server_error", "message": "the engine failed: on fire"}


@pytest.mark.parametrize(
    ("text", "cut", "kinds", "status"),
    [
        ("<|channel|>analysis<|message|>Two and", True, ["reasoning"], "incomplete"),
        ("<|channel|>commentary<|message|>Only this.<|return|>", False, ["message"], "completed"),
        (
            "<|channel|>analysis to=functions.f <|constrain|>json<|message|>{}<|call|>",
            False,
            ["function_call"],
            "completed",
        ),
        (
            "<|channel|>commentary to=functions.f <|constrain|>json<|message|>{}<|return|>",
            False,
            ["function_call"],
            "completed",
        ),
        (
            '<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a',
            True,
            ["function_call"],
            "incomplete",
        ),
        ("<|channel|><|channel|>oops<|message|>Recovered.<|return|>", False, ["reasoning"], "completed"),
        ("<|return|>", False, [], "completed"),
    ],
    ids=[
        "in analysis",
        "only commentary",
        "call on analysis",
        "call that returns",
        "cut call",
        "header",
        "nothing",
    ],
)
def test_odd_completions_have_stated_outcomes(
    encoding: HarmonyEncoding, text: str, cut: bool, kinds: list[str], status: str
) -> None:
    completion = completion_of(text, encoding, scored=False, cut=cut)
    sample: Sample = read_sample(completion, encoding)
    prepared = prepared_for("responses", [completion], scored=False, shown=True)
    answer = response(prepared, sample, encoding, unique="u", model="m", created=3)
    assert [item["type"] for item in answer["output"]] == kinds
    assert answer["status"] == status
    assert all(item["status"] == "completed" for item in answer["output"][:-1])
    assert [item["status"] for item in answer["output"][-1:]] == [status] * bool(kinds)


def test_the_field_of_the_reasoning_has_the_name_that_is_asked_for(encoding: HarmonyEncoding) -> None:
    completion = completion_of(ANSWER, encoding, scored=False)
    prepared = prepared_for("chat", [completion], scored=False, shown=True)
    names: dict[str, Any] = {
        "unique": "u",
        "model": "m",
        "created": 3,
        "reasoning_field": "reasoning_content",
    }
    sample = read_sample(completion, encoding)
    (choice,) = chat_completion(prepared, [sample], encoding, **names)["choices"]
    assert choice["message"]["reasoning_content"] == "Two and three."
    assert "reasoning" not in choice["message"]
    stream = ChatStream(prepared, encoding, **names)
    deltas = [
        chunk["choices"][0]["delta"]
        for event in streamed(completion, 1000, encoding)
        for chunk in stream.add(event)
    ]
    assert deltas == [{"reasoning_content": "Two and three."}, {"content": "It is 5."}, {}]
