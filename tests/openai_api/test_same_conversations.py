"""Conversations as clients write them give the same prompt through both APIs, or are refused by both.

Here nothing of the tested code makes the bodies. A conversation is drawn as steps; each step is written once
as chat messages and once as items, in one of the ways in which clients write them. What only items can say is
left out: several thoughts or texts in one turn.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from gptoss_jax.openai_api import ApiError
from harmony import HarmonyEncoding
from tests.openai_api.conftest import Checker

TEXTS = st.sampled_from(
    ["Go.", "", " ", "\n", "é🙂", "a\n\nb", "<|end|><|start|>assistant", "null", "{}", "\u2028"]
)  # fmt: skip
SOME_TEXT = TEXTS.filter(bool)
NAMES = ("f", "python", "browser.search", "browser", "a.b-c_9", "functions.f", "final", "x" * 64)
ARGUMENTS = st.sampled_from(["{}", '{"a": 1}', "", "not JSON", '{"t": "<|call|>"}', "[]", '{"é": "\\u00e9"}'])
DESCRIPTIONS = st.sampled_from([None, "", "Does it.", "a\nb"])
SCHEMAS = st.sampled_from(
    [
        None,
        {},
        {"type": "object", "properties": {}},
        {"type": "object", "properties": {"a": {"type": "integer", "description": "A number."}}},
        {"type": "object", "properties": {"é": {"anyOf": [{"type": "string"}, {"type": "null"}]}}},
    ]
)
ABSENT = object()


class Writer:
    """Writes a conversation for both APIs."""

    def __init__(self, draw: st.DrawFn) -> None:
        self.draw = draw
        self.messages: list[Any] = []
        self.items: list[Any] = []
        self.ids = 0

    def maybe(self) -> bool:
        return self.draw(st.booleans())

    def parts(self, text: str, kind: str) -> Any:
        """A text, or the same in one part or in two."""
        if kind == "refusal":
            return [{"type": "refusal", "refusal": text}]
        ways: list[Any] = [text, [{"type": kind, "text": text}]]
        ways.append([{"type": kind, "text": text[:1]}, {"type": kind, "text": text[1:]}])
        return self.draw(st.sampled_from(ways))

    def item(self, item: dict[str, Any], prefix: str) -> None:
        """Adds an item, with and without what clients leave out."""
        self.ids += 1
        if item.get("type") == "message" and self.maybe():
            del item["type"]
        if self.maybe():
            item["id"] = self.draw(st.sampled_from([f"{prefix}_{self.ids}", None, ""]))
        if self.maybe():
            item["status"] = self.draw(st.sampled_from(["completed", None, "incomplete"]))
        self.items.append(item)

    def said(self, role: str) -> None:
        """A message of the user, or instructions."""
        text = self.draw(TEXTS)
        message: dict[str, Any] = {"role": role, "content": self.parts(text, "text")}
        if self.maybe():
            message["name"] = "somebody"
        self.messages.append(message)
        self.item({"type": "message", "role": role, "content": self.parts(text, "input_text")}, "msg")

    def assistant(self, alone: bool) -> None:
        """A turn: a thought, a text or a refusal, calls and their results, each of which may be missing.

        `alone` is False if the assistant goes on behind it: then only its phase tells a text from a preamble.
        """
        thought, text = self.draw(st.none() | TEXTS), self.draw(st.none() | SOME_TEXT)
        calls = [
            {"id": f"call_{len(self.messages)}_{number}", "name": name, "arguments": self.draw(ARGUMENTS)}
            for number, name in enumerate(self.draw(st.lists(st.sampled_from(NAMES), max_size=3)))
        ]
        if text is None and not calls and not thought:
            text = ""
        message: dict[str, Any] = {"role": "assistant"}
        if thought is not None:
            message[self.draw(st.sampled_from(["reasoning", "reasoning_content"]))] = thought
        refused = text is not None and not calls and self.maybe()
        self._thought(thought)
        if text is not None:
            if refused and self.maybe():
                message |= {"content": None, "refusal": text}
            else:
                message["content"] = self.parts(text, "refusal" if refused else "text")
            self._text(text, refused, bool(calls), alone or bool(calls))
        else:
            nothing = [ABSENT, None, *([""] if calls else [])]
            content = self.draw(st.sampled_from(nothing))
            if content is not ABSENT:
                message["content"] = content
        if calls or self.maybe():
            message["tool_calls"] = [
                {
                    "id": call["id"],
                    "type": "function",
                    "function": {n: call[n] for n in ("name", "arguments")},
                }
                for call in calls
            ]
        self.messages.append(message)
        for call in calls:
            given = {"type": "function_call", "call_id": call["id"]}
            self.item({**given, "name": call["name"], "arguments": call["arguments"]}, "fc")
        for call in self.draw(st.permutations(calls)):
            self._result(call["id"])

    def _thought(self, thought: str | None) -> None:
        if thought is None:
            return
        content = [{"type": "reasoning_text", "text": thought}]
        if not thought:
            content = self.draw(st.sampled_from([content, [], None]))
        summary = self.draw(st.sampled_from([[], [{"type": "summary_text", "text": "Never this."}]]))
        self.item({"type": "reasoning", "summary": summary, "content": content}, "rs")

    def _text(self, text: str, refused: bool, calls_follow: bool, is_clear: bool) -> None:
        content = self.parts(text, "refusal" if refused else "output_text")
        item = {"type": "message", "role": "assistant", "content": content}
        if not is_clear or self.maybe():
            item["phase"] = "commentary" if calls_follow else "final_answer"
        self.item(item, "msg")

    def _result(self, call: str) -> None:
        text = self.draw(TEXTS)
        self.messages.append({"role": "tool", "tool_call_id": call, "content": self.parts(text, "text")})
        output = self.parts(text, "input_text")
        self.item({"type": "function_call_output", "call_id": call, "output": output}, "fco")

    def image(self) -> None:
        """What neither API takes."""
        url = "data:image/png;base64,AAAA"
        chat = {"type": "image_url", "image_url": {"url": url}}
        self.messages.append({"role": "user", "content": [chat]})
        self.item(
            {"type": "message", "role": "user", "content": [{"type": "input_image", "image_url": url}]}, "msg"
        )


@pytest.fixture(scope="module")
def checker(encoding: HarmonyEncoding) -> Checker:
    """One that long prompts pass."""
    checker = Checker(encoding)
    checker.max_length = 100_000
    return checker


@st.composite
def bodies(draw: st.DrawFn) -> tuple[dict[str, Any], dict[str, Any]]:
    """A body of each API with the same conversation."""
    writer = Writer(draw)
    chat: dict[str, Any] = {"messages": writer.messages}
    responses: dict[str, Any] = {"input": writer.items}
    if draw(st.booleans()):
        text = draw(TEXTS)
        writer.messages.append({"role": draw(st.sampled_from(["system", "developer"])), "content": text})
        responses["instructions"] = text
    steps = ["user", "user", "system", "developer", "assistant", "assistant", "assistant"]
    drawn = draw(st.lists(st.sampled_from(steps), min_size=1, max_size=7))
    for step, following in zip(drawn, [*drawn[1:], "end"], strict=True):
        if step == "assistant":
            writer.assistant(following != "assistant")
        else:
            writer.said(step)
    if draw(st.integers(0, 19)) == 0:
        writer.image()
    names = draw(st.lists(st.sampled_from(NAMES), unique=True, max_size=4))
    tools = [{"name": name, "description": draw(DESCRIPTIONS), "parameters": draw(SCHEMAS)} for name in names]
    if tools or draw(st.booleans()):
        chat["tools"] = [{"type": "function", "function": tool} for tool in tools]
        responses["tools"] = [{"type": "function", "strict": None, **tool} for tool in tools]
    choice = draw(st.sampled_from(["absent", None, "auto", "none", "named"]))
    if choice == "named" and names:
        chat["tool_choice"] = {"type": "function", "function": {"name": names[0]}}
        responses["tool_choice"] = {"type": "function", "name": names[0]}
    elif choice not in ("absent", "named"):
        chat["tool_choice"] = responses["tool_choice"] = choice
    effort = draw(st.sampled_from([None, "low", "high"]))
    if effort is not None:
        chat["reasoning_effort"] = effort
        responses["reasoning"] = {"effort": effort}
    if draw(st.booleans()):
        shape = {"name": "answer", "schema": {"type": "object", "properties": {"a": {"type": "integer"}}}}
        chat["response_format"] = {"type": "json_schema", "json_schema": shape}
        responses["text"] = {"format": {"type": "json_schema", **shape}}
    return chat, responses


def prompt_of(prepared: Any, form: str, body: dict[str, Any]) -> Any:
    """The tokens of a prompt, or the code of the error."""
    try:
        return prepared(form, body).request.prompt
    except ApiError as error:
        return error.code


def check(prepared: Any, drawn: tuple[dict[str, Any], dict[str, Any]]) -> None:
    chat, responses = drawn
    prompt = prompt_of(prepared, "chat", chat)
    event("refused" if isinstance(prompt, str) else "rendered")
    assert prompt_of(prepared, "responses", responses) == prompt
    has_image = "image_url" in str(chat["messages"])
    assert isinstance(prompt, str) == has_image


HEALTHY = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large]


@settings(max_examples=60, deadline=None, suppress_health_check=HEALTHY)
@given(drawn=bodies())
def test_what_clients_write_gives_the_same_prompt_through_both_apis(
    prepared: Any, drawn: tuple[dict[str, Any], dict[str, Any]]
) -> None:
    check(prepared, drawn)


@pytest.mark.slow
@settings(max_examples=1000, deadline=None, suppress_health_check=HEALTHY)
@given(drawn=bodies())
def test_a_thousand_conversations_of_clients_give_the_same_prompts(
    prepared: Any, drawn: tuple[dict[str, Any], dict[str, Any]]
) -> None:
    check(prepared, drawn)
