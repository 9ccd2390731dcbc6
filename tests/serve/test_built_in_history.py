"""Conversations with built-in tools give the same prompt by every way in which they are passed back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gptoss_jax.serve.sealing import Sealer
from gptoss_jax.serve.store import ResponseStore
from harmony import HarmonyEncoding
from tests.serve.fake_tools import FakeTool, engine_of_rounds
from tests.serve.served import Scripted, serving
from tests.serve.test_scripted import RESPONSE_TOOLS, TOOLS

AGAIN = "<|start|>assistant"
CALLS = [
    "<|channel|>analysis to=python code<|message|>{}<|call|>",
    " to=python<|channel|>analysis<|message|>{}<|call|>",
    "<|channel|>commentary to=python <|constrain|>code<|message|>{}<|call|>",
    ' to=browser.search<|channel|>commentary <|constrain|>json<|message|>{{"query":"{}"}}<|call|>',
    '<|channel|>analysis to=browser.open<|message|>{{"id":"{}"}}<|call|>',
    "<|channel|>analysis to=browser.find<|message|>no JSON: {}<|call|>",
]
TEXTS = st.text("ab 9\n<|>é【", min_size=1, max_size=8)
BEFORE = st.sampled_from(["analysis", "commentary"])
ROUND = st.tuples(st.lists(st.tuples(BEFORE, TEXTS), max_size=2), st.sampled_from(CALLS), TEXTS)
TURN = st.tuples(st.lists(ROUND, max_size=3), st.none() | TEXTS, st.booleans(), TEXTS)


def spoken(turn: Any) -> list[str]:
    """What the model says in each round of a turn."""
    rounds, thought, ends_in_call, text = turn
    said = []
    for before, call, code in rounds:
        messages = [f"<|channel|>{channel}<|message|>{words}<|end|>{AGAIN}" for channel, words in before]
        said.append("".join(messages) + call.format(code))
    last = "" if thought is None else f"<|channel|>analysis<|message|>{thought}<|end|>{AGAIN}"
    if ends_in_call:
        return [
            *said,
            last + '<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a":1}<|call|>',
        ]
    return [*said, f"{last}<|channel|>final<|message|>{text}<|return|>"]


class Speaker:
    """A server whose engine says the texts in `rounds`, and what its clients send."""

    def __init__(self, server: Scripted, rounds: list[str]) -> None:
        self.server, self.rounds = server, rounds

    def asked(self, path: str, **body: Any) -> tuple[dict[str, Any], list[int]]:
        """The answer, and the prompt of its first round."""
        before = len(self.server.engine.requests)
        answer = self.server.http.post(path, json=body)
        assert answer.status_code == 200, answer.text
        return answer.json(), list(self.server.engine.requests.values())[before].prompt


@pytest.fixture(scope="module")
def speaker(encoding: HarmonyEncoding, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Speaker]:
    rounds: list[str] = []
    engine = engine_of_rounds(lambda sample, number: rounds[number], encoding, chunk=40, max_length=100_000)
    tools = [FakeTool(answer=lambda text: f"ran {text}\n"), FakeTool("browser", lambda text: "")]
    path: Path = tmp_path_factory.mktemp("store") / "responses.sqlite"
    store = ResponseStore(path, max_bytes=1 << 30, max_age_seconds=1e6)
    with serving(engine, encoding, store, Sealer(None), tools) as url:
        server = Scripted(url, engine, encoding)
        yield Speaker(server, rounds)
        server.http.close()
        server.sdk.close()


def sealed(items: list[Any]) -> list[Any]:
    """The items without what is encrypted with them."""
    hidden = ("content", "extra_content", "code", "outputs", "action")
    return [
        {name: value for name, value in item.items() if name not in hidden}
        if "encrypted_content" in item
        else item
        for item in items
    ]


CONVERSATIONS: dict[str, Any] = {
    "turns": st.lists(TURN, min_size=1, max_size=3),
    "history": st.sampled_from(["auto", "all_turns"]),
}
SETTINGS: dict[str, Any] = {"deadline": None, "suppress_health_check": [HealthCheck.function_scoped_fixture]}


@settings(max_examples=8, **SETTINGS)
@given(**CONVERSATIONS)
def test_all_ways_of_passing_a_conversation_back_give_the_same_prompt(
    speaker: Speaker, turns: list[Any], history: str
) -> None:
    passed_back_by_all_ways(speaker, turns, history)


@pytest.mark.slow
@settings(max_examples=60, **SETTINGS)
@given(**CONVERSATIONS)
def test_all_ways_of_passing_many_conversations_back_give_the_same_prompt(
    speaker: Speaker, turns: list[Any], history: str
) -> None:
    passed_back_by_all_ways(speaker, turns, history)


def passed_back_by_all_ways(speaker: Speaker, turns: list[Any], history: str) -> None:
    """Asserts that the same turns give the same prompts by items, encrypted items, the store, and chat."""
    kinds: list[Any] = [{"type": "python"}, {"type": "browser"}]
    fields: dict[str, Any] = {"reasoning": {"context": history}, "tools": [*RESPONSE_TOOLS, *kinds]}
    fields["include"] = ["reasoning.encrypted_content"]
    new: list[Any] = [{"type": "message", "role": "user", "content": "Go."}]
    messages: list[Any] = [{"role": "user", "content": "Go."}]
    plain, encrypted, previous = list(new), list(new), None
    for turn in [*turns, ([], None, False, "End.")]:
        speaker.rounds[:] = spoken(turn)
        response, by_items = speaker.asked("/responses", input=plain, store=False, **fields)
        secret, by_sealed = speaker.asked("/responses", input=encrypted, store=False, **fields)
        stored, by_store = speaker.asked("/responses", input=new, previous_response_id=previous, **fields)
        chat, by_chat = speaker.asked(
            "/chat/completions", messages=messages, tools=[*TOOLS, *kinds], reasoning=fields["reasoning"]
        )
        assert by_items == by_sealed == by_store == by_chat
        for answer, parts in ((response, ("input", "output")), (chat, ("prompt", "completion"))):
            usage = answer["usage"]
            assert usage["total_tokens"] == sum(usage[f"{part}_tokens"] for part in parts)
        assert response["usage"]["output_tokens"] == chat["usage"]["completion_tokens"]
        assert response["usage"]["input_tokens"] == chat["usage"]["prompt_tokens"]
        message = chat["choices"][0]["message"]
        plain += response["output"]
        encrypted += sealed(secret["output"])
        messages.append(message)
        previous = stored["id"]
        if turn[2]:
            new = [
                {"type": "function_call_output", "call_id": stored["output"][-1]["call_id"], "output": "7"}
            ]
            plain.append({**new[0], "call_id": response["output"][-1]["call_id"]})
            encrypted.append({**new[0], "call_id": secret["output"][-1]["call_id"]})
            id = message["tool_calls"][0]["id"]
            messages.append({"role": "tool", "tool_call_id": id, "content": "7"})
        else:
            new = [{"type": "message", "role": "user", "content": "And?"}]
            plain += new
            encrypted += new
            messages.append({"role": "user", "content": "And?"})


def test_what_the_model_reads_next_has_the_call_and_its_result(speaker: Speaker) -> None:
    speaker.rounds[:] = [CALLS[2].format("1+1"), "<|channel|>final<|message|>Two.<|return|>"]
    fields: dict[str, Any] = {"tools": [{"type": "code_interpreter"}]}
    response, _ = speaker.asked("/responses", input="Go.", **fields)
    _, prompt = speaker.asked("/responses", input="And?", previous_response_id=response["id"], **fields)
    text = speaker.server.encoding.decode(prompt)
    assert (
        "<|start|>assistant<|channel|>commentary to=python <|constrain|>code<|message|>1+1<|call|>"
        "<|start|>python to=assistant<|channel|>commentary<|message|>ran 1+1\n<|end|>"
        "<|start|>assistant<|channel|>final<|message|>Two.<|end|>"
    ) in text


def test_calls_of_others_are_read_as_far_as_they_say_what_they_were(speaker: Speaker) -> None:
    """Items that another server has made, without `extra_content`."""
    speaker.rounds[:] = ["<|channel|>final<|message|>Two.<|return|>"]
    call = {"type": "code_interpreter_call", "id": "ci_1", "code": "1+1", "status": "completed"}
    call["container_id"] = "c"
    search = {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search"}}
    for outputs, is_read in ((None, False), ([{"type": "logs", "logs": "2"}], True)):
        items = [{"role": "user", "content": "Go."}, {**call, "outputs": outputs}, search]
        _, prompt = speaker.asked("/responses", input=items)
        text = speaker.server.encoding.decode(prompt)
        assert (
            "<|start|>assistant to=python<|channel|>analysis code<|message|>1+1<|call|>" in text
        ) is is_read
        assert ("<|start|>python to=assistant<|channel|>analysis<|message|>2<|end|>" in text) is is_read


def test_a_chat_message_whose_text_was_changed_is_read_as_it_is(speaker: Speaker) -> None:
    speaker.rounds[:] = [CALLS[2].format("1+1"), "<|channel|>final<|message|>Two.<|return|>"]
    fields: dict[str, Any] = {"tools": [{"type": "python"}]}
    user = {"role": "user", "content": "Go."}
    chat, _ = speaker.asked("/chat/completions", messages=[user], **fields)
    message = chat["choices"][0]["message"]
    for content, has_call in (("Two.", True), ("Three.", False)):
        changed = [user, {**message, "content": content}, user]
        _, prompt = speaker.asked("/chat/completions", messages=changed, **fields)
        text = speaker.server.encoding.decode(prompt)
        assert ("1+1" in text) is has_call
        assert f"<|channel|>final<|message|>{content}<|end|>" in text


@pytest.mark.parametrize(
    "messages",
    [3, [3], [{}], [{"role": "user", "content": "x"}], [{"role": "tool", "content": [{"type": "x"}]}]],
)
def test_what_is_no_turn_of_ours_is_an_error_of_the_request(speaker: Speaker, messages: Any) -> None:
    extras = {"harmony": {"messages": messages}}
    body = {"messages": [{"role": "assistant", "content": "x", "extra_content": extras}]}
    assert speaker.server.http.post("/chat/completions", json=body).status_code == 400
    for header in ({"recipient": 3}, {"recipient": "x y"}, {"channel": 3}, {"recipient": "python"}):
        extra = {"input": 3, "output": messages, **header}
        item = {"type": "web_search_call", "extra_content": {"harmony": extra}}
        answer = speaker.server.http.post("/responses", json={"input": [item]})
        assert answer.status_code == 400
        assert "\n" not in answer.json()["error"]["message"]
