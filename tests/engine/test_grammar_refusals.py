"""What cannot be enforced is refused in one line that says where and why, before anything is generated."""

from __future__ import annotations

import pytest

from checkpoints import open_checkpoint
from gptoss_jax.engine.grammar import Grammar, GrammarCompiler, GrammarError
from gptoss_jax.engine.request import RequestError
from gptoss_jax.vocabulary import load_encoding_for

TINY = load_encoding_for(open_checkpoint("tiny"))
COMPILER = GrammarCompiler(TINY, TINY.size)


def nested(depth):
    schema = {"type": "null"}
    for _ in range(depth):
        schema = {"type": "array", "items": schema}
    return schema


def wide(count):
    return {"type": "object", "properties": {f"p{index}": {"type": "null"} for index in range(count)}}


ITSELF = {"$ref": "#/$defs/a"}

UNSUPPORTED = {
    "not": ({"not": {"type": "string"}}, 'Unimplemented keys: ["not"]'),
    "uniqueItems": ({"type": "array", "uniqueItems": True}, "uniqueItems"),
    "if": ({"if": {"type": "string"}}, "Unimplemented keys"),
    "format": ({"type": "string", "format": "colour"}, "Unknown format: colour"),
    "oneOf that overlaps": ({"oneOf": [{"type": "number"}, {"type": "integer"}]}, "oneOf"),
    "look-ahead": ({"type": "string", "pattern": "^(?=a)"}, "look-ahead"),
    "back reference": ({"type": "string", "pattern": "(a)\\1"}, "backreferences"),
    "broken pattern": ({"type": "string", "pattern": "("}, "regex parse error"),
    "remote reference": ({"$ref": "https://example.com/schema"}, "example.com"),
    "reference to nothing": ({"$ref": "#/$defs/a"}, "$defs"),
    "unknown type": ({"type": "text"}, "Invalid type: text"),
    "minLength of words": ({"type": "string", "minLength": "3"}, "minLength"),
    "contradiction": (
        {"type": "integer", "minimum": 5, "maximum": 3},
        "is greater than maximum (3)",
    ),
    "no value": ({"enum": []}, "Unsatisfiable"),
    "forbidden but required": ({"type": "object", "properties": {"a": False}, "required": ["a"]}, "'a'"),
    "no multiple between": (
        {"type": "integer", "multipleOf": 7, "minimum": 15, "maximum": 20},
        "multiple of 7",
    ),
    "open keys to count": ({"type": "object", "minProperties": 2}, "minProperties is 2"),
    "large constant": ({"const": 12345678901234567890}, "2^53"),
    "large constant in it": ({"enum": [{"a": [-1e300]}]}, "2^53"),
    "large bound": ({"properties": {"n": {"type": "integer", "minimum": 2**60}}}, "#/properties/n: minimum"),
    "unwritable constant": ({"const": "a\x01"}, "control characters"),
    "long multipleOf": ({"type": "number", "multipleOf": 12345789}, "multipleOf is 12345789"),
    "multiples to combine": (
        {"type": "integer", "allOf": [{"multipleOf": 9973}, {"multipleOf": 9967}]},
        "common multiple",
    ),
    "reference to itself": ({**ITSELF, "$defs": {"a": ITSELF}}, "without end"),
    "endless objects": (
        {**ITSELF, "$defs": {"a": {"type": "object", "properties": {"a": ITSELF}, "required": ["a"]}}},
        "without end",
    ),
    "endless arrays": ({"type": "array", "minItems": 1, "items": {"$ref": "#"}}, "without end"),
    "depth": (nested(70), "more than 64 deep"),
    "width": (wide(2_001), "more than 2000 properties"),
    "many values": ({"enum": [str(index) for index in range(20_001)]}, "more than 20000 enum values"),
}


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_a_schema_that_cannot_be_enforced_is_refused_with_the_reason(name):
    schema, reason = UNSUPPORTED[name]
    with pytest.raises(GrammarError, match=r"^the final content: ") as caught:
        COMPILER.check(Grammar.json_schema(schema))
    assert reason in str(caught.value) and "\n" not in str(caught.value) and len(str(caught.value)) < 500
    with pytest.raises(GrammarError, match=r"^the arguments of function 'f': "):
        COMPILER.check(Grammar.calls({"g": None, "f": schema}))


@pytest.mark.parametrize(
    "schema",
    [
        nested(60),
        wide(2_000),
        {"enum": [str(index) for index in range(20_000)]},
        {"type": "object", "minProperties": 1},
        {"type": "object", "required": ["a"], "minProperties": 2},
        {"type": "array", "uniqueItems": False},
        {"type": "number", "multipleOf": 0.0125},
        {"type": "integer", "maximum": 1.7976931348623157e308},
        {"oneOf": [{"type": "string"}, {"type": "integer"}]},
        {"type": "object", "properties": {"next": {"$ref": "#"}}},
        {"type": "array", "items": {"$ref": "#"}},
        {"anyOf": [{"type": "null"}, {"type": "array", "minItems": 1, "items": {"$ref": "#"}}]},
        {"$ref": "#/$defs/a~1b", "$defs": {"a/b": {"type": "null"}}},
        {"unknown": 1, "title": "T", "type": "null"},
    ],
)
def test_a_schema_near_a_limit_is_taken(schema):
    COMPILER.check(Grammar.json_schema(schema))


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: Grammar.json_schema("{"), "the schema is no JSON"),
        (lambda: Grammar.json_schema("[]"), "must be a JSON object"),
        (lambda: Grammar.json_schema({"const": float("nan")}), "the schema is no JSON"),
        (lambda: Grammar.json_schema({"const": "\ud800"}), "the schema"),
        (lambda: Grammar.json_schema({"const": object()}), "the schema is no JSON"),
        (lambda: Grammar.json_schema(nested(100_000)), "nested too deeply"),
        (lambda: Grammar.regex(5), "the regex grammar is 5"),
        (lambda: Grammar.regex("\ud800"), "lone surrogate"),
        (lambda: Grammar.lark("a" * 2_000_000), "at most 1048576"),
        (lambda: Grammar.calls({}), "no function to call"),
        (lambda: Grammar.calls({}, "auto"), "constrains nothing"),
        (lambda: Grammar.calls({"a": None}, "none"), "constrains nothing"),
        (
            lambda: Grammar.calls({"a": None}, "b"),
            "tool choice 'b'",
        ),
        (lambda: Grammar.calls({"a b": None}), "function 'a b'"),
        (lambda: Grammar.calls({'a"<|end|>': None}), "its name must be"),
        (lambda: Grammar.calls({"a": "no"}), "the parameters of function 'a'"),
    ],
)
def test_a_grammar_of_the_wrong_shape_is_refused_when_it_is_made(make, reason):
    with pytest.raises(GrammarError) as caught:
        make()
    assert reason in str(caught.value) and "\n" not in str(caught.value)
    assert isinstance(caught.value, RequestError)


@pytest.mark.parametrize(
    ("grammar", "reason"),
    [
        (Grammar.regex("(a"), "unclosed group"),
        (Grammar.regex("a(?=b)"), "look-around"),
        (Grammar.regex("a\\b"), "lookarounds"),
        (Grammar.regex("[^\\x00-\\x{10FFFF}]"), "no text can match it"),
        (Grammar.lark('begin: "a"'), "no start rule found"),
        (Grammar.lark('start: "a" b'), "b"),
        (Grammar.lark('start: "a" <|end|>'), "names special tokens"),
        (Grammar.lark("start: /a/ <[5-9]> // x"), "names special tokens"),
        (Grammar.lark("start: @completion"), "unknown grammar"),
        (Grammar.lark('start: %json {"not": {}}'), "Unimplemented keys"),
    ],
)
def test_another_grammar_that_cannot_be_enforced_is_refused_with_the_reason(grammar, reason):
    with pytest.raises(GrammarError, match=r"^the final content: ") as caught:
        COMPILER.check(grammar)
    assert reason in str(caught.value) and "\n" not in str(caught.value)


def test_angle_brackets_in_strings_regexes_and_comments_are_no_special_tokens():
    COMPILER.check(Grammar.lark('start: "<|end|>" /<a>/ "\\"<b>" // <c>\n'))


def test_equal_grammars_are_equal_and_hash_alike():
    first = Grammar.json_schema({"type": "null", "title": "x"}).with_calls({"f": None})
    second = Grammar.json_schema('{"type": "null",  "title": "x"}').with_calls({"f": {"type": "object"}})
    assert first == second and hash(first) == hash(second)
    assert first != first.with_calls({"f": None}, "required")
