"""Tools of a body: functions are offered and enforced, tools of other types are refused."""

from __future__ import annotations

import re
from typing import Any

import pytest

from gptoss_jax.answers import read_sample
from gptoss_jax.engine.grammar import Grammar
from gptoss_jax.engine.request import Completion
from gptoss_jax.openai_api import ApiError, response
from gptoss_jax.openai_api.field_table import BOTH
from harmony import HarmonyEncoding

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}


def tool(form: str, name: str) -> dict[str, Any]:
    function = {"name": name, "parameters": SCHEMA}
    return {"type": "function", "function": function} if form == "chat" else {"type": "function", **function}


def named(form: str, name: str) -> dict[str, Any]:
    return (
        {"type": "function", "function": {"name": name}}
        if form == "chat"
        else {"type": "function", "name": name}
    )


def allowed(form: str, mode: Any, tools: Any) -> dict[str, Any]:
    inner = {"mode": mode, "tools": tools}
    return {"type": "allowed_tools", **({"allowed_tools": inner} if form == "chat" else inner)}


@pytest.mark.parametrize("form", BOTH)
@pytest.mark.parametrize("kind", ["web_search", "mcp", "custom", "bogus", None, 7, {"x": 1}])
def test_a_tool_that_nobody_runs_is_refused(prepared, form: str, kind: Any) -> None:
    with pytest.raises(ApiError) as caught:
        prepared(form, {"tools": [tool(form, "f"), {"type": kind}]})
    assert caught.value.code == "unsupported_tool"
    assert str(caught.value).startswith("tools[1].type is ")
    assert str(caught.value).endswith(': it must be "function", as nothing here runs other tools')


@pytest.mark.parametrize("form", BOTH)
def test_or_is_left_out_and_never_said_to_be_there(prepared, encoding: HarmonyEncoding, form: str) -> None:
    own = tool(form, "f")
    tools = [{"type": "web_search", "filters": {}}, own, {"type": "mcp", "server_label": "x"}]
    read = prepared(form, {"tools": tools}, ignore_unknown_tools=True)
    assert read.tools == [own]
    assert read.request == prepared(form, {"tools": [own]}).request
    assert read.unknown == ()
    only = prepared(form, {"tools": tools[:1]}, ignore_unknown_tools=True)
    assert only.request == prepared(form, {}).request
    if form == "responses":
        tokens = encoding.encode("<|channel|>final<|message|>So.<|return|>", allowed_special="all")
        sample = read_sample(Completion("x", tokens, "stop", 3), encoding)
        said = response(read, sample, encoding, unique="1", model="m", created=0)
        assert said["tools"] == [own]


@pytest.mark.parametrize("form", BOTH)
def test_a_choice_of_a_tool_that_nobody_runs_is_refused_in_any_case(prepared, form: str) -> None:
    with pytest.raises(ApiError, match='tool_choice of type "web_search" is not supported'):
        prepared(form, {"tool_choice": {"type": "web_search"}}, ignore_unknown_tools=True)


@pytest.mark.parametrize("form", BOTH)
def test_allowed_tools_leave_the_others_out(prepared, encoding: HarmonyEncoding, form: str) -> None:
    tools = [tool(form, name) for name in ("first", "second", "third")]
    some = [named(form, "third"), named(form, "first")]
    read = prepared(form, {"tools": tools, "tool_choice": allowed(form, "auto", some)})
    prompt = encoding.decode(read.request.prompt)
    assert ("type first" in prompt, "type second" in prompt, "type third" in prompt) == (True, False, True)
    assert read.request.sampling.grammar is None
    assert read.tools == tools
    read = prepared(form, {"tools": tools, "tool_choice": allowed(form, "required", some)})
    assert read.request.sampling.grammar == Grammar.calls({"first": None, "third": None}, "required")


@pytest.mark.parametrize("form", BOTH)
@pytest.mark.parametrize(
    ("mode", "tools", "message"),
    [
        ("sometimes", ["first"], 'mode must be "auto" or "required", not "sometimes"'),
        (None, ["first"], 'mode must be "auto" or "required", not null'),
        ("auto", ["fourth"], 'tools names "fourth": no function in tools has this name'),
        ("auto", [], "tools must be an array of functions of `tools`, not an array"),
        ("auto", None, "tools must be an array of functions of `tools`, not null"),
    ],
)
def test_allowed_tools_that_are_none_are_one_line(prepared, form: str, mode, tools, message) -> None:
    names = tools and [named(form, name) for name in tools]
    place = "tool_choice.allowed_tools." if form == "chat" else "tool_choice."
    with pytest.raises(ApiError, match="^" + re.escape(place + message)):
        prepared(form, {"tools": [tool(form, "first")], "tool_choice": allowed(form, mode, names)})


@pytest.mark.parametrize("asked", [None, True, False])
def test_responses_repeat_whether_calls_may_be_parallel(
    prepared, encoding: HarmonyEncoding, asked: Any
) -> None:
    read = prepared("responses", {"parallel_tool_calls": asked})
    sample = read_sample(Completion("x", [encoding.return_], "stop", 3), encoding)
    said = response(read, sample, encoding, unique="1", model="m", created=0)
    assert said["parallel_tool_calls"] is (asked is not False)
