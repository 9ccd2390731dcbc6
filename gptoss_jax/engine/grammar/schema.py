"""Prepares JSON Schemas for llguidance: changes or refuses what it would enforce wrongly or too slowly.

llguidance itself refuses most keywords that it cannot enforce. Experiments with its version 1.9.1 showed
these gaps, which this module closes:

- Keys that a schema does not name may repeat, and readers keep the last one, so they cannot be counted:
  `minProperties` is refused if it needs more than one such key.
- Numbers are 64-bit floats, so bounds and constants beyond 2^53 are not exact. Outer bounds become ±2^53, the
  others are refused.
- 0.99999999999999999999 is below 1, but a reader rounds it to 1. With an exclusive bound, numbers get at most
  nine digits after the point, so that rounding cannot reach the bound.
- A `\\uXXXX` escape can hide the name of a known property, so that the key counts as an unknown one. Such
  escapes are not allowed, and constants with control characters that need them are refused.
- The automaton of `multipleOf` grows with the number's digits: 12345789 takes minutes. Such numbers are
  refused.
- A reference that leads to itself without end compiles, but no document can complete it. It is refused.
- llguidance accepts 29 February in every year. A pattern excludes the dates that do not exist.
"""

from __future__ import annotations

import decimal
import json
import math
import re
from collections.abc import Iterator
from typing import TypeGuard

from gptoss_jax.engine.grammar.spec import GrammarError
from harmony.errors import shown
from harmony.json_types import Json, JsonObject

MAX_DEPTH = 64
MAX_PROPERTIES = 2_000
MAX_ENUM_VALUES = 20_000
MAX_MULTIPLE = 20_000
EXACT = 2**53

# At most one space wherever JSON allows white space, so that a model cannot write spaces for ever.
_GUIDANCE: JsonObject = {
    "whitespace_flexible": False,
    "whitespace_pattern": r"\x20",
    "json_allowed_escapes": 'nrbtf\\"',
}

_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems")
_MAPS = ("properties", "patternProperties", "$defs", "definitions")
_SINGLE = ("items", "additionalProperties", "additionalItems")
_APPLICATORS = ("allOf", "anyOf", "oneOf", "$ref")
_ANNOTATIONS = {
    *("$anchor", "$comment", "$defs", "$id", "$schema", "contentEncoding", "contentMediaType", "default"),
    *("definitions", "deprecated", "description", "examples", "id", "readOnly", "title", "writeOnly"),
}
_UNWRITTEN = re.compile(r"[\x00-\x07\x0b\x0e-\x1f\x7f]")
_LOWER = ("minimum", "exclusiveMinimum")
_UPPER = ("maximum", "exclusiveMaximum")

# Both match a date whose year is at least 0001, and which is a 29 February only in a leap year.
_REAL_DATE = (
    "^(?:[0-9]{4}-(?:0[13-9]|1[0-2])|[0-9]{4}-02-(?:[01][0-9]|2[0-8])"
    "|(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)-02-29)"
)
_REAL_YEAR = "^(?:[1-9][0-9]{3}|0[1-9][0-9]{2}|00[1-9][0-9]|000[1-9])-"


def prepared(text: str) -> JsonObject:
    """Returns a schema, given as JSON text, in the form for llguidance.

    Raises:
        GrammarError: the schema cannot be enforced; the message says where and why.
    """
    try:
        schema = json.loads(text)
    except RecursionError:
        raise GrammarError("the schema is nested too deeply") from None
    except ValueError as error:
        raise GrammarError(f"the schema is no JSON: {error}") from None
    if not isinstance(schema, dict):
        raise GrammarError(f"the schema is {shown(schema)}: it must be a JSON object")
    schema.pop("x-guidance", None)
    _check_size(schema)
    _check_multiples(schema)
    _check_ends(schema)
    return {**_exact_object(schema, "#"), "x-guidance": _GUIDANCE}


def _parts(schema: JsonObject) -> Iterator[tuple[str, Json]]:
    """The schemas directly inside of one, each with the last part of its path."""
    for key in _LISTS:
        for index, part in enumerate(_list_at(schema, key)):
            yield f"/{key}/{index}", part
    for key in _MAPS:
        for name, part in _object_at(schema, key).items():
            yield f"/{key}/{name}", part
    for key in _SINGLE:
        if key in schema:
            yield f"/{key}", schema[key]


def _list_at(schema: JsonObject, key: str) -> list[Json]:
    """The list at a key; empty if there is none."""
    value = schema.get(key)
    return value if isinstance(value, list) else []


def _object_at(schema: JsonObject, key: str) -> JsonObject:
    """The object at a key; empty if there is none."""
    value = schema.get(key)
    return value if isinstance(value, dict) else {}


def _all(schema: JsonObject) -> Iterator[tuple[str, JsonObject]]:
    """Every schema that is an object, with its path."""
    waiting: list[tuple[str, Json, int]] = [("#", schema, 0)]
    while waiting:
        path, part, depth = waiting.pop()
        if not isinstance(part, dict):
            continue
        if depth > MAX_DEPTH:
            raise GrammarError(f"{path[:80]}…: schemas are nested more than {MAX_DEPTH} deep")
        yield path, part
        waiting += ((path + end, inner, depth + 1) for end, inner in _parts(part))


def _check_size(schema: JsonObject) -> None:
    properties = values = 0
    for path, part in _all(schema):
        properties += len(_object_at(part, "properties"))
        values += len(_list_at(part, "enum"))
        if properties > MAX_PROPERTIES:
            raise GrammarError(f"{path}: the schema has more than {MAX_PROPERTIES} properties")
        if values > MAX_ENUM_VALUES:
            raise GrammarError(f"{path}: the schema has more than {MAX_ENUM_VALUES} enum values")


def _check_multiples(schema: JsonObject) -> None:
    """Refuses values of `multipleOf` whose automaton would be too large, alone or in merged schemas."""
    steps: list[decimal.Decimal] = []
    is_merged = False
    for path, part in _all(schema):
        used = [key for key in _APPLICATORS if key in part]
        constraints = sum(key not in _ANNOTATIONS for key in part)
        is_merged |= bool(used) and (constraints > 1 or "allOf" in used)
        step = part.get("multipleOf")
        if _is_number(step) and step:
            steps.append(abs(decimal.Decimal(repr(step))))
            if _coefficient(steps[-1:]) > MAX_MULTIPLE:
                digits = f"its digits must make at most {MAX_MULTIPLE}"
                raise GrammarError(f"{path}: multipleOf is {step}: {digits}")
    if is_merged and _coefficient(steps) > MAX_MULTIPLE:
        raise GrammarError("the values of multipleOf have too large a common multiple to be combined")


def _coefficient(steps: list[decimal.Decimal]) -> int:
    """The least common multiple of numbers without its trailing zeros."""
    if not steps:
        return 1
    exponent = min(int(step.as_tuple().exponent) for step in steps)
    if any(step.adjusted() - exponent > 30 for step in steps):
        return MAX_MULTIPLE + 1
    multiple = math.lcm(*(int(step.scaleb(-exponent)) for step in steps))
    while multiple % 10 == 0:
        multiple //= 10
    return multiple


def _check_ends(schema: JsonObject) -> None:
    """Refuses a schema that only an endless document could match."""
    finite: set[str] = set()
    refs = {ref for _, part in _all(schema) if (ref := _local_ref(part)) is not None}
    targets = {ref: _target(schema, ref) for ref in refs}
    while True:
        found = {ref for ref, target in targets.items() if ref not in finite and _ends(target, finite)}
        if not found:
            break
        finite |= found
    if not _ends(schema, finite):
        raise GrammarError("the schema refers to itself without end: no finite document can match it")


def _local_ref(part: JsonObject) -> str | None:
    """A schema's reference to another place of the same document; None if it has none."""
    ref = part.get("$ref")
    return ref if isinstance(ref, str) and (ref == "#" or ref.startswith("#/")) else None


def _target(schema: Json, ref: str) -> Json:
    """The schema that a local reference points at; True if there is none: llguidance reports that itself."""
    for name in ref[2:].split("/") if ref != "#" else ():
        name = name.replace("~1", "/").replace("~0", "~")
        if isinstance(schema, dict) and name in schema:
            schema = schema[name]
        elif isinstance(schema, list) and name.isdecimal() and int(name) < len(schema):
            schema = schema[int(name)]
        else:
            return True
    return schema


def _ends(schema: Json, finite: set[str]) -> bool:
    """True if a finite document can match the schema, judged by references and nesting alone."""
    if not isinstance(schema, dict):
        return True
    ref = _local_ref(schema)
    if ref is not None and ref not in finite:
        return False
    for key in ("anyOf", "oneOf"):
        options = _list_at(schema, key)
        if options and not any(_ends(option, finite) for option in options):
            return False
    if not all(_ends(part, finite) for part in _list_at(schema, "allOf")):
        return False
    # A schema without one fixed type can be matched by a string, say, whatever its properties need.
    if schema.get("type") == "object":
        properties = _object_at(schema, "properties")
        names = [name for name in _list_at(schema, "required") if isinstance(name, str)]
        return all(_ends(properties.get(name), finite) for name in names)
    if schema.get("type") == "array":
        count, first = schema.get("minItems"), _list_at(schema, "prefixItems")
        if isinstance(count, int):
            rest = [schema.get("items")] if count > len(first) else []
            return all(_ends(part, finite) for part in [*first[:count], *rest])
    return True


def _exact(schema: Json, path: str) -> Json:
    """The schema, with the parts changed that llguidance would not enforce exactly. Raises GrammarError."""
    return _exact_object(schema, path) if isinstance(schema, dict) else schema


def _exact_object(schema: JsonObject, path: str) -> JsonObject:
    made = dict(schema)
    for key in _LISTS:
        if isinstance(made.get(key), list):
            parts = enumerate(_list_at(made, key))
            made[key] = [_exact(part, f"{path}/{key}/{index}") for index, part in parts]
    for key in _MAPS:
        if isinstance(made.get(key), dict):
            named = _object_at(made, key).items()
            made[key] = {name: _exact(part, f"{path}/{key}/{name}") for name, part in named}
    for key in _SINGLE:
        if key in made:
            made[key] = _exact(made[key], f"{path}/{key}")
    if made.get("uniqueItems") is False:
        del made["uniqueItems"]
    _bound(made, path)
    for constant in (made.get("const"), *_list_at(made, "enum")):
        _check_constant(constant, path)
    _check_property_count(made, path)
    others = made.get("allOf", [])
    if made.get("format") in ("date", "date-time") and isinstance(others, list):
        made["allOf"] = [*others, {"pattern": _REAL_DATE}, {"pattern": _REAL_YEAR}]
    return made


def _bound(schema: JsonObject, path: str) -> None:
    for keys, sign in ((_UPPER, 1), (_LOWER, -1)):
        for key in keys:
            value = schema.get(key)
            if not _is_number(value) or abs(value) <= EXACT:
                continue
            if value * sign < 0:
                raise GrammarError(f"{path}: {key} is {value}: bounds beyond 2^53 cannot be kept exactly")
            schema[key] = sign * EXACT
    bounds = [schema.get(key) for key in ("exclusiveMinimum", "exclusiveMaximum")]
    excluded = [bound for bound in bounds if _is_number(bound)]
    if excluded and "multipleOf" not in schema and schema.get("type") != "integer":
        whole_digits = max(len(str(int(abs(value)))) for value in excluded)
        schema["multipleOf"] = float(f"1e-{max(0, min(9, 15 - whole_digits))}")


def _is_number(value: Json) -> TypeGuard[int | float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _check_constant(value: Json, path: str) -> None:
    """Raises GrammarError for a constant with numbers or characters that cannot be written exactly."""
    waiting = [value]
    while waiting:
        part = waiting.pop()
        if isinstance(part, (dict, list)):
            waiting += part.values() if isinstance(part, dict) else part
        elif isinstance(part, (int, float)) and abs(part) > EXACT:
            raise GrammarError(f"{path}: {part} is beyond 2^53: such constants cannot be kept exactly")
        elif isinstance(part, str) and _UNWRITTEN.search(part):
            raise GrammarError(
                f"{path}: {part[:40]!r} has control characters: such constants cannot be written"
            )


def _check_property_count(schema: JsonObject, path: str) -> None:
    minimum = schema.get("minProperties")
    known = len(set(map(str, _list_at(schema, "required"))))
    if isinstance(minimum, int) and minimum > known + 1:
        raise GrammarError(
            f"{path}: minProperties is {minimum}: open keys may repeat, so it can be at most one more than "
            f"the {known} required properties"
        )
