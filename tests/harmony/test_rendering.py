"""What rendering can do beyond openai-harmony: policies, placement, the improved schema form."""

from __future__ import annotations

import re
from random import Random
from typing import Any

import pytest

from harmony import (
    Author,
    Conversation,
    DeveloperContent,
    HarmonyEncoding,
    HarmonyFormatError,
    Message,
    RenderConversationConfig,
    RenderOptions,
    Role,
    ToolDescription,
    parse_completion,
)
from harmony.typescript_improved import improved
from tests.harmony import generators as generate


def user(text: str) -> Message:
    return Message.from_role_and_content(Role.USER, text)


def said(channel: str, text: str, recipient: str | None = None) -> Message:
    message = Message.from_role_and_content(Role.ASSISTANT, text).with_channel(channel)
    message.recipient = recipient
    return message


def result(name: str, text: str, channel: str = "commentary") -> Message:
    message = Message.from_author_and_content(Author.new(Role.TOOL, name), text)
    return message.with_channel(channel).with_recipient("assistant")


HISTORY = [
    user("q1"),
    said("analysis", "a1"),
    said("analysis", "search", "browser.search"),
    result("browser.search", "r1"),
    said("commentary", "call", "functions.f"),
    result("functions.f", "r2"),
    said("final", "f1"),
    user("q2"),
    said("analysis", "a2"),
    said("final", "f2"),
]
GOING_ON = [*HISTORY, user("q3"), said("analysis", "a3"), said("commentary", "call2", "functions.f")]


@pytest.mark.parametrize(
    ("policy", "messages", "kept"),
    [
        ("none", HISTORY, "q1 a1 search r1 call r2 f1 q2 a2 f2"),
        ("compatible", HISTORY, "q1 r1 call r2 f1 q2 a2 f2"),
        ("guide", HISTORY, "q1 call r2 f1 q2 f2"),
        ("compatible", GOING_ON, "q1 a1 search r1 call r2 f1 q2 a2 f2 q3 a3 call2"),
        ("guide", GOING_ON, "q1 call r2 f1 q2 f2 q3 a3 call2"),
        ("guide", HISTORY[:5], "q1 a1 search r1 call"),
    ],
)
def test_each_policy_keeps_what_it_says(
    policy: Any, messages: list[Message], kept: str, encoding: HarmonyEncoding
) -> None:
    tokens = encoding.render_conversation(
        Conversation.from_messages(messages), RenderConversationConfig(analysis_policy=policy)
    )
    texts = re.findall(r"<\|message\|>(\w+)", encoding.decode(tokens))
    assert texts == kept.split()


def test_keeping_all_analysis_wins_over_the_policy(encoding: HarmonyEncoding) -> None:
    config = RenderConversationConfig(auto_drop_analysis=False, analysis_policy="guide")
    conversation = Conversation.from_messages(HISTORY)
    everything = RenderConversationConfig(analysis_policy="none")
    assert encoding.render_conversation(conversation, config) == encoding.render_conversation(
        conversation, everything
    )


IN_ROLE = "<|start|>assistant to=functions.f<|channel|>commentary <|constrain|>json<|message|>{}<|call|>"
IN_CHANNEL = "<|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{}<|call|>"


@pytest.mark.parametrize("text", [IN_ROLE, IN_CHANNEL])
def test_a_call_is_rendered_as_it_was_sampled(text: str, encoding: HarmonyEncoding) -> None:
    tokens = encoding.encode(text, allowed_special="all")
    (message,) = parse_completion(encoding, tokens, role=None).messages
    assert encoding.render(message) == tokens
    assert encoding.render(Message.from_dict(message.to_dict())) == tokens


def test_the_place_of_the_recipient_can_be_chosen_and_does_not_change_the_message(
    encoding: HarmonyEncoding,
) -> None:
    tokens = encoding.encode(IN_ROLE, allowed_special="all")
    (message,) = parse_completion(encoding, tokens, role=None).messages
    for place, text in (("role", IN_ROLE), ("channel", IN_CHANNEL)):
        options = RenderOptions(recipient_place=place)
        assert encoding.decode(encoding.render(message, options)) == text
        config = RenderConversationConfig(recipient_place=place)
        conversation = Conversation.from_messages([message])
        assert encoding.decode(encoding.render_conversation(conversation, config)) == text
        (again,) = parse_completion(encoding, encoding.render(message, options), role=None).messages
        assert again == message


def test_the_improved_form_reaches_the_prompt(encoding: HarmonyEncoding) -> None:
    tree = {
        "$ref": "#/$defs/Node",
        "$defs": {
            "Node": {
                "type": "object",
                "properties": {
                    "value": {"type": "integer", "description": "First line.\nSecond line."},
                    "children": {"type": "array", "items": {"$ref": "#/$defs/Node"}},
                },
                "required": ["value"],
            }
        },
    }
    developer = DeveloperContent.new().with_function_tools(
        [
            ToolDescription.new("walk", "Walks a tree.", tree),
            ToolDescription.new("now", "", {"type": "object"}),
        ]
    )
    message = Message.from_role_and_content(Role.DEVELOPER, developer)
    text = encoding.decode(encoding.render(message, RenderOptions(schema_form="improved")))
    node = "{\n// First line.\n// Second line.\nvalue: number,\nchildren?: walk_Node[],\n}"
    assert text == (
        "<|start|>developer<|message|># Tools\n\n## functions\n\nnamespace functions {\n\n"
        f"type walk_Node = {node};\n\n// Walks a tree.\ntype walk = (_: {node}) => any;\n\n"
        "type now = () => any;\n\n} // namespace functions<|end|>"
    )


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "string | null"),
        ({"oneOf": [{"type": "string"}, {"type": "string"}]}, "string"),
        ({"enum": [1, 2.5, "a", None, True]}, '1 | 2.5 | "a" | null | true'),
        ({"type": "integer", "enum": [1, 2]}, "1 | 2"),
        ({"const": 'a"b'}, '"a\\"b"'),
        ({"type": "null"}, "null"),
        ({"type": ["string", "null"], "nullable": True}, "string | null"),
        ({"type": "string", "nullable": True}, "string | null"),
        ({"type": "array", "items": {"enum": ["a", "b"]}}, '("a" | "b")[]'),
        ({"type": ["array", "null"], "items": {"type": "integer"}}, "number[] | null"),
        ({"type": "array"}, "any[]"),
        ({"prefixItems": [{"type": "string"}, {"type": "number"}]}, "[string, number]"),
        ({"type": "object"}, "object"),
        ({"type": "object", "additionalProperties": {"type": "number"}}, "{\n[key: string]: number,\n}"),
        ({"properties": {"a-b": {}, 'c"d': {}}}, '{\n"a-b"?: any,\n"c\\"d"?: any,\n}'),
        (
            {"properties": {"x": {"type": "string", "default": 'say "hi"'}}},
            '{\nx?: string, // default: "say \\"hi\\""\n}',
        ),
        (
            {"allOf": [{"properties": {"a": {}}}, {"properties": {"b": {}}, "required": ["b"]}]},
            "{\na?: any,\nb: any,\n}",
        ),
        ({"allOf": [{"type": "string"}, {"enum": ["a", "b"]}]}, 'string & ("a" | "b")'),
        (
            {"anyOf": [{"type": "string", "description": "a word"}, {"type": "number"}]},
            "\n | string // a word\n | number\n",
        ),
        ({"$ref": "#/nowhere"}, "any"),
        ({"$ref": "#"}, "any"),
        ({"$ref": "#/a", "a": {"$ref": "#/b"}, "b": {"$ref": "#/a"}}, "any"),
        ({"properties": {"x": {"title": "X", "type": "string"}}}, "{\nx?: string,\n}"),
        ({"properties": {"x": {"title": "Other"}}}, "{\n// Other\n//\nx?: any,\n}"),
        (True, "any"),
        (False, "never"),
    ],
)
def test_the_improved_form_says_what_the_schema_says(schema: Any, text: str) -> None:
    assert improved(schema) == (text, {})


def test_a_schema_that_holds_itself_becomes_a_named_type() -> None:
    schema = {
        "properties": {"next": {"$ref": "#"}, "other": {"$ref": "#/properties/list"}, "list": {"items": {}}}
    }
    text, named = improved(schema, "f_")
    assert text == "{\nnext?: f_arguments,\nother?: f_list,\nlist?: any[],\n}"
    assert named == {"f_arguments": text, "f_list": "any[]"}


def test_any_generated_schema_has_an_improved_form_with_balanced_brackets() -> None:
    for seed in range(500):
        schema = generate.schema(Random(seed), depth=4)
        text, named = improved(schema)
        code = re.sub(r'"(?:[^"\\]|\\.)*"', "", re.sub(r"(?m)^\s*//.*$| // .*$", "", text))
        for opening, closing in ("{}", "[]", "()"):
            assert code.count(opening) == code.count(closing), (schema, text)
        assert named == {}


NESTING = {
    "items": lambda schema: {"type": "array", "items": schema},
    "properties": lambda schema: {"type": "object", "properties": {"a": schema}},
    "additionalProperties": lambda schema: {"type": "object", "additionalProperties": schema},
    "anyOf": lambda schema: {"anyOf": [schema, {"type": "null"}], "default": 1},
    "oneOf": lambda schema: {"oneOf": [schema, {"type": "null"}], "description": "x"},
    "allOf": lambda schema: {"allOf": [schema, {"minimum": 1}]},
    "prefixItems": lambda schema: {"prefixItems": [schema], "items": {"type": "string"}},
    "types": lambda schema: {"type": ["array", "null"], "items": schema},
    "const": lambda schema: {"const": schema},
}


def nested(keyword: str, levels: int) -> Any:
    """A schema whose lists and objects stand in each other so many levels deep, or one less."""
    schema: Any = {"type": "string"}
    while depth(larger := NESTING[keyword](schema)) <= levels:
        schema = larger
    return schema


def depth(value: Any) -> int:
    if not isinstance(value, dict | list):
        return 0
    return 1 + max(map(depth, value.values() if isinstance(value, dict) else value), default=0)


@pytest.mark.parametrize("form", ["compatible", "improved"])
@pytest.mark.parametrize("keyword", NESTING)
def test_schemas_are_rendered_to_a_depth_of_128_and_refused_beyond(
    keyword: str, form: Any, encoding: HarmonyEncoding
) -> None:
    def rendered(schema: Any) -> str:
        tools = DeveloperContent.new().with_function_tools([ToolDescription.new("f", "", schema)])
        message = Message.from_role_and_content(Role.DEVELOPER, tools)
        return encoding.decode(encoding.render(message, RenderOptions(schema_form=form)))

    assert "type f = " in rendered(nested(keyword, 128))
    too_deep = NESTING[keyword](nested(keyword, 128))
    with pytest.raises(HarmonyFormatError, match=r"^the schema of 'f' is nested more than 128 levels deep$"):
        rendered(too_deep)


def test_circles_and_deep_response_formats_are_refused_too(encoding: HarmonyEncoding) -> None:
    circle: dict[str, Any] = {"type": "array"}
    circle["items"] = circle
    deep: dict[str, Any] = {}
    for _ in range(5000):
        deep = NESTING["items"](deep)
    for schema in (circle, deep):
        developer = DeveloperContent.new().with_response_format("answer", {})
        assert developer.response_formats
        developer.response_formats[0].json_schema = schema
        with pytest.raises(HarmonyFormatError, match=r"^the schema of 'answer' is nested more than 128"):
            encoding.render(Message.from_role_and_content(Role.DEVELOPER, developer))
