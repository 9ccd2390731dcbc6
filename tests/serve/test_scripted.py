"""A server on an engine that says what a test wants: odd outputs, faults, limits, clients that leave."""

from __future__ import annotations

import json
import logging
import socket
import time
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gptoss_jax.engine.grammar import HeaderGuard
from gptoss_jax.openai_api.field_table import TABLE
from harmony import HarmonyEncoding
from tests.llm.fake_engine import FakeEngine, Script
from tests.serve.served import Scripted, serving

ANSWER = (
    "<|channel|>analysis<|message|>Secret thought.<|end|><|start|>assistant"
    "<|channel|>final<|message|>It is 5.<|return|>"
)
CALL = (
    "<|channel|>analysis<|message|>Secret thought.<|end|><|start|>assistant"
    '<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a":1}<|call|>'
)
LONG = "<|channel|>final<|message|>" + "and so on " * 400 + "<|return|>"
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}]
RESPONSE_TOOLS = [{"type": "function", **TOOLS[0]["function"]}]

ODD = {
    # What the model says; why the engine ended it; the chat message, its finish reason, and the kinds and the
    # status of the response.
    "a call on analysis": (
        "<|channel|>analysis to=functions.f <|constrain|>json<|message|>{}<|call|>",
        "stop",
        {"content": None, "calls": ["f"]},
        "tool_calls",
        (["function_call"], "completed"),
    ),
    "a call ended by return": (
        "<|channel|>commentary to=functions.f <|constrain|>json<|message|>{}<|return|>",
        "stop",
        {"content": None, "calls": ["f"]},
        "tool_calls",
        (["function_call"], "completed"),
    ),
    "only commentary": (
        "<|channel|>commentary<|message|>Let me see.<|return|>",
        "stop",
        {"content": "Let me see."},
        "stop",
        (["message"], "completed"),
    ),
    "cut inside analysis": (
        "<|channel|>analysis<|message|>Two and",
        "length",
        {"content": None, "reasoning": "Two and"},
        "length",
        (["reasoning"], "incomplete"),
    ),
    "cut inside a call": (
        '<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a',
        "length",
        {"content": None, "calls": ["f"]},
        "length",
        (["function_call"], "incomplete"),
    ),
    "a malformed header": (
        "<|channel|><|channel|>final oops to= <|message|>Recovered.<|return|>",
        "stop",
        {},
        "stop",
        (None, "completed"),
    ),
    "no harmony at all": ("Just text.<|return|>", "stop", {}, "stop", (None, "completed")),
    "nothing": ("<|return|>", "stop", {"content": None}, "stop", ([], "completed")),
}


@pytest.mark.parametrize("odd", ODD)
def test_odd_output_has_its_stated_outcome_in_both_apis_streamed_or_not(scripted, odd: str) -> None:
    text, reason, message, finish, (kinds, status) = ODD[odd]
    server = scripted(text, reason)
    choice = server.chat(tools=TOOLS).json()["choices"][0]
    assert choice["finish_reason"] == finish
    for name, value in message.items():
        if name == "calls":
            assert [call["function"]["name"] for call in choice["message"]["tool_calls"]] == value
        else:
            assert choice["message"].get(name) == value
    response = server.responses(tools=RESPONSE_TOOLS).json()
    assert response["status"] == status
    if kinds is not None:
        assert [item["type"] for item in response["output"]] == kinds
    for stream in (server.chat(stream=True), server.responses(stream=True)):
        assert stream.status_code == 200
        assert "error" not in {json.loads(data).get("type") for data in events_of(stream)}
    recovered = json.dumps([choice["message"], response["output"]])
    if odd in ("a malformed header", "no harmony at all"):
        assert recovered.count("Recovered." if "header" in odd else "Just text.") == 2


def events_of(answer: httpx.Response) -> list[str]:
    """The data of the events of a stream, but for the end of a chat stream."""
    lines = [line for line in answer.text.split("\n") if line.startswith("data: ")]
    return [line.removeprefix("data: ") for line in lines if line != "data: [DONE]"]


def test_every_event_is_whole_and_the_last_one_says_that_it_is(scripted) -> None:
    server = scripted(ANSWER)
    chat, responses = server.chat(stream=True).text, server.responses(stream=True).text
    assert chat.endswith("data: [DONE]\n\n")
    assert all(part.startswith("data: ") for part in chat.removesuffix("\n\n").split("\n\n"))
    for part in responses.removesuffix("\n\n").split("\n\n"):
        name, data = part.split("\n")
        assert name == "event: " + json.loads(data.removeprefix("data: "))["type"]
    assert chat.isascii()


def test_hidden_reasoning_never_leaves_the_server(scripted) -> None:
    server = scripted(ANSWER, settings={"hide_reasoning": True})
    for fields in ({}, {"stream": True}, {"reasoning": {"exclude": False}}, {"include_reasoning": True}):
        for said in (server.chat(**fields), server.responses(**fields)):
            assert said.status_code == 200
            assert "Secret" not in said.text


def test_logs_have_neither_prompts_nor_answers(scripted, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, logger="gptoss_jax")
    server = scripted(ANSWER)
    for fields in ({}, {"stream": True}, {"temperature": "Private"}, {"n": 0}):
        server.chat(**{"messages": [{"role": "user", "content": "Private matter"}], **fields})
        server.responses(**{"input": "Private matter", **fields})
    assert "POST /v1/responses: 200" in caplog.text
    for word in ("Private", "Secret", "It is 5"):
        assert word not in caplog.text


def test_the_field_of_the_reasoning_is_the_one_that_the_server_is_told(scripted) -> None:
    server = scripted(ANSWER, settings={"reasoning_field": "reasoning_content"})
    message = server.chat().json()["choices"][0]["message"]
    assert message["reasoning_content"] == "Secret thought."
    assert "reasoning" not in message
    deltas = [json.loads(data)["choices"][0]["delta"] for data in events_of(server.chat(stream=True))]
    assert any("reasoning_content" in delta for delta in deltas)
    assert not any("reasoning" in delta for delta in deltas)


def test_a_conversation_gives_the_same_prompt_through_both_apis(scripted) -> None:
    """Chat messages and replayed items, with the reasoning passed back."""
    server = scripted(CALL)
    messages: list[Any] = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Go."}]
    items: list[Any] = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Go."}]
    for _ in range(3):
        message = server.chat(messages=messages, tools=TOOLS).json()["choices"][0]["message"]
        chat_prompt = server.prompt()
        output = server.responses(input=items, tools=RESPONSE_TOOLS).json()["output"]
        assert server.prompt() == chat_prompt
        messages += [
            message,
            {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "7"},
        ]
        items += [*output, {"type": "function_call_output", "call_id": output[-1]["call_id"], "output": "7"}]


def test_what_is_wrong_is_an_error_object_with_its_status(scripted) -> None:
    server = scripted(ANSWER, settings={"max_body_bytes": 5000})
    post = server.http.post
    assert post("/chat/completions", content=b'{"messages": [').status_code == 422
    assert post("/chat/completions", content=b"[]").status_code == 422
    assert post("/chat/completions", content=b"{}").status_code == 422
    assert post("/responses", content=b"\xff").status_code == 422
    assert post("/responses", content=b"x" * 6000).status_code == 413
    assert post("/responses", content=iter([b"x" * 3000] * 2)).status_code == 413
    assert server.chat(messages=[]).status_code == 400
    assert server.http.get("/nothing").status_code == 404
    assert server.http.get("/responses").status_code == 405
    assert server.responses(previous_response_id="resp_1").status_code == 400
    for answer in (post("/chat/completions", content=b"{}"), server.http.get("/nothing")):
        assert answer.json()["error"].keys() == {"message", "type", "param", "code"}
        assert "\n" not in answer.json()["error"]["message"]


def test_without_a_key_only_the_health_is_told(scripted) -> None:
    server = scripted(ANSWER, settings={"api_keys": ("one", "two")})
    for header in ({}, {"Authorization": "Bearer three"}, {"Authorization": "Basic one"}, {"x-key": "one"}):
        answer = server.http.get("/models", headers=header)
        assert (answer.status_code, answer.json()["error"]["code"]) == (401, "invalid_api_key")
    assert server.http.get("/models", headers={"Authorization": "Bearer two"}).status_code == 200
    assert httpx.get(f"{server.url}/health", timeout=60).status_code == 200
    assert httpx.get(f"{server.url}/metrics", timeout=60).status_code == 401


def test_a_full_server_says_when_to_come_back(scripted) -> None:
    server = scripted(ANSWER, settings={"max_samples": 2})
    server.engine.gate.clear()
    with server.http.stream("POST", "/responses", json={"input": "Hi", "stream": True}) as first:
        assert first.status_code == 200
        refused = server.chat(n=2)
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "5")
        assert refused.json()["error"]["code"] == "server_busy"
        server.engine.gate.set()
        first.read()
    assert server.chat(n=2).status_code == 200


def test_clients_that_leave_free_their_places(scripted) -> None:
    server = scripted(LONG, chunk=1)
    for body in ({"stream": True}, {"stream": False}):
        for path in ("chat/completions", "responses"):
            field = {"messages": [{"role": "user", "content": "Hi"}]} if "chat" in path else {"input": "Hi"}
            leave(server.url, f"/v1/{path}", {**field, **body})
    end = time.monotonic() + 20
    while "gptoss_jax_cancelled_requests_total 4.0" not in (figures := server.figures()):
        assert time.monotonic() < end, figures
        time.sleep(0.01)
    server.wait_until_idle()
    assert "gptoss_jax_unfinished_samples 0.0" in server.figures()


def leave(url: str, path: str, body: dict[str, Any]) -> None:
    """Sends a request, waits a moment and hangs up."""
    host, port = url.removeprefix("http://").split(":")
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(data)}\r\n\r\n"
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(head.encode() + data)
        if body["stream"]:
            connection.recv(100)
        else:
            time.sleep(0.1)


def test_an_engine_that_fails_is_told_to_all_and_hangs_nobody(scripted) -> None:
    failing = {"fail_at": 3, "chunk": 1}
    answer = scripted(LONG, **failing).chat()
    assert answer.status_code == 503
    assert answer.json()["error"]["message"] == "the engine failed: ArithmeticError: the device is on fire"
    server = scripted(LONG, **failing)
    with pytest.raises(openai.APIError, match="on fire"):
        list(
            server.sdk.chat.completions.create(
                model="m", messages=[{"role": "user", "content": "Hi"}], stream=True
            )
        )
    assert server.responses().status_code == 503
    assert httpx.get(f"{server.url}/ready", timeout=60).status_code == 503
    server = scripted(LONG, **failing)
    *_, error, failed = map(json.loads, events_of(server.responses(stream=True)))
    assert (error["type"], failed["type"]) == ("error", "response.failed")
    assert failed["response"]["status"] == "failed"


def test_headers_are_limited_to_what_a_request_declares(scripted) -> None:
    server = scripted(ANSWER)
    for fields, recipients in (({}, ()), ({"tools": TOOLS}, ("functions.f",))):
        server.chat(**fields)
        (*_, request) = server.engine.requests.values()
        assert request.sampling.header_guard == HeaderGuard(recipients)
    server = scripted(ANSWER, settings={"header_guard": False})
    server.chat(tools=TOOLS)
    (request,) = server.engine.requests.values()
    assert request.sampling.header_guard is None


def test_unknown_tools_and_fields_are_ignored(scripted) -> None:
    server = scripted(ANSWER)
    tools = [{"type": "web_search"}, *RESPONSE_TOOLS, {"type": "namespace", "name": "x", "tools": []}]
    answer = server.responses(tools=tools, unheard_of=1, client_metadata={"a": 1}, store=False)
    assert answer.status_code == 200
    assert [tool["type"] for tool in answer.json()["tools"]] == ["function"]


def test_several_samples_are_several_choices(scripted, encoding: HarmonyEncoding) -> None:
    server = scripted(ANSWER)
    choices = server.chat(n=3).json()["choices"]
    assert [choice["index"] for choice in choices] == [0, 1, 2]
    chunks = [json.loads(data) for data in events_of(server.chat(n=3, stream=True))]
    ended = [chunk["choices"][0]["index"] for chunk in chunks if chunk["choices"][0]["finish_reason"]]
    assert sorted(ended) == [0, 1, 2]


NAMES = {
    form: sorted(
        {
            name.split(".")[0].split("[")[0]
            for fields in TABLE
            if form in fields.forms
            for name in fields.names
        }
    )
    for form in ("chat", "responses")
}
VALUES: list[Any] = [
    None, True, False, 0, 1, -1, 2**70, 1.5, -1e300, "", "x", "\ud800", "none", [], [None], [1], ["x"], [[]],
    [{}], {}, {"type": "function"}, {"x": None}, {"effort": 3}, {"format": []}, {"enabled": []},
    [{"type": "function", "function": 1}], [{"role": "user", "content": [None]}], {"name": "\ud800"},
]  # fmt: skip


@pytest.fixture(scope="module")
def answering(encoding: HarmonyEncoding) -> Iterator[Scripted]:
    """A server that answers whatever it can."""
    tokens = encoding.encode(ANSWER, allowed_special="all")
    engine = FakeEngine(lambda request, sample: Script(tokens), chunk=50, slots=64)
    with serving(engine, encoding, max_body_bytes=10_000) as url:
        server = Scripted(url, engine, encoding)
        yield server
        server.http.close()
        server.sdk.close()


def answers_without_fault(server: Scripted, form: str, fields: dict[str, Any]) -> None:
    body: dict[str, Any] = (
        {"messages": [{"role": "user", "content": "Hi"}]} if form == "chat" else {"input": "Hi"}
    )
    path = "/chat/completions" if form == "chat" else "/responses"
    answer = server.http.post(path, content=json.dumps({**body, **fields}).encode())
    assert answer.status_code in (200, 400, 422), (fields, answer.text)
    if answer.status_code != 200:
        error = answer.json()["error"]
        assert error["message"]
        assert "\n" not in error["message"]
    elif fields.get("stream") is True:
        assert events_of(answer)
    else:
        assert answer.json()["object"] in ("chat.completion", "response")


@settings(max_examples=250, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_field_of_any_type_is_a_fault_of_the_server(answering: Scripted, data: st.DataObject) -> None:
    form = data.draw(st.sampled_from(sorted(NAMES)))
    fields = data.draw(
        st.dictionaries(st.sampled_from(NAMES[form]), st.sampled_from(VALUES), min_size=1, max_size=3)
    )
    answers_without_fault(answering, form, fields)


@pytest.mark.slow
@pytest.mark.parametrize("form", sorted(NAMES))
def test_every_field_of_every_type_is_no_fault_of_the_server(answering: Scripted, form: str) -> None:
    for name in NAMES[form]:
        for value in VALUES:
            answers_without_fault(answering, form, {name: value})
