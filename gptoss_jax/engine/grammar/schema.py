"""JSON Schemas made fit for llguidance: what it would enforce wrongly or not in time is changed or refused.

llguidance refuses most keywords that it cannot enforce. What is left to this module, found by experiment with
its version 1.9.1:

- keys that a schema leaves open may repeat, and the last one counts, so a least number of them is no promise:
  `minProperties` is refused where such keys would have to make it up;
- numbers are read as 64-bit floats and written in as few digits as tell them apart, so bounds and constants
  beyond 2^53 are not exact: outer bounds are moved in to ±2^53, the others refused;
- 0.99999999999999999999 is below 1, but who reads it as a float reads 1: where a bound is excluded, numbers
  have so few digits after the point, nine at most, that they stay away from it;
- with `\\uXXXX` allowed, such an escape hides the name of a known property from the check that an open key is
  another one: it is not allowed, and constants of control characters that have no other are refused;
- the automaton of `multipleOf` grows with its digits: 12345789 takes minutes;
- a reference that leads to itself without end compiles, and can never be completed;
- 29 February is a date in every year.
"""

from __future__ import annotations

import decimal
import json
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

from gptoss_jax.engine.grammar.asked import GrammarError

MOST_DEPTH = 64
MOST_PROPERTIES = 2_000
MOST_ENUM_VALUES = 20_000
MOST_MULTIPLE = 20_000
EXACT = 2**53

# One space or none wherever JSON allows white space: a model cannot go on with it for ever.
_GUIDANCE = {
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

# Met by a date that has a year from 0001 and no 29 February unless the year is a leap year.
_REAL_DATE = (
    "^(?:[0-9]{4}-(?:0[13-9]|1[0-2])|[0-9]{4}-02-(?:[01][0-9]|2[0-8])"
    "|(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)-02-29)"
)
_REAL_YEAR = "^(?:[1-9][0-9]{3}|0[1-9][0-9]{2}|00[1-9][0-9]|000[1-9])-"


def prepared(text: str) -> dict[str, Any]:
    """The schema in the form given to llguidance. Raises GrammarError saying where it cannot be enforced."""
    schema = json.loads(text)
    schema.pop("x-guidance", None)
    _check_size(schema)
    _check_multiples(schema)
    _check_ends(schema)
    return {**_made_exact(schema, "#"), "x-guidance": _GUIDANCE}


def _parts(schema: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The schemas directly inside of one, each with the end of its path."""
    for key in _LISTS:
        if isinstance(schema.get(key), list):
            yield from ((f"/{key}/{index}", part) for index, part in enumerate(schema[key]))
    for key in _MAPS:
        if isinstance(schema.get(key), dict):
            yield from ((f"/{key}/{name}", part) for name, part in schema[key].items())
    for key in _SINGLE:
        if key in schema:
            yield f"/{key}", schema[key]


def _all(schema: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every schema that is an object, with its path."""
    waiting = [("#", schema, 0)]
    while waiting:
        path, part, depth = waiting.pop()
        if not isinstance(part, dict):
            continue
        if depth > MOST_DEPTH:
            raise GrammarError(f"{path[:80]}…: schemas are nested more than {MOST_DEPTH} deep")
        yield path, part
        waiting += ((path + end, inner, depth + 1) for end, inner in _parts(part))


def _check_size(schema: dict[str, Any]) -> None:
    properties = values = 0
    for path, part in _all(schema):
        properties += len(part.get("properties") or ()) if isinstance(part.get("properties"), dict) else 0
        values += len(part["enum"]) if isinstance(part.get("enum"), list) else 0
        if properties > MOST_PROPERTIES:
            raise GrammarError(f"{path}: the schema has more than {MOST_PROPERTIES} properties")
        if values > MOST_ENUM_VALUES:
            raise GrammarError(f"{path}: the schema has more than {MOST_ENUM_VALUES} enum values")


def _check_multiples(schema: dict[str, Any]) -> None:
    """Refuses multiples whose automaton would be too large, by itself or where schemas are merged."""
    steps: list[decimal.Decimal] = []
    is_merged = False
    for path, part in _all(schema):
        used = [key for key in _APPLICATORS if key in part]
        constraints = sum(key not in _ANNOTATIONS for key in part)
        is_merged |= bool(used) and (constraints > 1 or "allOf" in used)
        step = part.get("multipleOf")
        if _is_number(step) and step:
            steps.append(abs(decimal.Decimal(repr(step))))
            if _coefficient(steps[-1:]) > MOST_MULTIPLE:
                digits = f"its digits must make at most {MOST_MULTIPLE}"
                raise GrammarError(f"{path}: multipleOf is {step}: {digits}")
    if is_merged and _coefficient(steps) > MOST_MULTIPLE:
        raise GrammarError("the values of multipleOf have too large a common multiple to be combined")


def _coefficient(steps: list[decimal.Decimal]) -> int:
    """The least common multiple of numbers, its trailing zeros cut off."""
    if not steps:
        return 1
    exponent = min(int(step.as_tuple().exponent) for step in steps)
    if any(step.adjusted() - exponent > 30 for step in steps):
        return MOST_MULTIPLE + 1
    multiple = math.lcm(*(int(step.scaleb(-exponent)) for step in steps))
    while multiple % 10 == 0:
        multiple //= 10
    return multiple


def _check_ends(schema: dict[str, Any]) -> None:
    """Refuses a schema that only an endless document could meet."""
    finite: set[str] = set()
    targets = {part["$ref"]: _target(schema, part["$ref"]) for _, part in _all(schema) if _is_local(part)}
    while True:
        found = {ref for ref, target in targets.items() if ref not in finite and _ends(target, finite)}
        if not found:
            break
        finite |= found
    if not _ends(schema, finite):
        raise GrammarError("the schema refers to itself without end: no finite document can meet it")


def _is_local(part: dict[str, Any]) -> bool:
    ref = part.get("$ref")
    return isinstance(ref, str) and (ref == "#" or ref.startswith("#/"))


def _target(schema: Any, ref: str) -> Any:
    """What a local reference points at; True if nothing, so that llguidance says what is wrong."""
    for name in ref[2:].split("/") if ref != "#" else ():
        name = name.replace("~1", "/").replace("~0", "~")
        if isinstance(schema, dict) and name in schema:
            schema = schema[name]
        elif isinstance(schema, list) and name.isdecimal() and int(name) < len(schema):
            schema = schema[int(name)]
        else:
            return True
    return schema


def _ends(schema: Any, finite: set[str]) -> bool:
    """Whether some finite document meets the schema, as far as references and nesting say."""
    if not isinstance(schema, dict):
        return True
    if _is_local(schema) and schema["$ref"] not in finite:
        return False
    for key in ("anyOf", "oneOf"):
        options = schema.get(key)
        if isinstance(options, list) and options and not any(_ends(option, finite) for option in options):
            return False
    if isinstance(schema.get("allOf"), list) and not all(_ends(part, finite) for part in schema["allOf"]):
        return False
    # Only a schema that leaves no other type open is bound to what its object or array needs.
    if schema.get("type") == "object":
        properties, required = schema.get("properties"), schema.get("required")
        if isinstance(properties, dict) and isinstance(required, list):
            needed = [properties.get(name) for name in required if isinstance(name, str)]
            return all(_ends(part, finite) for part in needed)
    if schema.get("type") == "array":
        least, first = schema.get("minItems"), schema.get("prefixItems")
        if isinstance(least, int):
            first = first if isinstance(first, list) else []
            rest = [schema.get("items")] if least > len(first) else []
            return all(_ends(part, finite) for part in [*first[:least], *rest])
    return True


def _made_exact(schema: Any, path: str) -> Any:
    """The schema with what llguidance would do inexactly changed, or refused."""
    if not isinstance(schema, dict):
        return schema
    made = dict(schema)
    for key in _LISTS:
        if isinstance(made.get(key), list):
            made[key] = [_made_exact(part, f"{path}/{key}/{i}") for i, part in enumerate(made[key])]
    for key in _MAPS:
        if isinstance(made.get(key), dict):
            made[key] = {name: _made_exact(part, f"{path}/{key}/{name}") for name, part in made[key].items()}
    for key in _SINGLE:
        if key in made:
            made[key] = _made_exact(made[key], f"{path}/{key}")
    if made.get("uniqueItems") is False:
        del made["uniqueItems"]
    _bound(made, path)
    for constant in (made.get("const"), *(made["enum"] if isinstance(made.get("enum"), list) else ())):
        _check_constant(constant, path)
    _check_property_count(made, path)
    others = made.get("allOf", [])
    if made.get("format") in ("date", "date-time") and isinstance(others, list):
        made["allOf"] = [*others, {"pattern": _REAL_DATE}, {"pattern": _REAL_YEAR}]
    return made


def _bound(schema: dict[str, Any], path: str) -> None:
    for keys, sign in ((_UPPER, 1), (_LOWER, -1)):
        for key in keys:
            value: Any = schema.get(key)
            if not _is_number(value) or abs(value) <= EXACT:
                continue
            if value * sign < 0:
                raise GrammarError(f"{path}: {key} is {value}: bounds beyond 2^53 cannot be kept exactly")
            schema[key] = sign * EXACT
    excluded = [
        schema[key] for key in ("exclusiveMinimum", "exclusiveMaximum") if _is_number(schema.get(key))
    ]
    if excluded and "multipleOf" not in schema and schema.get("type") != "integer":
        whole_digits = max(len(str(int(abs(value)))) for value in excluded)
        schema["multipleOf"] = float(f"1e-{max(0, min(9, 15 - whole_digits))}")


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _check_constant(value: Any, path: str) -> None:
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


def _check_property_count(schema: dict[str, Any], path: str) -> None:
    least, required = schema.get("minProperties"), schema.get("required")
    known = len(set(map(str, required))) if isinstance(required, list) else 0
    if isinstance(least, int) and least > known + 1:
        raise GrammarError(
            f"{path}: minProperties is {least}: open keys may repeat, so it can be at most one more than the "
            f"{known} required properties"
        )
