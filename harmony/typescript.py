"""JSON Schema → the TypeScript-like types in which functions are shown to the model.

`compatible` reproduces openai-harmony 0.0.8 character for character, quirks included: it is the best known
description of what the model was trained on.
"""

from __future__ import annotations

from typing import TypeGuard

from .json_types import Json, JsonObject
from .numbers import compact_json


def compatible(schema: Json, indent: str = "") -> str:
    """The type of a schema, as openai-harmony 0.0.8 writes it; `indent` begins all lines but the first.

    `oneOf` comes first, then a list of types, then a single `type`. Everything else is `any`, also what is
    not a valid schema.
    """
    if not isinstance(schema, dict):
        return "any"
    variants = schema.get("oneOf")
    if isinstance(variants, list):
        return "".join(_variant(variant, indent) for variant in variants)
    kind = schema.get("type")
    if isinstance(kind, list):
        names = ["number" if name == "integer" else name for name in kind if isinstance(name, str)]
        if names:
            return " | ".join(names)
    if kind == "object":
        return _object(schema, indent)
    if kind == "string":
        values = schema.get("enum")
        quoted = [f'"{v}"' for v in values if isinstance(v, str)] if isinstance(values, list) else []
        return " | ".join(quoted) or "string"
    if kind in ("number", "integer"):
        return "number"
    if kind == "boolean":
        return "boolean"
    if kind == "array":
        return f"{compatible(schema['items'], indent)}[]" if "items" in schema else "Array<any>"
    return "any"


def _variant(variant: Json, indent: str) -> str:
    """A line `| T // comments`, for a variant of a `oneOf` that is not a property's."""
    comments = []
    description = _string(variant, "description")
    if description is not None:
        comments.append(description)
    if _has(variant, "default"):
        default = variant["default"]
        # Here an enum's default string has its JSON quotes; in a property it has none.
        comments.append(
            "default: " + (f'"{default}"' if _needs_quotes(default, variant) else compact_json(default))
        )
    return f"\n{indent} | " + _nullable(variant, indent + "   ") + _trailing(comments)


def _object(schema: JsonObject, indent: str) -> str:
    lines = []
    description = _string(schema, "description")
    if description is not None:
        lines.append(f"{indent}// {description}")
    lines.append("{")
    properties = schema.get("properties")
    required = schema.get("required")
    names = {name for name in required if isinstance(name, str)} if isinstance(required, list) else set()
    if isinstance(properties, dict):
        for key, value in properties.items():
            lines += _property(key if key in names else f"{key}?", value, indent)
    lines.append(f"{indent}}}")
    return "\n".join(lines)


def _property(label: str, schema: Json, indent: str) -> list[str]:
    """The lines of a property, its comments first."""
    lines = []
    title = _string(schema, "title")
    description = _string(schema, "description")
    if title is not None:
        lines += [f"{indent}// {title}", f"{indent}//"]
    if description is not None and not _has(schema, "oneOf"):
        lines.append(f"{indent}// {description}")
    examples = schema.get("examples") if isinstance(schema, dict) else None
    if isinstance(examples, list) and examples:
        lines.append(f"{indent}// Examples:")
        lines += [f'{indent}// - "{example}"' for example in examples if isinstance(example, str)]
    variants = schema["oneOf"] if _has(schema, "oneOf") else None
    if _has(schema, "oneOf") and isinstance(variants, list):
        return lines + _one_of_property(label, schema, variants, description, indent)
    line = f"{indent}{label}: {_nullable(schema, indent + '    ')},"
    if _has(schema, "default") and not _has(schema, "oneOf"):
        line += f" // default: {_default(schema)}"
    return [*lines, line]


def _one_of_property(
    label: str, schema: JsonObject, variants: list[Json], description: str | None, indent: str
) -> list[str]:
    lines = []
    shown_above = description is not None and not (
        variants and _string(variants[0], "description") == description
    )
    if shown_above:
        lines.append(f"{indent}// {description}")
    if "default" in schema:
        lines.append(f"{indent}// default: {_default(schema)}")
    lines.append(f"{indent}{label}:")
    for number, variant in enumerate(variants):
        comments = []
        text = _string(variant, "description")
        if text is not None and text != description and not (number == 0 and shown_above):
            comments.append(text)
        if _has(variant, "default"):
            comments.append(f"default: {_default(variant)}")
        lines.append(f"{indent} | " + _nullable(variant, indent + "   ") + _trailing(comments))
    return [*lines, f"{indent},"]


def _nullable(schema: Json, indent: str) -> str:
    text = compatible(schema, indent)
    if isinstance(schema, dict) and schema.get("nullable") is True and "null" not in text:
        text += " | null"
    return text


def _default(schema: JsonObject) -> str:
    default = schema["default"]
    if isinstance(default, str):
        return f'"{default}"' if _needs_quotes(default, schema) else default
    return compact_json(default)


def _needs_quotes(default: Json, schema: JsonObject) -> bool:
    """Whether a default gets quotes: a string does, unless the schema has an enum."""
    values = schema.get("enum")
    return isinstance(default, str) and not (isinstance(values, list) and values)


def _trailing(comments: list[str]) -> str:
    return " // " + " ".join(comments) if comments else ""


def _has(schema: Json, key: str) -> TypeGuard[JsonObject]:
    return isinstance(schema, dict) and key in schema


def _string(schema: Json, key: str) -> str | None:
    value = schema.get(key) if isinstance(schema, dict) else None
    return value if isinstance(value, str) else None
