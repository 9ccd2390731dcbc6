"""The header guard of a body's answer: what its tools and its tool choice leave to the model."""

import pytest

from gptoss_jax.engine.grammar import HeaderGuard

LOOK = {"name": "look", "parameters": {"type": "object", "properties": {}}}
OTHER = {"name": "l.o-k", "parameters": {"type": "object", "properties": {}}}


def tools_of(form: str) -> list[dict]:
    if form == "responses":
        return [{"type": "function", **function} for function in (LOOK, OTHER)]
    return [{"type": "function", "function": function} for function in (LOOK, OTHER)]


@pytest.mark.parametrize("form", ["chat", "responses"])
def test_an_answer_can_name_only_the_tools_that_its_body_declares(prepared, form) -> None:
    assert prepared(form, {}).request.sampling.header_guard == HeaderGuard()
    guard = prepared(form, {"tools": tools_of(form)}).request.sampling.header_guard
    assert guard == HeaderGuard(("functions.look", "functions.l.o-k"))


@pytest.mark.parametrize("form", ["chat", "responses"])
def test_a_tool_choice_leaves_none_or_some_of_them(prepared, form) -> None:
    none = prepared(form, {"tools": tools_of(form), "tool_choice": "none"})
    assert none.request.sampling.header_guard == HeaderGuard()
    entry = {"type": "function", "name": "look"}
    if form == "chat":
        entry = {"type": "function", "function": {"name": "look"}}
    allowed = {"mode": "auto", "tools": [entry]}
    choice = {"type": "allowed_tools", **({"allowed_tools": allowed} if form == "chat" else allowed)}
    some = prepared(form, {"tools": tools_of(form), "tool_choice": choice})
    assert some.request.sampling.header_guard == HeaderGuard(("functions.look",))


def test_under_a_grammar_there_is_no_guard_as_the_grammar_says_what_headers_are(prepared) -> None:
    required = prepared("chat", {"tools": tools_of("chat"), "tool_choice": "required"})
    assert required.request.sampling.grammar is not None
    assert required.request.sampling.header_guard is None


def test_it_can_be_switched_off(prepared) -> None:
    assert prepared("chat", {}, header_guard=False).request.sampling.header_guard is None
