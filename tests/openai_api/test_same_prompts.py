"""A conversation gives the same prompt, whichever API it comes through."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gptoss_jax.answers import read_sample
from gptoss_jax.engine.request import Completion, Request, SamplingParams
from gptoss_jax.openai_api import Prepared, chat_completion, response
from harmony import HarmonyEncoding

TOOLS = [{"type": "function", "name": name, "parameters": {"type": "object"}} for name in ("f", "python")]
CHAT_TOOLS = [
    {"type": "function", "function": {"name": tool["name"], "parameters": tool["parameters"]}}
    for tool in TOOLS
]
words = st.sampled_from(["Go.", "é🙂", "a\n\nb", "<|end|>", "5"])


@st.composite
def completions(draw: st.DrawFn) -> str:
    """A whole completion: thoughts, then an answer, or a call that a preamble may precede."""
    messages = [
        f"<|channel|>analysis<|message|>{draw(st.sampled_from(['Hm.', 'Well é.']))}<|end|>"
        for _ in range(draw(st.integers(0, 1)))
    ]
    if draw(st.booleans()):
        messages.append("<|channel|>final<|message|>It is 5.<|return|>")
    else:
        if draw(st.booleans()):
            messages.append("<|channel|>commentary<|message|>Let me see.<|end|>")
        name = draw(st.sampled_from(["f", "python"]))
        header = f"<|channel|>commentary to=functions.{name} <|constrain|>json"
        messages.append(f'{header}<|message|>{{"a": 1}}<|call|>')
    return "<|start|>assistant".join(messages)


turns = st.lists(st.tuples(words, completions()), min_size=1, max_size=4)


def both_ways(turns: list[tuple[str, str]], encoding: HarmonyEncoding) -> tuple[list[Any], list[Any]]:
    """Chat messages and items of a conversation, as a client has them that passes everything back."""
    request = Prepared("chat", {}, [], Request("x", [1], SamplingParams()))
    messages: list[Any] = [{"role": "developer", "content": "Be brief."}]
    items: list[Any] = [{"role": "developer", "content": "Be brief."}]
    for number, (said, text) in enumerate(turns):
        user = {"role": "user", "content": said}
        tokens = encoding.encode(text, allowed_special="all")
        sample = read_sample(Completion("x", tokens, "stop", 1), encoding)
        names: dict[str, Any] = {"unique": f"{number}", "model": "m", "created": 0}
        (choice,) = chat_completion(request, [sample], encoding, **names)["choices"]
        output = response(request, sample, encoding, **names)["output"]
        messages += [user, choice["message"]]
        items += [user, *output]
        for call in choice["message"].get("tool_calls", ()):
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": said})
        if output[-1]["type"] == "function_call":
            call_id = output[-1]["call_id"]
            items.append({"type": "function_call_output", "call_id": call_id, "output": said})
    if messages[-1]["role"] == "assistant":
        messages.append({"role": "user", "content": "And?"})
        items.append({"role": "user", "content": "And?"})
    return messages, items


def check_same_prompt(prepared: Any, encoding: HarmonyEncoding, turns: list[tuple[str, str]]) -> None:
    messages, items = both_ways(turns, encoding)
    chat = prepared("chat", {"messages": messages, "tools": CHAT_TOOLS})
    responses = prepared("responses", {"input": items, "tools": TOOLS})
    assert chat.request.prompt == responses.request.prompt


HEALTHY = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]


@settings(max_examples=60, deadline=None, suppress_health_check=HEALTHY)
@given(turns=turns)
def test_chat_messages_and_items_give_the_same_prompt(
    prepared: Any, encoding: HarmonyEncoding, turns: list[tuple[str, str]]
) -> None:
    check_same_prompt(prepared, encoding, turns)


@pytest.mark.slow
@settings(max_examples=1000, deadline=None, suppress_health_check=HEALTHY)
@given(turns=turns)
def test_a_thousand_conversations_give_the_same_prompts(
    prepared: Any, encoding: HarmonyEncoding, turns: list[tuple[str, str]]
) -> None:
    check_same_prompt(prepared, encoding, turns)
