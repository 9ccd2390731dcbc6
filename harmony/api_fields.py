"""Reading the fields of OpenAI's API bodies: each check names the field in its one-line error."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from .errors import HarmonyFormatError, shown
from .messages import ToolDescription
from .numbers import compact_json

_TEXT_PARTS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}
FUNCTION_NAME = re.compile(r"[A-Za-z0-9_.-]+")


def require(holds: bool, field: str, value: Any, allowed: str) -> None:
    """Raises unless the condition holds."""
    if not holds:
        raise HarmonyFormatError(f"{field} is {shown(value)}: it must be {allowed}")


def string(value: Any, field: str) -> str:
    """A string that can be encoded."""
    require(isinstance(value, str), field, value, "a string")
    try:
        value.encode("utf-16", "surrogatepass").decode("utf-16")
    except UnicodeDecodeError:
        raise HarmonyFormatError(f"{field} is {shown(value)}: it has a lone surrogate") from None
    return value


def text_of(value: Any, field: str) -> str:
    """Text, or the joined texts of a list of parts."""
    if isinstance(value, str):
        return string(value, field)
    require(isinstance(value, Sequence), field, value, "a string or a list of text parts")
    texts = []
    for index, part in enumerate(value):
        where = f"{field}[{index}]"
        require(isinstance(part, Mapping), where, part, "an object")
        kind = part.get("type")
        if not isinstance(kind, str) or kind not in _TEXT_PARTS:
            raise HarmonyFormatError(f"{where}.type is {shown(kind)}: it must be {', '.join(_TEXT_PARTS)}")
        texts.append(string(part.get(_TEXT_PARTS[kind]), f"{where}.{_TEXT_PARTS[kind]}"))
    return "".join(texts)


def function_name(value: Any, field: str) -> str:
    """A name that is one word of a header or a heading."""
    name = string(value, field)
    if not FUNCTION_NAME.fullmatch(name):
        raise HarmonyFormatError(
            f"{field} is {shown(name)}: it must be letters, digits, '_', '-' and '.' only"
        )
    return name


def function_tools(tools: Any, *, nested: bool) -> list[ToolDescription]:
    """The functions among the tools; Chat Completions nests a function in a field `function`."""
    if tools is None:
        return []
    require(isinstance(tools, Sequence) and not isinstance(tools, str), "tools", tools, "a list")
    functions: list[ToolDescription] = []
    for index, tool in enumerate(tools):
        field = f"tools[{index}]"
        require(isinstance(tool, Mapping), field, tool, "an object")
        if tool.get("type") != "function":
            continue
        if nested:
            field += ".function"
            tool = tool.get("function")
            require(isinstance(tool, Mapping), field, tool, "an object")
        name = function_name(tool.get("name"), f"{field}.name")
        if any(name == other.name for other in functions):
            raise HarmonyFormatError(f"{field}.name is {shown(name)}: another function has this name")
        description = tool.get("description")
        parameters = tool.get("parameters")
        schema = {} if parameters is None else json_schema(parameters, f"{field}.parameters")
        functions.append(
            ToolDescription(
                name=name,
                description="" if description is None else string(description, f"{field}.description"),
                parameters=None if _takes_nothing(schema) else schema,
            )
        )
    return functions


def json_schema(value: Any, field: str) -> dict[str, Any]:
    """A JSON Schema that can be rendered: finite numbers, Unicode strings, nesting within bounds."""
    require(isinstance(value, Mapping), field, value, "an object")
    try:
        text = compact_json(value)
    except ValueError as error:
        raise HarmonyFormatError(f"{field} is no JSON Schema: {error}") from None
    string(text, field)
    return dict(value)


def _takes_nothing(schema: Mapping[str, Any]) -> bool:
    return not schema or (schema.get("type") == "object" and not schema.get("properties"))


def chosen_tools(functions: list[ToolDescription], choice: Any) -> list[ToolDescription]:
    """The functions that `tool_choice` leaves to the model."""
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
            raise HarmonyFormatError(f"tool_choice names {shown(name)}: no function in tools has this name")
        return chosen
    raise HarmonyFormatError(
        f"tool_choice is {shown(choice)}: it must be none, auto, required or a function of tools"
    )


def schema_format(form: Any, field: str, *, nested: bool) -> tuple[str, dict[str, Any], str | None] | None:
    """Name, schema and description of the format; Chat Completions nests them in `json_schema`."""
    if form is None:
        return None
    require(isinstance(form, Mapping), field, form, "an object")
    kind = form.get("type")
    if kind == "text":
        return None
    if kind == "json_object":
        return "json_object", {"type": "object"}, None
    if kind != "json_schema":
        raise HarmonyFormatError(
            f"{field}.type is {shown(kind)}: it must be text, json_object or json_schema"
        )
    if nested:
        field += ".json_schema"
        form = form.get("json_schema")
        require(isinstance(form, Mapping), field, form, "an object")
    name = function_name(form.get("name"), f"{field}.name")
    schema = json_schema(form.get("schema", {}), f"{field}.schema")
    description = form.get("description")
    if description is not None:
        string(description, f"{field}.description")
    return name, schema, description
