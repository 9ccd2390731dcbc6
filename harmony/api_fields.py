"""Reads the fields of OpenAI's API bodies. Each function raises HarmonyFormatError, which names the field."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from .errors import HarmonyFormatError, shown_json
from .json_data import json_data
from .json_types import JsonObject
from .messages import ToolDescription
from .surrogates import without_surrogates

_TEXT_PARTS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}
"""The types of parts that hold text → the field that holds it."""

FUNCTION_NAME = re.compile(r"[A-Za-z0-9_.-]+")


def require(holds: bool, field: str, value: object, allowed: str) -> None:
    """Raises HarmonyFormatError "`field` is `value`: it must be `allowed`" unless the condition holds."""
    if not holds:
        raise HarmonyFormatError(f"{field} is {shown_json(value)}: it must be {allowed}")


def as_object(value: object, field: str) -> Mapping[str, object]:
    """The value, if it is an object."""
    if not isinstance(value, Mapping):
        raise HarmonyFormatError(f"{field} is {shown_json(value)}: it must be an object")
    return value


def as_list(value: object, field: str, allowed: str = "a list") -> Sequence[object]:
    """The value, if it is a list."""
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise HarmonyFormatError(f"{field} is {shown_json(value)}: it must be {allowed}")
    return value


def string(value: object, field: str) -> str:
    """The value, if it is a string without lone surrogates."""
    if not isinstance(value, str):
        raise HarmonyFormatError(f"{field} is {shown_json(value)}: it must be a string")
    try:
        without_surrogates(value)
    except ValueError:
        raise HarmonyFormatError(f"{field} is {shown_json(value)}: it has a lone surrogate") from None
    return value


def text_of(value: object, field: str) -> str:
    """A string, or the texts of a list of parts, joined."""
    if isinstance(value, str):
        return string(value, field)
    texts = []
    for index, item in enumerate(as_list(value, field, "a string or a list of text parts")):
        where = f"{field}[{index}]"
        part = as_object(item, where)
        kind = part.get("type")
        if not isinstance(kind, str) or kind not in _TEXT_PARTS:
            raise HarmonyFormatError(
                f"{where}.type is {shown_json(kind)}: it must be {', '.join(_TEXT_PARTS)}"
            )
        texts.append(string(part.get(_TEXT_PARTS[kind]), f"{where}.{_TEXT_PARTS[kind]}"))
    return "".join(texts)


def function_name(value: object, field: str) -> str:
    """The value, if it can be the name of a function."""
    name = string(value, field)
    if not FUNCTION_NAME.fullmatch(name):
        raise HarmonyFormatError(
            f"{field} is {shown_json(name)}: it must be letters, digits, '_', '-' and '.' only"
        )
    return name


def function_tools(tools: object, *, nested: bool) -> list[ToolDescription]:
    """The functions among the tools of a request; tools of other types are left out.

    `nested` is True for Chat Completions, where a function is in the field `function` of its tool, and False
    for Responses.
    """
    if tools is None:
        return []
    functions: list[ToolDescription] = []
    for index, item in enumerate(as_list(tools, "tools")):
        field = f"tools[{index}]"
        tool = as_object(item, field)
        if tool.get("type") != "function":
            continue
        if nested:
            field += ".function"
            tool = as_object(tool.get("function"), field)
        name = function_name(tool.get("name"), f"{field}.name")
        if any(name == other.name for other in functions):
            raise HarmonyFormatError(f"{field}.name is {shown_json(name)}: another function has this name")
        description = tool.get("description")
        parameters = tool.get("parameters")
        schema = {} if parameters is None else json_schema(parameters, f"{field}.parameters")
        functions.append(
            ToolDescription(
                name=name,
                description="" if description is None else string(description, f"{field}.description"),
                parameters=None if _has_no_properties(schema) else schema,
            )
        )
    return functions


def json_schema(value: object, field: str) -> JsonObject:
    """A JSON Schema as JSON data that can be rendered: finite numbers, Unicode text, at most 128 levels."""
    schema = as_object(value, field)
    try:
        data = json_data(schema)
    except ValueError as error:
        raise HarmonyFormatError(f"{field} is not a JSON Schema: {error}") from None
    assert isinstance(data, dict)  # as it is made of a mapping
    return data


def _has_no_properties(schema: JsonObject) -> bool:
    return not schema or (schema.get("type") == "object" and not schema.get("properties"))


def chosen_tools(functions: list[ToolDescription], choice: object) -> list[ToolDescription]:
    """The functions that the model may still call under a request's `tool_choice`."""
    if choice is None or choice in ("auto", "required"):
        return functions
    if choice == "none":
        return []
    if isinstance(choice, Mapping):
        if choice.get("type") != "function":
            return functions
        nested = choice.get("function")
        name = (nested if isinstance(nested, Mapping) else choice).get("name")
        chosen = [function for function in functions if function.name == name]
        if not chosen:
            raise HarmonyFormatError(
                f"tool_choice names {shown_json(name)}: no function in tools has this name"
            )
        return chosen
    raise HarmonyFormatError(
        f"tool_choice is {shown_json(choice)}: it must be none, auto, required or a function of tools"
    )


def schema_format(value: object, field: str, *, nested: bool) -> tuple[str, JsonObject, str | None] | None:
    """The name, the JSON Schema and the description of a response format; None for plain text.

    The description is None if there is none. `nested` is True for Chat Completions, where all three are in
    the field `json_schema`, and False for Responses.
    """
    if value is None:
        return None
    form = as_object(value, field)
    kind = form.get("type")
    if kind == "text":
        return None
    if kind == "json_object":
        return "json_object", {"type": "object"}, None
    if kind != "json_schema":
        raise HarmonyFormatError(
            f"{field}.type is {shown_json(kind)}: it must be text, json_object or json_schema"
        )
    if nested:
        field += ".json_schema"
        form = as_object(form.get("json_schema"), field)
    name = function_name(form.get("name"), f"{field}.name")
    schema = json_schema(form.get("schema", {}), f"{field}.schema")
    description = form.get("description")
    return name, schema, None if description is None else string(description, f"{field}.description")
