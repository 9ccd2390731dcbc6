"""Built-in tools that the server runs: rounds, items, events, usage, limits, faults."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from gptoss_jax.serve.sealing import Sealer
from gptoss_jax.serve.store import ResponseStore
from gptoss_jax.serve.tool_loop import ToolLimits
from harmony import HarmonyEncoding
from tests.serve.fake_tools import FakeTool, engine_of_rounds
from tests.serve.served import Scripted, serving
from tests.serve.test_scripted import RESPONSE_TOOLS, TOOLS, events_of

THINK = "<|channel|>analysis<|message|>Secret thought.<|end|><|start|>assistant"
CODE = "<|channel|>analysis to=python code<|message|>print(6*7)<|call|>"
PYTHON = {
    "on analysis": THINK + CODE,
    "on commentary": THINK + "<|channel|>commentary to=python code<|message|>print(6*7)<|call|>",
    "recipient first": THINK + " to=python<|channel|>analysis code<|message|>print(6*7)<|call|>",
    "constrained": THINK + "<|channel|>commentary to=python <|constrain|>code<|message|>print(6*7)<|call|>",
    "without a type": "<|channel|>analysis to=python<|message|>print(6*7)<|call|>",
    "after a preamble": "<|channel|>commentary<|message|>Let me see.<|end|><|start|>assistant" + CODE,
    "ended by return": THINK + CODE.replace("<|call|>", "<|return|>"),
}
SEARCH = THINK + '<|channel|>analysis to=browser.search<|message|>{"query":"cats"}<|call|>'
OPEN = '<|channel|>analysis to=browser.open code<|message|>{"id":"file:cats.txt"}<|call|>'
FIND = '<|channel|>analysis to=browser.find code<|message|>{"pattern":"whiskers"}<|call|>'
ANSWER = (
    "<|channel|>analysis<|message|>Another secret.<|end|><|start|>assistant"
    "<|channel|>final<|message|>It is 42.<|return|>"
)
CALL = '<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a":1}<|call|>'
CHAT_TOOLS = [{"type": "python"}, {"type": "browser"}]
ITEM_TOOLS: list[Any] = [{"type": "code_interpreter", "container": {"type": "auto"}}, {"type": "web_search"}]
EVENTS: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)

Serve = Callable[..., Scripted]


@pytest.fixture
def served(encoding: HarmonyEncoding) -> Iterator[Serve]:
    """Starts servers with tools, whose engine says a text in each round."""
    with contextlib.ExitStack() as servers:

        def start(
            rounds: Sequence[str] | Callable[[int, int], str],
            tools: Sequence[FakeTool] | None = None,
            *,
            store: Any = None,
            sealer: Any = None,
            engine: dict[str, Any] | None = None,
            **settings: Any,
        ) -> Scripted:
            fake = engine_of_rounds(rounds, encoding, **engine or {})
            named = [FakeTool(), FakeTool("browser")] if tools is None else tools
            url = servers.enter_context(serving(fake, encoding, store, sealer, named, **settings))
            started = Scripted(url, fake, encoding)
            servers.callback(started.http.close)
            servers.callback(started.sdk.close)
            return started

        yield start


def whole_and_streamed(server: Scripted, **fields: Any) -> dict[str, Any]:
    """The response to a request, which the SDK's types accept, and to which its stream adds up."""
    response = server.responses(**fields).json()
    Response.model_validate(response, strict=False)
    assert response["usage"]["total_tokens"] == (
        response["usage"]["input_tokens"] + response["usage"]["output_tokens"]
    )
    events = [json.loads(data) for data in events_of(server.responses(**fields, stream=True))]
    adds_up(events, response)
    return response


def adds_up(events: list[dict[str, Any]], response: dict[str, Any]) -> None:
    """Events that are the published ones add up to a response."""
    for event in events:
        EVENTS.validate_python(event)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    kinds = [event["type"] for event in events]
    begun = [kind for kind in kinds[:3] if kind != "response.queued"]  # of a background response
    assert begun[:2] == ["response.created", "response.in_progress"]
    assert kinds.count("response.created") == 1
    assert kinds[-1] == f"response.{response['status']}"
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert without_ids(done) == without_ids(response["output"])
    assert without_ids(events[-1]["response"]["output"]) == without_ids(done)
    assert events[-1]["response"]["usage"] == response["usage"]
    for index, item in enumerate(done):
        own = [event for event in events if event.get("output_index") == index]
        assert own[0]["type"] == "response.output_item.added"
        assert own[-1]["type"] == "response.output_item.done"
        assert {event["item_id"] for event in own[1:-1]} == {item["id"]}
        deltas = "".join(event["delta"] for event in own if "delta" in event)
        text = item.get("code") or item.get("arguments")
        if item["type"] in ("reasoning", "message"):
            text = "".join(part["text"] for part in item.get("content", ()))
        assert deltas == (text or "")


def without_ids(items: Any) -> Any:
    """The items without what differs from one request to another."""
    if isinstance(items, list):
        return [without_ids(item) for item in items]
    if not isinstance(items, dict):
        return items
    hidden = ("id", "container_id", "call_id", "encrypted_content")
    return {name: without_ids(value) for name, value in items.items() if name not in hidden}


@pytest.mark.parametrize("form", PYTHON)
def test_code_is_run_and_the_answer_follows_in_both_apis(served: Serve, form: str) -> None:
    tool = FakeTool(answer=lambda text: "42\n")
    server = served([PYTHON[form], ANSWER], [tool])
    include = ["code_interpreter_call.outputs"]
    response = whole_and_streamed(server, tools=ITEM_TOOLS, include=include)
    calls = [item for item in response["output"] if item["type"] == "code_interpreter_call"]
    assert [(call["code"], call["status"]) for call in calls] == [("print(6*7)", "completed")]
    assert calls[0]["outputs"] == [{"type": "logs", "logs": "42\n"}]
    assert response["output"][-1]["content"][0]["text"] == "It is 42."
    assert response["status"] == "completed"
    assert "42\n<|end|><|start|>assistant" in server.decoded_prompt()
    assert [text for _, text in tool.log] == ["print(6*7)"] * 2
    chat = server.chat(tools=CHAT_TOOLS).json()
    ChatCompletion.model_validate(chat)
    (choice,) = chat["choices"]
    assert choice["finish_reason"] == "stop"
    assert "It is 42." in choice["message"]["content"]
    assert "tool_calls" not in choice["message"]
    assert "Another secret." in choice["message"]["reasoning"]
    server.wait_until_idle()
    assert tool.closed == [1, 2, 3]


def test_the_browser_is_asked_by_any_of_its_types(served: Serve) -> None:
    tool = FakeTool("browser", lambda text: "[0] cats")
    server = served([SEARCH, OPEN, FIND, ANSWER], [tool])
    for kind in ("web_search", "web_search_preview", "browser_search", "browser"):
        response = whole_and_streamed(server, tools=[{"type": kind}])
        actions = [item["action"] for item in response["output"] if item["type"] == "web_search_call"]
        assert actions == [
            {"type": "search", "query": "cats", "queries": ["cats"]},
            {"type": "open_page", "url": "file:cats.txt"},
            {"type": "find_in_page", "pattern": "whiskers", "url": ""},
        ]
    assert len({session for session, _ in tool.log}) == 8  # each request has a session of its own


def test_the_events_of_a_call_are_those_that_are_published(served: Serve) -> None:
    server = served([THINK + CODE, SEARCH, ANSWER])
    events = [json.loads(data) for data in events_of(server.responses(tools=ITEM_TOOLS, stream=True))]
    kinds = [event["type"].removeprefix("response.") for event in events]
    at = kinds.index("code_interpreter_call.in_progress")
    assert kinds[at - 1 : at + 6] == [
        "output_item.added",
        "code_interpreter_call.in_progress",
        "code_interpreter_call_code.delta",
        "code_interpreter_call_code.done",
        "code_interpreter_call.interpreting",
        "code_interpreter_call.completed",
        "output_item.done",
    ]
    at = kinds.index("web_search_call.in_progress")
    assert kinds[at - 1 : at + 4] == [
        "output_item.added",
        "web_search_call.in_progress",
        "web_search_call.searching",
        "web_search_call.completed",
        "output_item.done",
    ]


def test_a_stored_response_is_streamed_again_with_its_calls(served: Serve, tmp_path: Path) -> None:
    store = ResponseStore(tmp_path / "store", max_bytes=1 << 20, max_age_seconds=1e6)
    server = served([THINK + CODE, SEARCH, ANSWER], store=store)
    for background in (False, True):
        include = ["code_interpreter_call.outputs"]
        id = server.responses(tools=ITEM_TOOLS, include=include, background=background).json()["id"]
        response = server.wait_for(id)
        assert [item["type"] for item in response["output"]] == [
            "reasoning",
            "code_interpreter_call",
            "reasoning",
            "web_search_call",
            "reasoning",
            "message",
        ]
        stream = server.http.get(f"/responses/{id}", params={"stream": "true"})
        adds_up([json.loads(data) for data in events_of(stream)], response)


def test_a_round_begins_where_the_last_one_ended(served: Serve, encoding: HarmonyEncoding) -> None:
    """So that the prefix cache can serve it."""
    for form, text in PYTHON.items():
        server = served([text, ANSWER])
        assert server.responses(tools=ITEM_TOOLS).status_code == 200
        first, second = (request.prompt for request in server.engine.requests.values())
        spoken = first + encoding.encode(text, allowed_special="all")
        if form != "ended by return":
            assert second[: len(spoken)] == spoken


def test_calls_are_counted(served: Serve) -> None:
    server = served([CODE, SEARCH, ANSWER])
    assert server.chat(tools=CHAT_TOOLS, n=2).status_code == 200
    for tool in ("python", "browser"):
        figure = f'gptoss_jax_tool_calls_total{{outcome="answered",tool="{tool}"}} 2.0'
        assert figure in server.figures()


def test_only_what_is_asked_for_and_enabled_is_declared_and_may_be_called(served: Serve) -> None:
    server = served([ANSWER], [FakeTool()])
    for tools, declared in ((None, False), ([{"type": "browser"}], False), ([{"type": "python"}], True)):
        server.chat(tools=tools)
        (*_, request) = server.engine.requests.values()
        assert ("python" in request.sampling.header_guard.recipients) is declared
        assert ("Use this tool to execute Python code" in server.decoded_prompt()) is declared
    tools = [{"type": "python"}, *TOOLS]
    for choice, recipients in (
        ("none", ()),
        ({"type": "function", "function": {"name": "f"}}, None),
        (
            {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [{"type": "python"}]}},
            ("python",),
        ),
        ("auto", ("python", "functions.f")),
    ):
        server.chat(tools=tools, tool_choice=choice)
        (*_, request) = server.engine.requests.values()
        guard = request.sampling.header_guard
        assert (None if request.sampling.grammar else guard.recipients) == recipients


def test_a_required_call_is_required_once(served: Serve) -> None:
    server = served([CODE, ANSWER])
    for choice in ("required", {"type": "code_interpreter"}):
        assert server.responses(tools=[{"type": "code_interpreter"}], tool_choice=choice).status_code == 200
        first, second = list(server.engine.requests.values())[-2:]
        assert first.sampling.grammar.must_call
        assert first.sampling.grammar.tools == ("python",)
        assert second.sampling.grammar is None
    answer = server.responses(
        tools=[{"type": "code_interpreter"}], tool_choice={"type": "web_search_preview"}
    )
    assert answer.status_code == 400


def test_a_call_of_the_clients_function_ends_the_rounds(served: Serve) -> None:
    server = served([THINK + CODE, CALL])
    response = whole_and_streamed(server, tools=[*ITEM_TOOLS, *RESPONSE_TOOLS])
    kinds = [item["type"] for item in response["output"]]
    assert kinds == ["reasoning", "code_interpreter_call", "function_call"]
    chat = server.chat(tools=[*CHAT_TOOLS, *TOOLS]).json()["choices"][0]
    assert chat["finish_reason"] == "tool_calls"
    assert [call["function"]["name"] for call in chat["message"]["tool_calls"]] == ["f"]


def test_usage_is_that_of_all_rounds(served: Serve, encoding: HarmonyEncoding) -> None:
    texts = [THINK + CODE, THINK + CODE, ANSWER]
    server = served(texts)
    usage = server.responses(tools=ITEM_TOOLS).json()["usage"]
    prompts = [len(request.prompt) for request in server.engine.requests.values()]
    assert len(prompts) == 3
    assert usage["input_tokens"] == sum(prompts)
    assert usage["input_tokens_details"]["cached_tokens"] == sum(count // 2 for count in prompts)
    spoken = [encoding.encode(text, allowed_special="all") for text in texts]
    assert usage["output_tokens"] == sum(map(len, spoken))
    thoughts = ("Secret thought.", "print(6*7)", "Secret thought.", "print(6*7)", "Another secret.")
    reasoning = sum(len(encoding.encode(text)) for text in thoughts)
    assert usage["output_tokens_details"]["reasoning_tokens"] == reasoning


def test_each_sample_has_rounds_and_a_session_of_its_own(served: Serve) -> None:
    def rounds(sample: int, number: int) -> str:
        return ANSWER if number > sample else THINK + CODE.replace("6*7", str(sample))

    tool = FakeTool()
    server = served(rounds, [tool])
    chat = server.chat(tools=CHAT_TOOLS, n=3).json()
    assert [choice["finish_reason"] for choice in chat["choices"]] == ["stop"] * 3
    assert sorted(text for _, text in tool.log) == sorted(
        f"print({sample})" for sample in range(3) for _ in range(sample + 1)
    )
    assert len({session for session, _ in tool.log}) == 3
    chunks = [json.loads(data) for data in events_of(server.chat(tools=CHAT_TOOLS, n=3, stream=True))]
    for chunk in chunks:
        ChatCompletionChunk.model_validate(chunk)
    for index, choice in enumerate(chat["choices"]):
        deltas = [one["delta"] for chunk in chunks for one in chunk["choices"] if one["index"] == index]
        for field in ("content", "reasoning"):
            assert "".join(delta.get(field, "") for delta in deltas) == choice["message"][field]


def test_the_limits_of_tokens_and_calls_hold_for_all_rounds(served: Serve, encoding: HarmonyEncoding) -> None:
    tool = FakeTool()
    server = served([THINK + CODE], [tool], tool_limits=ToolLimits(calls=2, seconds=5))
    response = whole_and_streamed(server, tools=ITEM_TOOLS)
    assert (response["status"], len(tool.log)) == ("incomplete", 4)  # the engine calls where it must not
    assert [item.get("status") for item in response["output"]][-1] == "incomplete"
    *_, last = server.engine.requests.values()
    assert "python" not in last.sampling.header_guard.recipients
    length = len(encoding.encode(THINK + CODE, allowed_special="all"))
    for most, calls, generated in ((length, 0, length), (length + 4, 1, length + 4)):
        tool.log.clear()
        response = server.responses(tools=ITEM_TOOLS, max_output_tokens=most).json()
        assert response["status"] == "incomplete"
        assert len(tool.log) == calls
        assert response["usage"]["output_tokens"] == generated


def test_a_result_that_does_not_fit_ends_the_answer(served: Serve) -> None:
    server = served([CODE, ANSWER], [FakeTool(answer=lambda text: "many words " * 3000)])
    response = whole_and_streamed(server, tools=ITEM_TOOLS)
    assert response["status"] == "incomplete"
    assert response["output"][-1]["status"] == "completed"
    assert server.chat(tools=CHAT_TOOLS).json()["choices"][0]["finish_reason"] == "length"


def test_hidden_reasoning_hides_code_and_results_too(served: Serve) -> None:
    tools = [FakeTool(answer=lambda text: "Secret result"), FakeTool("browser", lambda text: "Secret page")]
    sealer = Sealer(None)
    rounds = [THINK + CODE, SEARCH, OPEN, FIND, ANSWER]
    server = served(rounds, tools, sealer=sealer, hide_reasoning=True)
    include = ["code_interpreter_call.outputs", "reasoning.encrypted_content"]
    for fields in ({}, {"stream": True}, {"include": include}, {"include": include, "stream": True}):
        for said in (
            server.chat(tools=CHAT_TOOLS, stream=fields.get("stream", False)),
            server.responses(tools=ITEM_TOOLS, **fields),
        ):
            assert said.status_code == 200
            assert said.text.count('"It is 42."') or fields.get("stream")
            for word in ("ecret", "6*7", "cats", "whiskers"):
                assert word not in said.text
    whole_and_streamed(server, tools=ITEM_TOOLS)
