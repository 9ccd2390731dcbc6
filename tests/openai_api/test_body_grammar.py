"""What the bodies of OpenAI's APIs ask to be enforced."""

from __future__ import annotations

import pytest

from gptoss_jax.engine.grammar import Grammar, GrammarError
from gptoss_jax.openai_api import ApiError
from gptoss_jax.openai_api.answer_format import answer_format
from gptoss_jax.openai_api.grammar import completion_grammar
from harmony import DeveloperContent, HarmonyFormatError, Message, Role, load_harmony_encoding

REFUSALS = (ApiError, GrammarError, HarmonyFormatError)
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}


def grammar_from_body(body, form):
    asked = answer_format(body, form)
    return completion_grammar(None if asked is None else asked.document, body, form)


def response_format(form, **fields):
    described = {"type": "json_schema", "name": "answer", "schema": SCHEMA, **fields}
    if form == "responses":
        return {"input": "x", "text": {"format": described}}
    kind = described.pop("type")
    return {"messages": [], "response_format": {"type": kind, "json_schema": described}}


def tool(form, name, **fields):
    function = {"name": name, "parameters": SCHEMA, **fields}
    return {"type": "function", "function": function} if form == "chat" else {"type": "function", **function}


def named(form, name):
    inner = {"name": name}
    return {"type": "function", "function": inner} if form == "chat" else {"type": "function", **inner}


@pytest.fixture(params=["chat", "responses"])
def form(request):
    return request.param


def test_nothing_asked_is_no_grammar(form):
    assert grammar_from_body({}, form) is None
    assert grammar_from_body({"tools": [tool(form, "f")]}, form) is None
    assert grammar_from_body({"tools": None, "tool_choice": "auto", "text": {}}, form) is None
    assert grammar_from_body({"tools": [{"type": "web_search"}]}, form) is None


def test_only_a_strict_schema_is_enforced(form):
    assert grammar_from_body(response_format(form, strict=True), form) == Grammar.json_schema(SCHEMA)
    assert grammar_from_body(response_format(form, strict=False), form) is None
    assert grammar_from_body(response_format(form, strict=None), form) is None
    assert grammar_from_body(response_format(form), form) is None


def test_a_json_object_is_enforced(form):
    asked = {"type": "json_object"}
    body = {"response_format": asked} if form == "chat" else {"text": {"format": asked}}
    assert grammar_from_body(body, form) == Grammar.json_object()


def test_the_arguments_of_strict_functions_are_enforced_and_others_are_objects(form):
    tools = [tool(form, "loose"), tool(form, "tight", strict=True), {"type": "web_search"}]
    expected = Grammar.calls({"loose": None, "tight": SCHEMA}, "auto")
    assert grammar_from_body({"tools": tools}, form) == expected


def test_a_strict_function_without_parameters_takes_nothing(form):
    strict = tool(form, "f", strict=True, parameters=None)
    arguments = {"type": "object", "properties": {}, "additionalProperties": False}
    assert grammar_from_body({"tools": [strict]}, form) == Grammar.calls({"f": arguments}, "auto")


def test_a_required_call_and_a_named_one_are_enforced(form):
    tools = [tool(form, "f"), tool(form, "g")]
    body = {"tools": tools, "tool_choice": "required"}
    assert grammar_from_body(body, form) == Grammar.calls({"f": None, "g": None}, "required")
    body = {"tools": tools, "tool_choice": named(form, "g")}
    assert grammar_from_body(body, form) == Grammar.calls({"g": None}, "required")


def test_a_format_and_functions_go_together(form):
    body = {**response_format(form, strict=True), "tools": [tool(form, "f")]}
    assert grammar_from_body(body, form) == Grammar.json_schema(SCHEMA).with_calls({"f": None})
    body["tool_choice"] = "none"
    assert grammar_from_body(body, form) == Grammar.json_schema(SCHEMA)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"tools": 5}, "tools is 5"),
        ({"tools": [5]}, "tools[0] is 5"),
        ({"tool_choice": "always"}, 'tool_choice is "always"'),
        ({"tool_choice": "required"}, "no function to call"),
        (
            {"tool_choice": {"type": "function", "name": "f", "function": {"name": "f"}}},
            'tool_choice names "f"',
        ),
    ],
)
def test_fields_of_the_wrong_shape_are_refused_by_name(form, fields, reason):
    with pytest.raises(REFUSALS) as caught:
        grammar_from_body(fields, form)
    assert reason in str(caught.value) and "\n" not in str(caught.value)


def test_formats_of_the_wrong_shape_are_refused_by_name(form):
    field = "response_format" if form == "chat" else "text.format"
    inner = f"{field}.json_schema" if form == "chat" else field
    for fields, reason in (
        ({"type": "xml"}, f'{field}.type is "xml"'),
        ({"strict": "yes"}, f'{inner}.strict must be true or false, not "yes"'),
        ({"schema": 3, "strict": True}, f"{inner}.schema is 3"),
        ({"name": None, "strict": True}, f"{inner}.name is null"),
    ):
        with pytest.raises(REFUSALS) as caught:
            grammar_from_body(response_format(form, **fields), form)
        assert reason in str(caught.value)
    with pytest.raises(
        (ApiError, GrammarError, HarmonyFormatError),
        match=r"text must be an object, not 5|response_format is 5",
    ):
        grammar_from_body({"text": 5, "response_format": 5}, form)
    with pytest.raises(
        (ApiError, GrammarError, HarmonyFormatError), match="strict must be true or false, not 1"
    ):
        grammar_from_body({"tools": [tool(form, "f", strict=1)]}, form)


def test_the_schema_is_described_to_the_model_without_changing_the_message_given():
    developer = DeveloperContent(instructions="Be brief.")
    described = Grammar.json_schema(SCHEMA).described_in(developer, "answer", "What to say.")
    message = Message.from_role_and_content(Role.DEVELOPER, described)
    text = (
        "<|start|>developer<|message|># Instructions\n\nBe brief.\n\n# Response Formats\n\n## answer\n\n"
        '// What to say.\n{"type":"object","properties":{"a":{"type":"integer"}},"required":["a"]}<|end|>'
    )
    encoding = load_harmony_encoding()
    assert encoding.decode(encoding.render(message)) == text
    assert developer == DeveloperContent(instructions="Be brief.")
    assert Grammar.regex("a").described_in(developer) == developer
