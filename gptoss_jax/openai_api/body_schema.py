"""The table of fields → the JSON Schema of a request body, as far as the table says what a value must be."""

from __future__ import annotations

import re
from typing import Any

from gptoss_jax.openai_api.field_table import TABLE, Fields
from harmony.openai_formats import BodyForm

Schema = dict[str, Any]

_REQUIRED: dict[BodyForm, str] = {"chat": "messages", "responses": "input"}

_KINDS = {
    "true, false": "boolean",
    "a string": "string",
    "an array of messages": "array",
    "an array of functions": "array",
    "an object": "object",
}
"""What the table says in words of honoured fields, where it is a JSON type and no more."""

_SERVED: dict[BodyForm, dict[str, Schema]] = {
    "chat": {},
    "responses": {
        "background": {
            "type": ["boolean", "null"],
            "description": "whether the response is made in the background",
        },
        "max_tool_calls": {
            "type": ["integer", "null"],
            "minimum": 1,
            "description": "calls of the tools that the server runs",
        },
        "previous_response_id": {"type": ["string", "null"], "description": "the response to go on from"},
    },
}
"""The fields that a server honours and a batch refuses."""


def body_schema(form: BodyForm) -> Schema:
    """The schema of a body. Fields that it does not have are ignored; null is the same as no field.

    It allows all that is answered. What it allows may be refused all the same: much of what a body must be is
    said in words.
    """
    root: Schema = {"type": "object", "required": [_REQUIRED[form]]}
    for fields in TABLE:
        if form in fields.forms:
            for name in fields.names:
                _at(root, name).update(_schema_of(fields, is_tool=name.startswith("tools[].")))
    for name, schema in _SERVED[form].items():
        root["properties"][name] = schema
    root["properties"][_REQUIRED[form]].pop("type", None)
    return root


def _at(root: Schema, name: str) -> Schema:
    """The schema of the field of a dotted path."""
    node = root
    for key in name.split("."):
        node = node.setdefault("properties", {}).setdefault(key.removesuffix("[]"), {})
        if key.endswith("[]"):
            node = node.setdefault("items", {})
    return node


def _schema_of(fields: Fields, *, is_tool: bool) -> Schema:
    says = f"{fields.allowed}: {fields.says}" if fields.allowed else fields.says
    if fields.effect == "refused":
        # Tools that are no functions are ignored, with all that they say.
        limits: Schema = {} if is_tool else {"enum": [*fields.neutral, None]}
        return {"description": f"not supported: {says}", **limits}
    if fields.effect == "without effect":
        types = {"type": [*fields.json_types, "null"]} if fields.json_types else {}
        return {"description": f"without effect: {says}", **types}
    return {"description": says, **_limits_in_words(fields.allowed)}


def _limits_in_words(allowed: str) -> Schema:
    if allowed in _KINDS:
        return {"type": [_KINDS[allowed], "null"]}
    if between := re.fullmatch(r"(-?[\d.]+) … ([\d.]+)", allowed):
        return {"type": ["number", "null"], "minimum": float(between[1]), "maximum": float(between[2])}
    if least := re.fullmatch(r"from (\d+)", allowed):
        return {"type": ["integer", "null"], "minimum": int(least[1])}
    return {}
