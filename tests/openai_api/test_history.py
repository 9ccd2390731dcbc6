"""How much of the earlier chain of thought a prompt has, whether through `LLM` or a body of either API."""

from __future__ import annotations

from typing import Any

import pytest

from gptoss_jax.engine.request import RequestError, SamplingParams
from gptoss_jax.llm import LLM
from gptoss_jax.llm.prompts import rendered_prompt
from gptoss_jax.openai_api import ApiError, Context, prepare
from harmony import HarmonyEncoding

DATE = "2026-01-01"


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def answer(thought: str, text: str) -> dict[str, Any]:
    return {"role": "assistant", "reasoning": thought, "content": text}


def call(thought: str, name: str) -> dict[str, Any]:
    function = {"name": "f", "arguments": "{}"}
    calls = [{"id": name, "type": "function", "function": function}]
    return {"role": "assistant", "reasoning": thought, "content": None, "tool_calls": calls}


def result(name: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": name, "content": "42"}


TURNS = {
    "two answers": [user("q1"), answer("T1", "a1"), user("q2"), answer("T2", "a2"), user("q3")],
    "an open call in the third turn": [
        user("q1"),
        answer("T1", "a1"),
        user("q2"),
        answer("T2", "a2"),
        user("q3"),
        call("T3", "c3"),
        result("c3"),
    ],
    "calls before and after an answer": [
        user("q1"),
        call("T1", "c1"),
        result("c1"),
        answer("T2", "a1"),
        user("q2"),
        call("T3", "c2"),
        result("c2"),
        call("T4", "c3"),
        result("c3"),
    ],
}
"""Conversations as chat messages; the thoughts are T1, T2, …"""

KEPT = {
    "guide": {
        "two answers": [],
        "an open call in the third turn": ["T3"],
        "calls before and after an answer": ["T3", "T4"],
    },
    "compatible": {
        "two answers": ["T2"],
        "an open call in the third turn": ["T1", "T2", "T3"],
        "calls before and after an answer": ["T1", "T2", "T3", "T4"],
    },
    "all": {
        "two answers": ["T1", "T2"],
        "an open call in the third turn": ["T1", "T2", "T3"],
        "calls before and after an answer": ["T1", "T2", "T3", "T4"],
    },
}
"""The thoughts that each policy keeps."""


def as_items(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Chat messages as the items of a Responses body."""
    items: list[dict[str, Any]] = []
    for message in messages:
        if "reasoning" in message:
            thought = [{"type": "reasoning_text", "text": message["reasoning"]}]
            items.append({"type": "reasoning", "summary": [], "content": thought})
        for one in message.get("tool_calls", ()):
            items.append({"type": "function_call", "call_id": one["id"], **one["function"]})
        if message["role"] == "tool":
            output = {"call_id": message["tool_call_id"], "output": message["content"]}
            items.append({"type": "function_call_output", **output})
        elif message.get("content") is not None:
            items.append({"role": message["role"], "content": message["content"]})
    return items


def prompt_of_body(form: Any, fields: dict[str, Any], history: str, encoding, checker) -> list[int]:
    options = {"history": history} if history else {}
    context = Context(checker, encoding, SamplingParams(), None, DATE, **options)
    return prepare(fields, form, context, id="x", seed=1).request.prompt


def prompts(history: str, turns: list[dict[str, Any]], encoding, checker) -> dict[str, list[int]]:
    """The prompts of a conversation, by the way it came in; a history of "" asks for none."""
    own = {"history": history} if history else {}
    llm = rendered_prompt(turns, {"date": DATE}, encoding, **own).tokens
    chat = prompt_of_body("chat", {"messages": turns}, history, encoding, checker)
    responses = prompt_of_body("responses", {"input": as_items(turns)}, history, encoding, checker)
    return {"LLM": llm, "chat": chat, "responses": responses}


@pytest.mark.parametrize("history", ["", *KEPT])
@pytest.mark.parametrize("name", TURNS)
def test_the_same_thoughts_stay_whatever_way_a_conversation_comes_in(
    encoding: HarmonyEncoding, checker, history: str, name: str
) -> None:
    for prompt in prompts(history, TURNS[name], encoding, checker).values():
        text = encoding.decode(prompt)
        assert [f"T{n}" for n in range(1, 5) if f"T{n}<|" in text] == KEPT[history or "guide"][name]
        assert text.endswith("<|start|>assistant")


@pytest.mark.parametrize("name", TURNS)
def test_the_prompts_are_the_same_tokens(encoding: HarmonyEncoding, checker, name: str) -> None:
    llm, chat, responses = prompts("", TURNS[name], encoding, checker).values()
    assert llm == chat == responses


def test_a_body_can_ask_for_all_of_it(encoding: HarmonyEncoding, checker) -> None:
    turns = TURNS["two answers"]
    for form, fields in (("chat", {"messages": turns}), ("responses", {"input": as_items(turns)})):
        body = {**fields, "reasoning": {"context": "all_turns"}}
        expected = prompt_of_body(form, fields, "all", encoding, checker)
        assert prompt_of_body(form, body, "guide", encoding, checker) == expected
        with pytest.raises(ApiError, match=r"^reasoning\.context must be \"auto\", "):
            prompt_of_body(form, {**fields, "reasoning": {"context": "some"}}, "", encoding, checker)


def test_a_history_that_is_none_is_refused_when_an_llm_is_made() -> None:
    for value in ("none", None, 7, ["guide"]):
        with pytest.raises(RequestError, match=r"^history is .*: it must be guide or compatible or all$"):
            LLM("tiny", history=value)  # type: ignore[arg-type]
