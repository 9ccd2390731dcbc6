"""JSON Schema → TypeScript-like types, the improved form: everything that a schema says, nothing invented.

Where `typescript.compatible` is right this form looks much the same. Beyond it: `anyOf`, `allOf`, `$ref`
(also recursive), `const`, enums of any values, `null`, tuples, maps, schemas without `type`, arrays of
unions, comments of several lines, and quoting of keys and strings.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any, NamedTuple

from .numbers import compact_json

Schema = Any  # JSON data: a dictionary where the schema is well-formed

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


def improved(schema: Schema, prefix: str = "") -> tuple[str, dict[str, str]]:
    """The type of a schema and the named types that it uses, by name.

    What a `$ref` leads to becomes a named type if it holds further schemas; `prefix` begins such names, to
    keep the types of two functions apart. Only references into the schema itself are followed.
    """
    writer = _Writer(schema, prefix)
    if isinstance(schema, dict) and isinstance(schema.get("$ref"), str):
        schema = _target(schema, schema["$ref"])
    comment = _comment(schema.get("description"), "") if isinstance(schema, dict) else []
    text = "\n".join([*comment, writer.text(schema, "")])
    while writer.waiting:
        reference = writer.waiting.pop(0)
        writer.definitions[writer.names[reference]] = writer.text(writer.targets[reference], "")
    return text, writer.definitions


class _Member(NamedTuple):
    """One alternative of a type."""

    text: str
    comment: str = ""
    is_compound: bool = False


class _Writer:
    def __init__(self, root: Schema, prefix: str) -> None:
        self.root = root
        self.prefix = prefix
        self.names: dict[str, str] = {}  # of the references met so far
        self.targets: dict[str, Schema] = {}
        self.waiting: list[str] = []
        self.definitions: dict[str, str] = {}

    def text(self, schema: Schema, indent: str) -> str:
        """The type; its further lines start with `indent`."""
        return self._joined(self._members(schema, indent), indent)

    def _joined(self, members: list[_Member], indent: str) -> str:
        members = list(dict.fromkeys(members))
        if len(members) > 1 and any(member.comment for member in members):
            lines = (f"\n{indent} | {member.text}{member.comment}" for member in members)
            return "".join(lines) + f"\n{indent}"
        return " | ".join(dict.fromkeys(member.text for member in members))

    def _grouped(self, schema: Schema, indent: str) -> str:
        """The type as an operand, in parentheses where it needs them."""
        members = self._members(schema, indent)
        text = self._joined(members, indent)
        return f"({text})" if len(members) > 1 or members[0].is_compound else text

    def _members(self, schema: Schema, indent: str) -> list[_Member]:
        if schema is False:
            return [_Member("never")]
        if not isinstance(schema, dict):
            return [_Member("any")]
        members = self._alternatives(schema, indent)
        if schema.get("nullable") is True and all(member.text != "null" for member in members):
            members.append(_Member("null"))
        return members

    def _alternatives(self, schema: dict[str, Any], indent: str) -> list[_Member]:
        if isinstance(schema.get("$ref"), str):
            return self._reference(schema["$ref"], indent)
        if "const" in schema:
            return [_Member(compact_json(schema["const"]))]
        if isinstance(schema.get("enum"), list) and schema["enum"]:
            return [_Member(compact_json(value)) for value in schema["enum"]]
        for keyword in ("oneOf", "anyOf"):
            if isinstance(schema.get(keyword), list) and schema[keyword]:
                return [
                    member for variant in schema[keyword] for member in self._variant(variant, indent + "   ")
                ]
        if isinstance(schema.get("allOf"), list) and schema["allOf"]:
            return self._all_of(schema, indent)
        kinds = schema.get("type")
        if isinstance(kinds, list) and kinds:
            return [_Member(self._of_kind(schema, kind, indent)) for kind in kinds]
        return [_Member(self._of_kind(schema, kinds, indent))]

    def _variant(self, schema: Schema, indent: str) -> list[_Member]:
        comment = _trailing_comment(schema)
        if not comment:
            return self._members(schema, indent)
        return [_Member(self._grouped(schema, indent), comment)]

    def _of_kind(self, schema: dict[str, Any], kind: Any, indent: str) -> str:
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
            self.targets[reference] = target
            self.waiting.append(reference)
        return [_Member(self.names[reference])]

    def _all_of(self, schema: dict[str, Any], indent: str) -> list[_Member]:
        """One object where all parts are objects, else an intersection."""
        own = {key: value for key, value in schema.items() if key != "allOf"}
        parts = [part for part in (own, *schema["allOf"]) if not _says_nothing(part)]
        if parts and all(isinstance(part, dict) and set(part) <= _OF_OBJECTS for part in parts):
            merged: dict[str, Any] = {}
            for part in parts:
                for key, value in part.items():
                    if key == "properties" and isinstance(value, dict):
                        merged[key] = {**merged.get(key, {}), **value}
                    elif key == "required" and isinstance(value, list):
                        merged[key] = [*merged.get(key, []), *value]
                    elif key == "additionalProperties":
                        merged[key] = value
            return [_Member(self._object(merged, indent))]
        texts = list(dict.fromkeys(self._grouped(part, indent) for part in parts))
        return [_Member(" & ".join(texts) or "any", is_compound=len(texts) > 1)]

    def _array(self, schema: dict[str, Any], indent: str) -> str:
        items = schema.get("items")
        prefix = schema.get("prefixItems", items if isinstance(items, list) else None)
        if isinstance(prefix, list):
            members = [self.text(item, indent) for item in prefix]
            if isinstance(items, dict):
                members.append(f"...{self._grouped(items, indent)}[]")
            return f"[{', '.join(members)}]"
        return f"{self._grouped(items, indent)}[]"

    def _object(self, schema: dict[str, Any], indent: str) -> str:
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

    def _property(self, label: str, schema: Schema, indent: str) -> list[str]:
        told = schema if isinstance(schema, dict) else {}
        lines = []
        title = told.get("title")
        if isinstance(title, str) and _letters(title) != _letters(label):
            lines = [*_comment(title, indent), f"{indent}//"]
        lines += _comment(told.get("description"), indent)
        items = told.get("items")
        if isinstance(items, dict) and isinstance(items.get("description"), str):
            lines += _comment(f"Items: {items['description']}", indent)
        examples = told.get("examples")
        if isinstance(examples, list) and examples:
            lines.append(f"{indent}// Examples:")
            lines += [f"{indent}// - {compact_json(example)}" for example in examples]
        text = self.text(schema, indent + _STEP)
        space = "" if text.startswith("\n") else " "
        default = f" // default: {compact_json(told['default'])}" if "default" in told else ""
        return [*lines, f"{indent}{label}:{space}{text},{default}"]


def _target(root: Schema, reference: str) -> Schema:
    """What a reference into the schema (`#`, `#/…`) leads to; None for any other and for a circle."""
    seen = set()
    while reference not in seen:
        seen.add(reference)
        target = _resolved(root, reference)
        if not isinstance(target, dict) or not isinstance(target.get("$ref"), str):
            return target
        reference = target["$ref"]
    return None


def _resolved(root: Schema, reference: str) -> Schema:
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


def _says_nothing(schema: Schema) -> bool:
    """Whether a part of `allOf` adds nothing to the type: a comment, or that it is an object."""
    if not isinstance(schema, dict):
        return schema is True
    return set(schema) <= {"description", "title", "$defs", "definitions"} or schema == {"type": "object"}


def _letters(text: str) -> str:
    """The letters and digits of a name: a title that has the same as its key says nothing new."""
    return "".join(filter(str.isalnum, text)).lower()


def _key(key: str) -> str:
    return key if _IDENTIFIER.fullmatch(key) else json.dumps(key, ensure_ascii=False)


def _comment(text: Any, indent: str) -> list[str]:
    lines: Iterable[str] = text.splitlines() if isinstance(text, str) else []
    return [f"{indent}// {line}".rstrip() for line in lines]


def _trailing_comment(schema: Schema) -> str:
    """The description and default of a variant, for the end of its line."""
    words = []
    if isinstance(schema, dict):
        if isinstance(schema.get("description"), str):
            words.append(" ".join(schema["description"].split()))
        if "default" in schema:
            words.append(f"default: {compact_json(schema['default'])}")
    return f" // {' '.join(words)}" if words else ""
