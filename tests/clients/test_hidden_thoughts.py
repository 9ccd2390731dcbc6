"""Of a chain of thought that is hidden, no byte reaches the client, and tool loops work without it.

The thoughts are written in letters that nothing else has, so that a piece of them is found wherever it is.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from gptoss_jax.engine.request import Request
from gptoss_jax.serve.sealing import Sealer
from gptoss_jax.serve.store import ResponseStore
from harmony import HarmonyEncoding
from tests.clients.recorder import Recorder, recording, traces_of
from tests.llm.fake_engine import FakeEngine, Script
from tests.serve.served import serving

SECRET = "ЖЩЪЮЯЫ"
TURNS = 3
FUNCTION = {"name": "double", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}}
CHAT_TOOLS = [{"type": "function", "function": FUNCTION}]
TOOLS = [{"type": "function", **FUNCTION}]
THOUGHT = "<|channel|>analysis<|message|>{}<|end|><|start|>assistant"

ODD = {
    # The user's word for it, and what the model says then.
    "CUT": (f"<|channel|>analysis<|message|>{SECRET * 9}", "length"),
    "HEADERLESS": (f"{SECRET}<|return|>", "stop"),
    "MALFORMED": (f"<|channel|><|channel|>oops to= <|message|>{SECRET}<|return|>", "stop"),
    "UNNAMED": (f"<|channel|><|message|>{SECRET}<|return|>", "stop"),
    "UNENDED": (f"<|channel|>analysis<|message|>{SECRET}<|return|>", "stop"),
    "TWICE": (
        THOUGHT.format(SECRET) + THOUGHT.format(SECRET) + "<|channel|>final<|message|>Twice.<|return|>",
        "stop",
    ),
}  # fmt: skip


def said_in(prompt: str) -> tuple[str, Any]:
    """A thought, then a call in each turn, at last an answer that counts the thoughts in its prompt."""
    for word, odd in ODD.items():
        if f"<|message|>{word}<|end|>" in prompt:
            return odd
    turn = prompt.count("<|start|>functions.double to=assistant")
    preamble = "<|channel|>commentary<|message|>Let me see.<|end|><|start|>assistant"
    if "Double." in prompt and turn < TURNS:
        header = f"{preamble}<|channel|>commentary to=functions.double <|constrain|>json"
        return THOUGHT.format(SECRET) + f'{header}<|message|>{{"a":{turn}}}<|call|>', "stop"
    kept = prompt.count(f"<|channel|>analysis<|message|>{SECRET}")
    return THOUGHT.format(SECRET) + f"<|channel|>final<|message|>Kept {kept}.<|return|>", "stop"


@pytest.fixture(
    scope="module", params=["hidden", "excluded", pytest.param("not included", marks=pytest.mark.slow)]
)
def hiding(
    request: pytest.FixtureRequest, encoding: HarmonyEncoding, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, dict[str, Any]]]:
    """A server, and the fields with which requests hide the chain of thought."""

    def script(asked: Request, sample: int) -> Script:
        text, reason = said_in(encoding.decode(asked.prompt))
        return Script(encoding.encode(text, allowed_special="all"), reason)

    path: Path = tmp_path_factory.mktemp("store") / "store.sqlite"
    store = ResponseStore(path, max_bytes=1 << 24, max_age_seconds=3600)
    fields: dict[str, Any] = {
        "hidden": {"reasoning": {"exclude": False}, "include_reasoning": True},
        "excluded": {"reasoning": {"exclude": True}},
        "not included": {"include_reasoning": False},
    }[request.param]
    engine = FakeEngine(script, chunk=1, slots=16, max_length=8000)
    hidden = request.param == "hidden"
    with serving(engine, encoding, store, Sealer(None), hide_reasoning=hidden) as url:
        yield url, fields
    store.close()


@pytest.fixture
def recorder(hiding: tuple[str, dict[str, Any]]) -> Iterator[Recorder]:
    """A proxy before the server. In all that it passed on there is nothing of the thoughts."""
    with recording(hiding[0]) as recorder:
        yield recorder
        assert len(recorder.received) > 1000
        assert traces_of(SECRET, recorder.received) == []


@pytest.fixture
def post(recorder: Recorder, hiding: tuple[str, dict[str, Any]]) -> Iterator[Callable[..., dict[str, Any]]]:
    """Sends a body and returns the object that came, or that a stream adds up to."""
    with httpx.Client(base_url=f"{recorder.url}/v1", timeout=60) as client:

        def send(path: str, body: dict[str, Any]) -> dict[str, Any]:
            answer = client.post(path, json={**hiding[1], **body})
            assert answer.status_code == 200, answer.text
            if not body.get("stream"):
                whole: dict[str, Any] = answer.json()
                return whole
            data = [line.removeprefix("data: ") for line in answer.text.split("\n") if line[:6] == "data: "]
            if path == "/responses":
                last: dict[str, Any] = json.loads(data[-1])["response"]
                return last
            assert data.pop() == "[DONE]"
            return chat_of([json.loads(chunk) for chunk in data])

        yield send


def chat_of(chunks: list[dict[str, Any]]) -> dict[str, Any]:
    """What a chat stream of one choice adds up to, as far as the tests ask."""
    message: dict[str, Any] = {"role": "assistant", "content": ""}
    for chunk in chunks:
        for choice in chunk["choices"]:
            message["content"] += choice["delta"].get("content") or ""
            for part in choice["delta"].get("tool_calls", ()):
                calls = message.setdefault("tool_calls", [])
                if "id" in part:
                    kept = {"name": part["function"]["name"], "arguments": ""}
                    calls.append({"id": part["id"], "type": "function", "function": kept})
                calls[part["index"]]["function"]["arguments"] += part["function"].get("arguments") or ""
    return {"choices": [{"message": message}]}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("scored", [False, True])
def test_a_chat_tool_loop(post: Callable[..., dict[str, Any]], stream: bool, scored: bool) -> None:
    fields = {"logprobs": True, "top_logprobs": 3} if scored else {}
    messages: list[dict[str, Any]] = [{"role": "user", "content": "Double."}]
    for turn in range(TURNS + 1):
        body = {"messages": messages, "tools": CHAT_TOOLS, "stream": stream, **fields}
        message = post("/chat/completions", body)["choices"][0]["message"]
        messages.append(message)
        for call in message.get("tool_calls", ()):
            assert call["function"] == {"name": "double", "arguments": f'{{"a":{turn}}}'}
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": str(2 * turn)})
    assert messages[-1]["content"] == "Kept 0."
    assert len(messages) == 2 + 2 * TURNS


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("scored", [False, True])
@pytest.mark.parametrize("way", ["encrypted", "stored", "plain"])
def test_a_tool_loop_of_responses(
    post: Callable[..., dict[str, Any]], recorder: Recorder, way: str, stream: bool, scored: bool
) -> None:
    """Encrypted and stored thoughts come back into the prompt; without either they are gone."""
    include = ["reasoning.encrypted_content"] if way == "encrypted" else []
    fields: dict[str, Any] = {"top_logprobs": 3} if scored else {}
    fields["include"] = include + ["message.output_text.logprobs"] * scored
    items: list[dict[str, Any]] = [{"role": "user", "content": "Double."}]
    previous = None
    for turn in range(TURNS + 1):
        body = {"input": items, "tools": TOOLS, "stream": stream, "store": way == "stored", **fields}
        if previous is not None:
            body["previous_response_id"] = previous
        answer = post("/responses", body)
        assert answer["status"] == "completed"
        calls = [item for item in answer["output"] if item["type"] == "function_call"]
        assert [json.loads(call["arguments"]) for call in calls] == ([{"a": turn}] if turn < TURNS else [])
        results = [
            {"type": "function_call_output", "call_id": call["call_id"], "output": "0"} for call in calls
        ]
        if way == "stored":
            previous, items = answer["id"], results
        else:
            items += [*answer["output"], *results]
    assert answer["output"][-1]["content"][0]["text"] == f"Kept {0 if way == 'plain' else TURNS}."
    if way == "stored":
        address = f"{recorder.url}/v1/responses/{answer['id']}"
        assert httpx.get(address, timeout=60).json()["output"] == answer["output"]
        assert httpx.get(f"{address}/input_items", timeout=60).json()["data"]


@pytest.mark.parametrize("word", ODD)
@pytest.mark.parametrize("stream", [False, True])
def test_odd_output(post: Callable[..., dict[str, Any]], word: str, stream: bool) -> None:
    for fields in ({}, {"include": ["reasoning.encrypted_content"]}):
        post("/responses", {"input": word, "stream": stream, **fields})
    body = {"messages": [{"role": "user", "content": word}], "stream": stream, "logprobs": True}
    post("/chat/completions", body)


def test_several_samples_and_the_background(post: Callable[..., dict[str, Any]], recorder: Recorder) -> None:
    asked = [{"role": "user", "content": "Hi"}]
    choices = post("/chat/completions", {"messages": asked, "n": 3, "logprobs": True})["choices"]
    assert [choice["message"]["content"] for choice in choices] == ["Kept 0."] * 3
    id = post("/responses", {"input": "Hi", "background": True})["id"]
    response: dict[str, Any] = {"status": "queued"}
    while response["status"] in ("queued", "in_progress"):
        response = httpx.get(f"{recorder.url}/v1/responses/{id}", timeout=60).json()
    assert response["status"] == "completed"
    for path in ("metrics", "v1/models", "v1/responses/none"):
        httpx.get(f"{recorder.url}/{path}", timeout=60)


def test_thoughts_that_are_not_hidden_are_found(encoding: HarmonyEncoding) -> None:
    """The search above finds a thought in each of its forms, also when it comes byte by byte."""
    tokens = encoding.encode(
        THOUGHT.format(SECRET) + "<|channel|>final<|message|>Yes.<|return|>", allowed_special="all"
    )
    with (
        serving(FakeEngine(lambda request, sample: Script(tokens), chunk=1), encoding) as url,
        recording(url) as recorder,
    ):
        body = {"messages": [{"role": "user", "content": "Hi"}]}
        httpx.post(f"{recorder.url}/v1/chat/completions", json=body)
        whole = recorder.received
        httpx.post(f"{recorder.url}/v1/chat/completions", json={**body, "stream": True})
        streamed = recorder.received[len(whole) :]
    assert traces_of(SECRET, whole)
    assert traces_of(SECRET, streamed)
    scored = json.dumps({"bytes": list("Ж".encode())}).encode()
    assert traces_of(SECRET, scored)
    assert traces_of(SECRET, b'{"text": "It is 5."}') == []
