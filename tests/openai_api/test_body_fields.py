"""Every field of a body is honoured, without effect, or refused; and what is none of these is told."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from gptoss_jax.engine.grammar.spec import ANY_OBJECT, Document, Grammar
from gptoss_jax.openai_api import ApiError
from gptoss_jax.openai_api.field_table import BOTH, HONOURED, REFUSED, TABLE, WITHOUT_EFFECT
from gptoss_jax.openai_api.fields import UnknownField, check_fields, markdown_tables
from harmony import HarmonyEncoding
from tests.openai_api.published_fields import PUBLISHED

DOCUMENTATION = Path(__file__).parents[2] / "docs" / "batch.md"
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
VALUES = [False, True, 0, 7, -1.5, "", "x", [], ["x"], {}, {"x": 1}]


def fields_of(name: str, value: Any) -> dict[str, Any]:
    """The body that has a value at the path of a field."""
    *outer, last = name.split(".")
    body: Any = {last: value}
    for key in reversed(outer):
        body = {key.removesuffix("[]"): [body] if key.endswith("[]") else body}
    return body


@pytest.mark.parametrize("source", PUBLISHED)
def test_the_table_has_every_field_of_the_published_request_types(source: str) -> None:
    form, names = PUBLISHED[source]
    known = {name for fields in TABLE if form in fields.forms for name in fields.names}
    assert not set(names.split()) - known


def test_no_field_is_in_the_table_twice() -> None:
    for form in BOTH:
        names = [name for fields in TABLE if form in fields.forms for name in fields.names]
        assert len(names) == len(set(names))


def test_the_documentation_has_the_table() -> None:
    assert markdown_tables() in DOCUMENTATION.read_text(encoding="utf-8")


@pytest.mark.parametrize("form", BOTH)
def test_a_refused_field_is_refused_in_one_line_unless_it_asks_for_nothing(form: str) -> None:
    for fields in REFUSED:
        if form not in fields.forms:
            continue
        for name in fields.names:
            for value in (None, *fields.neutral):
                assert check_fields(fields_of(name, value), form) == []
            for value in VALUES:
                if any(json.dumps(value) == json.dumps(neutral) for neutral in fields.neutral):
                    continue
                with pytest.raises(ApiError) as caught:
                    check_fields(fields_of(name, value), form)
                assert caught.value.code == "unsupported_field"
                assert caught.value.parameter == name.replace("[]", "[0]")
                assert str(caught.value).startswith(name.replace("[]", "[0]") + " is ")
                assert "\n" not in str(caught.value)


@pytest.mark.parametrize("form", BOTH)
def test_a_field_without_effect_must_have_its_type_all_the_same(form: str) -> None:
    types = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object"}
    for fields in WITHOUT_EFFECT:
        for name in fields.names if form in fields.forms else ():
            for value in VALUES:
                kinds = {types[type(value)]} | ({"number"} if type(value) is int else set())
                if not fields.json_types or kinds & set(fields.json_types):
                    check_fields(fields_of(name, value), form)
                else:
                    with pytest.raises(ApiError, match=re.escape(f"{name.replace('[]', '[0]')} must be ")):
                        check_fields(fields_of(name, value), form)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"stream": "maybe"}, 'stream must be true or false, not "maybe"'),
        ({"store": 7}, "store must be true or false, not 7"),
        ({"metadata": []}, "metadata must be an object, not an array"),
        (
            {"stream_options": {"include_usage": 1}},
            "stream_options.include_usage must be true or false, not 1",
        ),
        ({"priority": True}, "priority must be a whole number, not true"),
        ({"echo": True}, "echo is true, which is not supported: an answer does not repeat the prompt"),
        ({"chat_template": "{{x}}"}, 'chat_template is "{{x}}", which is not supported: conversations are'),
        ({"documents": [{"text": "x"}]}, "documents is an array, which is not supported"),
        ({"text": {"format": {"type": "text"}}}, "text is a field of /v1/responses, not of this request"),
    ],
)
def test_what_is_refused_says_what_is_wrong(prepared, fields, message) -> None:
    with pytest.raises(ApiError) as caught:
        prepared("chat", fields)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"max_tool_calls": 3}, "max_tool_calls is 3, which is not supported"),
        ({"context_management": [{"type": "compaction"}]}, "context_management is an array"),
        ({"text": {"verbosity": "low"}}, 'text.verbosity is "low", which is not supported'),
        ({"include": ["bogus"]}, 'include[0] must be "message.output_text.logprobs" or "reasoning.'),
        ({"include": [["x"]]}, "include[0] must be "),
        ({"response_format": {"type": "text"}}, "response_format is a field of /v1/chat/completions"),
    ],
)
def test_what_is_refused_in_responses_says_what_is_wrong(prepared, fields, message) -> None:
    with pytest.raises(ApiError) as caught:
        prepared("responses", fields)
    assert str(caught.value).startswith(message)


def test_what_has_nothing_to_add_may_be_included(prepared) -> None:
    request = prepared("responses", {"include": ["reasoning.encrypted_content"]}).request
    assert request.sampling.logprobs is None


# Unknown names


def test_unknown_names_are_told_with_the_nearest_known_one(prepared) -> None:
    fields = {
        "temprature": 1,
        "blorp": 2,
        "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {}, "strct": True}},
        "reasoning": {"efort": "low"},
        "messages": [
            {"role": "user", "content": "a", "nmae": 1},
            {"role": "user", "content": "b", "nmae": 2},
        ],
        "tools": [{"type": "function", "function": {"name": "f", "parameter": {}}}],
        "quux": None,
    }
    assert list(prepared("chat", fields).unknown) == [
        UnknownField("messages[].nmae", "messages[].name"),
        UnknownField("temprature", "temperature"),
        UnknownField("blorp", None),
        UnknownField("response_format.json_schema.strct", "response_format.json_schema.strict"),
        UnknownField("reasoning.efort", "reasoning.effort"),
        UnknownField("tools[].function.parameter", "tools[].function.parameters"),
        UnknownField("quux", None),
    ]
    assert str(UnknownField("temprature", "temperature")) == "temprature; temperature?"
    assert str(UnknownField("blorp", None)) == "blorp"


def test_a_strict_context_refuses_unknown_names(prepared) -> None:
    with pytest.raises(ApiError) as caught:
        prepared("responses", {"max_outputs_tokens": 5}, strict=True)
    assert caught.value.code == "unknown_field"
    assert str(caught.value) == "max_outputs_tokens is no field of this request; max_output_tokens?"
    assert prepared("responses", {"max_output_tokens": 5}, strict=True).unknown == ()


def test_schemas_are_no_place_for_field_names(prepared) -> None:
    schema = {"type": "object", "properties": {"temprature": {"type": "number"}}}
    asked = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    assert prepared("chat", {"response_format": asked}).unknown == ()


# Fields of vLLM and SGLang


def final_of(prepared, form: str, fields: dict[str, Any]) -> Document | None:
    grammar = prepared(form, fields).request.sampling.grammar
    return None if grammar is None else grammar.final


@pytest.mark.parametrize("form", BOTH)
def test_a_schema_in_any_words_is_shown_and_enforced(prepared, encoding: HarmonyEncoding, form: str) -> None:
    strict = {"name": "response", "schema": SCHEMA, "strict": True}
    own = {"response_format": {"type": "json_schema", "json_schema": strict}}
    if form == "responses":
        own = {"text": {"format": {"type": "json_schema", **strict}}}
    expected = prepared(form, own).request
    assert expected.sampling.grammar == Grammar.json_schema(SCHEMA)
    for fields in (
        {"guided_json": SCHEMA},
        {"guided_json": json.dumps(SCHEMA)},
        {"structured_outputs": {"json": SCHEMA}},
        {"structured_outputs": {"json": json.dumps(SCHEMA), "regex": None, "disable_fallback": True}},
    ):
        assert prepared(form, fields).request == expected
    assert "# Response Formats\n\n## response" in encoding.decode(expected.prompt)


@pytest.mark.parametrize("form", BOTH)
def test_other_constraints_of_the_answer(prepared, form: str) -> None:
    assert final_of(prepared, form, {"structured_outputs": {"json_object": True}}) == ANY_OBJECT
    assert final_of(prepared, form, {"structured_outputs": {"json_object": False}}) is None
    pattern = Document("regex", r"\d+( apples)?")
    for fields in ({"guided_regex": pattern.text}, {"regex": pattern.text}):
        assert final_of(prepared, form, fields) == pattern
    assert final_of(prepared, form, {"structured_outputs": {"regex": pattern.text}}) == pattern
    lark = 'start: "yes" | "no"'
    for fields in ({"guided_grammar": lark}, {"structured_outputs": {"grammar": lark}}):
        assert final_of(prepared, form, fields) == Document("lark", lark)
    gbnf = final_of(prepared, form, {"ebnf": 'root ::= "yes" | "no"'})
    assert gbnf is not None and gbnf.kind == "lark" and "::=" not in gbnf.text


ODD = [
    "yes",
    "y",
    "a|b",
    "a b",
    "(",
    "[x]",
    "\\",
    "/",
    '"',
    "'",
    "^$",
    "é",
    "🙂",
    "a\nb",
    "\t",
    "<|end|>",
    "#",
    "&&",
]
ODD += ["a-z", "{2}", "%", "~", "*", "\x01", " ", "//", "<x>"]


def test_a_choice_is_exactly_one_of_its_texts(prepared, checker, encoding: HarmonyEncoding) -> None:
    asked = prepared("chat", {"guided_choice": ODD}).request.sampling.grammar
    assert prepared("chat", {"structured_outputs": {"choice": ODD}}).request.sampling.grammar == asked
    header = encoding.encode("<|channel|>final<|message|>", allowed_special="all")

    def takes(text: str) -> bool:
        tokens = [*header, *encoding.encode_ordinary(text), encoding.return_]
        return checker.compiler.compile(asked).accept(tokens) == len(tokens)

    assert [text for text in ODD if not takes(text)] == []
    wrong = [
        "",
        "yesy",
        "ye",
        "no",
        "a",
        "b",
        "c",
        "x",
        "aa",
        "a\\nb",
        ".",
        "2",
        "ab",
        "#x",
        "((",
        "end",
        "  ",
    ]
    assert [text for text in wrong if takes(text)] == []


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"guided_json": 7}, "guided_json must be a JSON Schema, or its text, not 7"),
        ({"guided_json": "{"}, 'guided_json must be a JSON Schema, or its text, not "{"'),
        ({"guided_json": {"type": "objet"}}, "guided_json: the final content: "),
        ({"guided_regex": "("}, "guided_regex: the final content: "),
        ({"guided_regex": ["a"]}, "guided_regex must be a regular expression, not an array"),
        ({"guided_choice": []}, "guided_choice must be an array of at least one string, not an array"),
        ({"guided_choice": ["a", 7]}, "guided_choice[1] must be a string that is not empty, not 7"),
        ({"guided_grammar": "start: nowhere"}, "guided_grammar: the final content: "),
        (
            {"guided_grammar": {}},
            "guided_grammar must be a grammar in Lark's or GBNF's syntax, not",
        ),
        ({"ebnf": 'root ::= "a" | other'}, "ebnf"),
        ({"structured_outputs": "json"}, 'structured_outputs must be an object, not "json"'),
        ({"structured_outputs": {"json_object": 1}}, "structured_outputs.json_object must be true or false"),
        ({"structured_outputs": {"structural_tag": "x"}}, 'structured_outputs.structural_tag is "x"'),
        (
            {"guided_regex": "a", "response_format": {"type": "json_object"}},
            "response_format and guided_regex both say what the answer must be: give one",
        ),
        (
            {"structured_outputs": {"regex": "a", "choice": ["a"]}},
            "structured_outputs.regex and structured_outputs.choice both say",
        ),
    ],
)
def test_a_constraint_that_cannot_be_enforced_is_one_line(prepared, fields, message) -> None:
    with pytest.raises(ApiError) as caught:
        prepared("chat", fields)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("form", BOTH)
def test_fields_of_servers_reach_the_engine(prepared, encoding: HarmonyEncoding, form: str) -> None:
    sampling = prepared(form, {"ignore_eos": True, "top_k": -1, "thinking_token_budget": 40}).request.sampling
    assert (sampling.min_tokens, sampling.top_k, sampling.reasoning_budget) == (2**31 - 1, 0, 40)
    assert prepared(form, {"thinking_token_budget": -1}).request.sampling.reasoning_budget is None
    prompt = prepared(form, {"chat_template_kwargs": {"reasoning_effort": "high"}}).request.prompt
    assert "Reasoning: high" in encoding.decode(prompt)
    prompt = prepared(
        form, {"reasoning_effort": "low", "chat_template_kwargs": {"reasoning_effort": "high"}}
    ).request.prompt
    assert "Reasoning: low" in encoding.decode(prompt)


def test_bad_words_are_never_drawn(prepared, encoding: HarmonyEncoding) -> None:
    (word,), (spaced,) = encoding.encode_ordinary("is"), encoding.encode_ordinary(" is")
    sampling = prepared("chat", {"bad_words": [" is"], "logit_bias": {"7": 1}}).request.sampling
    assert sampling.logit_bias == {7: 1.0, word: -1e6, spaced: -1e6}
    assert prepared("chat", {"bad_words": []}).request.sampling.logit_bias == {}
    for value, message in (
        (["unquestionably so"], 'bad_words[0] is "unquestionably so", which has'),
        ("the", 'bad_words must be an array of words, not "the"'),
        (["is", " "], 'bad_words[1] must be a word, not " "'),
    ):
        with pytest.raises(ApiError, match=re.escape(message)):
            prepared("chat", {"bad_words": value})


def test_ignore_eos_and_tokens_that_end_contradict_each_other(prepared) -> None:
    with pytest.raises(
        ApiError, match=r"^ignore_eos is true, and stop_token_ids end the completion: give one$"
    ):
        prepared("chat", {"ignore_eos": True, "stop_token_ids": [5]})


@pytest.mark.parametrize("form", BOTH)
def test_more_tokens_than_fit_are_no_error(prepared, form: str) -> None:
    name = "max_output_tokens" if form == "responses" else "max_completion_tokens"
    assert prepared(form, {name: 131_072}).request.sampling.max_tokens == 131_072


@pytest.mark.parametrize("fields", [{"include_reasoning": False}, {"reasoning": {"exclude": True}}])
def test_reasoning_can_be_left_out(prepared, fields) -> None:
    for form in BOTH:
        assert not prepared(form, fields).with_reasoning
    assert prepared("chat", {"include_reasoning": True, "reasoning": {"exclude": False}}).with_reasoning


def test_every_honoured_field_says_what_it_does() -> None:
    assert all(fields.says and "|" not in fields.allowed + fields.says for fields in HONOURED)


def test_the_reason_against_a_schema_names_no_option_of_a_library(prepared) -> None:
    with pytest.raises(ApiError) as caught:
        prepared("chat", {"guided_json": {"oneOf": [{"type": "integer"}, {"type": "number"}]}})
    assert str(caught.value) == "guided_json: the final content: oneOf constraints are not supported"
