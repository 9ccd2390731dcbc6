"""JSON Schema → TypeScript-like types, the improved form: it writes everything that a schema says.

What `typescript.compatible` can write looks much the same here. This form also writes `anyOf`, `allOf`,
`$ref` (also recursive), `const`, enums of any values, `null`, tuples, maps, schemas without `type`, arrays of
unions and comments of several lines, and quotes keys and strings where that is needed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import NamedTuple

from .json_types import Json, JsonObject
from .numbers import compact_json

_IDENTIFIER = re.compile(r"[A-Za-z_$][\w$]*", re.ASCII)
_SIMPLE = {"string": "string", "number": "number", "integer": "number", "boolean": "boolean", "null": "null"}
_HOLDS_SCHEMAS = {
    "properties",
    "items",
    "prefixItems",
    "additionalProperties",
    "oneOf",
    "anyOf",
    "allOf",
    "$ref",
}
_OF_OBJECTS = {"type", "properties", "required", "description", "title", "additionalProperties"}
_STEP = "    "


def improved(schema: Json, prefix: str = "") -> tuple[str, dict[str, str]]:
    """The type of a schema, and the named types that it uses: name → type.

    The target of a `$ref` becomes a named type if it has schemas inside it. `prefix` is put before such
    names, so that those of two functions differ. References to anything outside of the schema become `any`.
    """
    writer = _Writer(schema, prefix)
    reference = schema.get("$ref") if isinstance(schema, dict) else None
    if isinstance(reference, str):
        schema = _target(schema, reference)
    comment = _comment(schema.get("description"), "") if isinstance(schema, dict) else []
    text = "\n".join([*comment, writer.text(schema, "")])
    while writer.waiting:
        name, target = writer.waiting.pop(0)
        writer.definitions[name] = writer.text(target, "")
    return text, writer.definitions


class _Member(NamedTuple):
    """One alternative of a union type."""

    text: str
    comment: str = ""
    is_compound: bool = False
    """True if the text needs parentheses as an operand."""


class _Writer:
    """Writes the type of one schema, and collects its named types."""

    def __init__(self, root: Json, prefix: str) -> None:
        self.root = root
        self.prefix = prefix
        self.names: dict[str, str] = {}  # reference → name, of those met so far
        self.waiting: list[tuple[str, Json]] = []  # the names and schemas that are still to be written
        self.definitions: dict[str, str] = {}  # name → type

    def text(self, schema: Json, indent: str) -> str:
        """The type of a schema; `indent` begins all lines but the first."""
        return self._joined(self._members(schema, indent), indent)

    def _joined(self, members: list[_Member], indent: str) -> str:
        members = list(dict.fromkeys(members))
        if len(members) > 1 and any(member.comment for member in members):
            lines = (f"\n{indent} | {member.text}{member.comment}" for member in members)
            return "".join(lines) + f"\n{indent}"
        return " | ".join(dict.fromkeys(member.text for member in members))

    def _grouped(self, schema: Json, indent: str) -> str:
        """The type as an operand, in parentheses if it needs them."""
        members = self._members(schema, indent)
        text = self._joined(members, indent)
        return f"({text})" if len(members) > 1 or members[0].is_compound else text

    def _members(self, schema: Json, indent: str) -> list[_Member]:
        if schema is False:
            return [_Member("never")]
        if not isinstance(schema, dict):
            return [_Member("any")]
        members = self._alternatives(schema, indent)
        if schema.get("nullable") is True and all(member.text != "null" for member in members):
            members.append(_Member("null"))
        return members

    def _alternatives(self, schema: JsonObject, indent: str) -> list[_Member]:
        reference = schema.get("$ref")
        if isinstance(reference, str):
            return self._reference(reference, indent)
        if "const" in schema:
            return [_Member(compact_json(schema["const"]))]
        values = schema.get("enum")
        if isinstance(values, list) and values:
            return [_Member(compact_json(value)) for value in values]
        for keyword in ("oneOf", "anyOf"):
            variants = schema.get(keyword)
            if isinstance(variants, list) and variants:
                return [member for variant in variants for member in self._variant(variant, indent + "   ")]
        parts = schema.get("allOf")
        if isinstance(parts, list) and parts:
            return self._all_of(schema, parts, indent)
        kinds = schema.get("type")
        if isinstance(kinds, list) and kinds:
            return [_Member(self._of_kind(schema, kind, indent)) for kind in kinds]
        return [_Member(self._of_kind(schema, kinds, indent))]

    def _variant(self, schema: Json, indent: str) -> list[_Member]:
        comment = self._trailing_comment(schema)
        if not comment:
            return self._members(schema, indent)
        return [_Member(self._grouped(schema, indent), comment)]

    def _trailing_comment(self, schema: Json) -> str:
        """The description and the default of a variant, for the end of its line."""
        words = []
        if isinstance(schema, dict):
            description = schema.get("description")
            if isinstance(description, str):
                words.append(" ".join(description.split()))
            if "default" in schema:
                words.append(f"default: {self._default(schema)}")
        return f" // {' '.join(words)}" if words else ""

    def _of_kind(self, schema: JsonObject, kind: Json, indent: str) -> str:
        if kind == "array" or (kind is None and ("items" in schema or "prefixItems" in schema)):
            return self._array(schema, indent)
        if kind == "object" or (kind is None and "properties" in schema):
            return self._object(schema, indent)
        return _SIMPLE.get(kind, "any") if isinstance(kind, str) else "any"

    def _reference(self, reference: str, indent: str) -> list[_Member]:
        target = _target(self.root, reference)
        if not isinstance(target, dict) or not target.keys() & _HOLDS_SCHEMAS:
            return self._members(target, indent)
        if reference not in self.names:
            word = re.sub(r"\W", "_", reference.rpartition("/")[2].lstrip("#"), flags=re.ASCII)
            name = self.prefix + (word or "arguments")
            while name in self.names.values():
                name += "_"
            self.names[reference] = name
            self.waiting.append((name, target))
        return [_Member(self.names[reference])]

    def _all_of(self, schema: JsonObject, all_of: list[Json], indent: str) -> list[_Member]:
        """One object type if all parts of the `allOf` are objects, else an intersection."""
        own: JsonObject = {key: value for key, value in schema.items() if key != "allOf"}
        parts = [part for part in (own, *all_of) if not _adds_nothing(part)]
        objects = [part for part in parts if isinstance(part, dict) and part.keys() <= _OF_OBJECTS]
        if parts and len(objects) == len(parts):
            return [_Member(self._object(_merged(objects), indent))]
        texts = list(dict.fromkeys(self._grouped(part, indent) for part in parts))
        return [_Member(" & ".join(texts) or "any", is_compound=len(texts) > 1)]

    def _array(self, schema: JsonObject, indent: str) -> str:
        items = schema.get("items")
        prefix = schema.get("prefixItems", items if isinstance(items, list) else None)
        if isinstance(prefix, list):
            members = [self.text(item, indent) for item in prefix]
            if isinstance(items, dict):
                members.append(f"...{self._grouped(items, indent)}[]")
            return f"[{', '.join(members)}]"
        return f"{self._grouped(items, indent)}[]"

    def _object(self, schema: JsonObject, indent: str) -> str:
        properties = schema.get("properties")
        required = schema.get("required")
        lines = []
        if isinstance(properties, dict):
            for key, value in properties.items():
                is_required = isinstance(required, list) and key in required
                lines += self._property(_key(key) + ("" if is_required else "?"), value, indent)
        others = schema.get("additionalProperties")
        if isinstance(others, dict):
            lines += self._property("[key: string]", others, indent)
        return "\n".join(["{", *lines, f"{indent}}}"]) if lines else "object"

    def _property(self, label: str, schema: Json, indent: str) -> list[str]:
        """The lines of a property, its comments first."""
        fields = schema if isinstance(schema, dict) else {}
        lines = []
        title = fields.get("title")
        if isinstance(title, str) and _letters(title) != _letters(label):
            lines = [*_comment(title, indent), f"{indent}//"]
        lines += _comment(fields.get("description"), indent)
        items = fields.get("items")
        if isinstance(items, dict) and isinstance(items.get("description"), str):
            lines += _comment(f"Items: {items['description']}", indent)
        examples = fields.get("examples")
        if isinstance(examples, list) and examples:
            lines.append(f"{indent}// Examples:")
            lines += [f"{indent}// - {compact_json(example)}" for example in examples]
        text = self.text(schema, indent + _STEP)
        space = "" if text.startswith("\n") else " "
        default = f" // default: {self._default(fields)}" if "default" in fields else ""
        return [*lines, f"{indent}{label}:{space}{text},{default}"]

    def _default(self, schema: JsonObject) -> str:
        """A default as OpenAI's guide writes it: a value of an enum without quotes."""
        default = schema["default"]
        text = compact_json(default)
        if isinstance(default, str) and text == f'"{default}"' and self._enumerates(schema, default):
            return default
        return text

    def _enumerates(self, schema: Json, value: str) -> bool:
        """Whether an enum of the schema has the value: its own, that of a reference, or that of a variant."""
        waiting, seen = [schema], set()
        while waiting:
            one = waiting.pop()
            if not isinstance(one, dict):
                continue
            reference = one.get("$ref")
            if isinstance(reference, str) and reference not in seen:
                seen.add(reference)
                waiting.append(_target(self.root, reference))
            values = one.get("enum")
            if isinstance(values, list) and value in values:
                return True
            for keyword in ("oneOf", "anyOf", "allOf"):
                variants = one.get(keyword)
                if isinstance(variants, list):
                    waiting += variants
        return False


def _merged(objects: list[JsonObject]) -> JsonObject:
    """The properties, the required ones, and the last `additionalProperties` of several object schemas."""
    properties: JsonObject = {}
    required: list[Json] = []
    merged: JsonObject = {"properties": properties, "required": required}
    for schema in objects:
        for key, value in schema.items():
            if key == "properties" and isinstance(value, dict):
                properties.update(value)
            elif key == "required" and isinstance(value, list):
                required += value
            elif key == "additionalProperties":
                merged[key] = value
    return merged


def _target(root: Json, reference: str) -> Json:
    """The schema that a reference (`#`, `#/…`) leads to; None for a circle and for what is not in `root`."""
    seen = set()
    while reference not in seen:
        seen.add(reference)
        target = _resolved(root, reference)
        following = target.get("$ref") if isinstance(target, dict) else None
        if not isinstance(following, str):
            return target
        reference = following
    return None


def _resolved(root: Json, reference: str) -> Json:
    start, *steps = reference.split("/")
    if start != "#":
        return None
    value = root
    for step in steps:
        key = step.replace("~1", "/").replace("~0", "~")
        if isinstance(value, dict) and key in value:
            value = value[key]
        elif isinstance(value, list) and key.isdecimal() and int(key) < len(value):
            value = value[int(key)]
        else:
            return None
    return value


def _adds_nothing(schema: Json) -> bool:
    """Whether a part of `allOf` adds nothing to the type: it only has comments, or only says "object"."""
    if not isinstance(schema, dict):
        return schema is True
    return set(schema) <= {"description", "title", "$defs", "definitions"} or schema == {"type": "object"}


def _letters(text: str) -> str:
    """The letters and digits of a name. A title with the same ones as its key is not worth a comment."""
    return "".join(filter(str.isalnum, text)).lower()


def _key(key: str) -> str:
    return key if _IDENTIFIER.fullmatch(key) else json.dumps(key, ensure_ascii=False)


def _comment(text: Json, indent: str) -> list[str]:
    """A text as comment lines; none if it is not a string."""
    lines: Iterable[str] = text.splitlines() if isinstance(text, str) else []
    return [f"{indent}// {line}".rstrip() for line in lines]
