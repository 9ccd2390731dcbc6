"""`POST /v1/harmony/tokens`: a body of either API as the tokens of its prompt."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gptoss_jax.serve.sealing import Sealer
from gptoss_jax.serve.store import ResponseStore
from tests.serve.fake_tools import FakeTool
from tests.serve.served import DATE, Scripted

ANSWER = (
    "<|channel|>analysis<|message|>Secret thought.<|end|><|start|>assistant"
    "<|channel|>final<|message|>It is 5.<|return|>"
)
CALL = (
    "<|channel|>analysis<|message|>Secret thought.<|end|><|start|>assistant"
    '<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a":1}<|call|>'
)
FUNCTION = {
    "name": "f",
    "description": "Does f.",
    "parameters": {"type": "object", "properties": {"a": {"type": "number"}}},
}
TOOLS = [{"type": "function", **FUNCTION}]
ITEMS: list[dict[str, Any]] = [
    {"role": "developer", "content": "Be brief."},
    {"role": "user", "content": "What is 2 + 3? 👩‍🔬 <|end|>"},
    {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "Secret thought."}]},
    {"type": "function_call", "call_id": "c1", "name": "f", "arguments": '{"a":1}'},
    {"type": "function_call_output", "call_id": "c1", "output": "7"},
]


def ask(server: Scripted, **body: Any) -> Any:
    return server.http.post("/harmony/tokens", json=body)


def told(server: Scripted, **body: Any) -> dict[str, Any]:
    answer = ask(server, **body)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def ids(found: dict[str, Any]) -> list[int]:
    return [token["id"] for message in found["messages"] for token in message["tokens"]]


def by_openai_harmony(o: Any, known_encoding: Any) -> list[int]:
    """The tokens of ITEMS with TOOLS, by a package that nobody here wrote, `o`."""
    system = (
        o.SystemContent.new().with_reasoning_effort(o.ReasoningEffort.HIGH).with_conversation_start_date(DATE)
    )
    function = o.ToolDescription.new(FUNCTION["name"], FUNCTION["description"], FUNCTION["parameters"])
    developer = o.DeveloperContent.new().with_instructions("Be brief.").with_function_tools([function])
    of = o.Message.from_role_and_content
    call = of(o.Role.ASSISTANT, '{"a":1}').with_channel("commentary").with_recipient("functions.f")
    result = o.Message.from_author_and_content(o.Author.new(o.Role.TOOL, "functions.f"), "7")
    conversation = o.Conversation.from_messages(
        [
            of(o.Role.SYSTEM, system),
            of(o.Role.DEVELOPER, developer),
            of(o.Role.USER, ITEMS[1]["content"]),
            of(o.Role.ASSISTANT, "Secret thought.").with_channel("analysis"),
            call.with_content_type("<|constrain|>json"),
            result.with_recipient("assistant").with_channel("commentary"),
        ]
    )
    tokens: list[int] = known_encoding.render_conversation_for_completion(conversation, o.Role.ASSISTANT)
    return tokens


def test_the_tokens_are_those_of_openai_harmony_and_those_that_the_engine_is_given(
    scripted, known, known_encoding
) -> None:
    server = scripted(ANSWER)
    body = {"input": ITEMS, "tools": TOOLS, "reasoning": {"effort": "high"}}
    found = told(server, **body)
    expected = by_openai_harmony(known, known_encoding)
    assert ids(found) == expected
    assert found["count"] == len(expected)
    server.responses(**body)
    assert ids(found) == server.prompt()
    for message in found["messages"]:
        assert message["count"] == len(message["tokens"])
        for token in message["tokens"]:
            if token["text"] is not None:
                assert (token["text"], token["bytes"]) == (known_encoding.decode_utf8([token["id"]]), None)
    parts = [token["bytes"] for message in found["messages"] for token in message["tokens"] if token["bytes"]]
    assert parts, "👩‍🔬 has tokens that are parts of characters"
    # Whatever has no text of its own adds up to characters.
    assert bytes(byte for part in parts for byte in part).decode()


def test_a_message_has_its_header_and_a_token_its_part(scripted) -> None:
    found = told(scripted(ANSWER), input=ITEMS, tools=TOOLS)
    heads = [
        [message[name] for name in ("role", "name", "channel", "recipient", "content_type", "open")]
        for message in found["messages"]
    ]
    assert heads == [
        ["system", None, None, None, None, False],
        ["developer", None, None, None, None, False],
        ["user", None, None, None, None, False],
        ["assistant", None, "analysis", None, None, False],
        ["assistant", None, "commentary", "functions.f", "<|constrain|>json", False],
        ["tool", "functions.f", "commentary", "assistant", None, False],
        ["assistant", None, None, None, None, True],
    ]
    user, call, last = found["messages"][2], found["messages"][4], found["messages"][6]
    assert "".join(t["text"] or "" for t in user["tokens"] if t["part"] == "content").endswith("<|end|>")
    assert [t["text"] for t in user["tokens"] if t["part"] == "special"] == [
        "<|start|>",
        "<|message|>",
        "<|end|>",
    ]
    assert "".join(t["text"] for t in call["tokens"] if t["part"] == "content") == '{"a":1}'
    assert "functions.f" in "".join(t["text"] for t in call["tokens"] if t["part"] == "header")
    assert [(t["text"], t["part"]) for t in last["tokens"]] == [
        ("<|start|>", "special"),
        ("assistant", "header"),
    ]


def test_tools_that_the_server_runs_are_in_the_tokens(scripted) -> None:
    server = scripted(ANSWER, tools=[FakeTool("python"), FakeTool("browser")])
    body = {"input": ITEMS, "tools": [*TOOLS, {"type": "code_interpreter"}, {"type": "web_search"}]}
    found = told(server, **body)
    server.responses(**body)
    assert ids(found) == server.prompt()
    assert "Use this tool to execute Python code" in server.decoded_prompt()


def test_both_forms_of_a_body_have_the_same_tokens(scripted) -> None:
    server = scripted(ANSWER)
    chat = [{"role": "user", "content": "Hi"}]
    assert told(server, messages=chat)["messages"] == told(server, input="Hi")["messages"]


def test_earlier_reasoning_stays_where_the_body_says_so(scripted) -> None:
    server = scripted(ANSWER)
    answered = [*ITEMS, {"role": "assistant", "content": "It is 7."}, {"role": "user", "content": "Sure?"}]
    channels = [message["channel"] for message in told(server, input=answered)["messages"]]
    assert "analysis" not in channels
    whole = told(server, input=answered, reasoning={"context": "all_turns"})
    assert [message["channel"] for message in whole["messages"]].count("analysis") == 1


def test_hidden_reasoning_is_in_no_token(scripted, tmp_path) -> None:
    """As text that the client sent, encrypted, stored, and where only the body hides it."""
    store = ResponseStore(tmp_path / "store", max_bytes=10**6, max_age_seconds=1000)
    hiding = scripted(CALL, hide_reasoning=True, store=store, sealer=Sealer(None))
    response = hiding.responses(tools=TOOLS, include=["reasoning.encrypted_content"]).json()
    assert [item["type"] for item in response["output"]] == ["reasoning", "function_call"]
    result = {"type": "function_call_output", "call_id": response["output"][-1]["call_id"], "output": "7"}
    sealed = [{"role": "user", "content": "Hi"}, *response["output"], result]
    bodies: list[dict[str, Any]] = [
        {"input": ITEMS},
        {"input": sealed},
        {"input": [result], "previous_response_id": response["id"]},
    ]
    plain = scripted(CALL)
    hidden = {"reasoning": {"exclude": True}}
    for server, body in [*((hiding, body) for body in bodies), (plain, {"input": ITEMS, **hidden})]:
        answer = ask(server, tools=TOOLS, **body)
        found = answer.json()
        assert found["hidden_messages"] == 1
        assert "analysis" not in [message["channel"] for message in found["messages"]]
        assert found["count"] == len(ids(found))
        for word in ("Secret", "thought"):
            assert word not in answer.text
        server.responses(tools=TOOLS, **body)
        assert "Secret thought." in server.decoded_prompt(), "the model is given it"


def test_what_is_no_body_is_refused_as_by_the_apis(scripted) -> None:
    server = scripted(ANSWER, max_body_bytes=60_000)
    post = server.http.post
    assert post("/harmony/tokens", content=b"[]").status_code == 422
    assert post("/harmony/tokens", content=b"x" * 70_000).status_code == 413
    assert post("/harmony/tokens", content=b"{}").status_code == 422
    assert ask(server, input="Hi", messages=[]).status_code == 422
    assert ask(server, input=3).json()["error"]["param"] == "input"
    assert ask(server, messages=[{"role": "nobody", "content": ""}]).status_code == 400
    assert ask(server, input="x", previous_response_id="resp_1").status_code == 400
    long = ask(server, input="word " * 3000)
    assert (long.status_code, long.json()["error"]["code"]) == (400, "context_length_exceeded")
    assert server.http.get("/harmony/tokens").status_code == 405


@pytest.mark.parametrize("odd", [[], "", [{"role": "user", "content": ""}], [ITEMS[2]], ITEMS[3:4]])
def test_odd_conversations_have_the_tokens_that_the_engine_would_be_given(scripted, odd: Any) -> None:
    server = scripted(ANSWER)
    answer, response = ask(server, input=odd), server.responses(input=odd)
    assert answer.status_code == response.status_code
    if answer.status_code == 200:
        assert ids(answer.json()) == server.prompt()


def test_tokens_need_the_key_and_the_page_does_not(scripted) -> None:
    server = scripted(ANSWER, api_keys=("one",))
    assert ask(server, input="Hi").status_code == 401
    key = {"Authorization": "Bearer one"}
    assert server.http.post("/harmony/tokens", json={"input": "Hi"}, headers=key).status_code == 200
    page = server.http.get(f"{server.url}/")
    assert (page.status_code, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
    for path in ("/page/nothing.js", "/page/../v1/models", "/page/__init__.py", "/page//etc/passwd", "/page"):
        answer = server.http.get(f"{server.url}{path}")
        assert answer.status_code in (401, 404), path
        assert json.loads(answer.text)["error"]["message"]
