"""What the bodies of OpenAI's APIs ask a completion to be."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gptoss_jax.engine.grammar.asked import (
    ANY_OBJECT,
    Document,
    Function,
    Grammar,
    GrammarError,
    schema_document,
)
from harmony.api_fields import chosen_tools, function_tools, schema_format
from harmony.errors import HarmonyFormatError, shown
from harmony.openai_formats import BodyForm

_NO_ARGUMENTS = {"type": "object", "properties": {}, "additionalProperties": False}


def grammar_from_body(body: Mapping[str, Any], form: BodyForm) -> Grammar | None:
    """What a request body asks to be enforced; None if nothing is.

    Enforced are `json_object`; a `json_schema` with `strict: true` (without it the schema is only shown to
    the model); the arguments of functions with `strict: true`; and a `tool_choice` that is "required" or
    names a function. Where a grammar is needed at all, the arguments of the other functions must be a JSON
    object. Raises GrammarError for fields of the wrong shape.
    """
    try:
        return _grammar(body, form)
    except HarmonyFormatError as error:
        raise GrammarError(str(error)) from None


def _grammar(body: Mapping[str, Any], form: BodyForm) -> Grammar | None:
    is_chat = form == "chat"
    if is_chat:
        asked, field = body.get("response_format"), "response_format"
    else:
        text, field = body.get("text"), "text.format"
        if text is not None and not isinstance(text, Mapping):
            raise GrammarError(f"text is {shown(text)}: it must be an object")
        asked = None if text is None else text.get("format")
    final = _final(asked, field, is_chat)
    tools, choice = body.get("tools"), body.get("tool_choice")
    described = function_tools(tools, nested=is_chat)
    allowed = {function.name for function in chosen_tools(described, choice)}
    functions, any_strict = [], False
    for index, tool in enumerate(tools or ()):
        if tool.get("type") != "function":
            continue
        function = tool["function"] if is_chat else tool
        if function["name"] not in allowed:
            continue
        arguments = ANY_OBJECT
        if _flag(function.get("strict"), f"tools[{index}].{'function.' if is_chat else ''}strict"):
            any_strict = True
            parameters = function.get("parameters")
            where = f"tools[{index}].{'function.' if is_chat else ''}parameters"
            arguments = schema_document(_NO_ARGUMENTS if parameters is None else parameters, where)
        functions.append(Function(function["name"], arguments))
    must_call = choice == "required" or (isinstance(choice, Mapping) and choice.get("type") == "function")
    if must_call:
        if not functions:
            raise GrammarError(f"tool_choice is {shown(choice)}: tools has no function to call")
        return Grammar(final, tuple(functions), "required")
    if final is None and not any_strict:
        return None
    return Grammar(final, tuple(functions))


def _final(asked: Any, field: str, is_chat: bool) -> Document | None:
    described = schema_format(asked, field, nested=is_chat)
    if described is None:
        return None
    if asked["type"] == "json_object":
        return ANY_OBJECT
    if is_chat:
        asked, field = asked["json_schema"], f"{field}.json_schema"
    if not _flag(asked.get("strict"), f"{field}.strict"):
        return None
    return schema_document(described[1], f"{field}.schema")


def _flag(value: Any, field: str) -> bool:
    if value is not None and not isinstance(value, bool):
        raise GrammarError(f"{field} is {shown(value)}: it must be true or false")
    return bool(value)
