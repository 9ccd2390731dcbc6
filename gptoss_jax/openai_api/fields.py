"""Request bodies held against the table of fields: what is unknown, misplaced, refused or of a wrong type."""

from __future__ import annotations

import dataclasses
import difflib
import json
from collections.abc import Iterable, Mapping
from typing import Any

from gptoss_jax.openai_api.errors import ApiError, bad_value, json_kind
from gptoss_jax.openai_api.field_table import (
    BOTH,
    CHAT,
    HONOURED,
    REFUSED,
    TABLE,
    WITHOUT_EFFECT,
    Fields,
    JsonType,
)
from harmony.openai_formats import BodyForm

PATHS: Mapping[str, BodyForm] = {"/v1/chat/completions": "chat", "/v1/responses": "responses"}
"""Where the APIs take their bodies."""

_OF_FORM: Mapping[BodyForm, Mapping[str, Fields]] = {
    form: {name: fields for fields in TABLE if form in fields.forms for name in fields.names} for form in BOTH
}
_CONTAINERS = frozenset(
    name.rpartition(".")[0] for known in _OF_FORM.values() for name in known if "." in name
)

_TYPES: Mapping[JsonType, tuple[tuple[type, ...], str]] = {
    "boolean": ((bool,), "true or false"),
    "string": ((str,), "a string"),
    "number": ((int, float), "a number"),
    "integer": ((int,), "a whole number"),
    "object": ((dict,), "an object"),
    "array": ((list,), "an array"),
}


@dataclasses.dataclass(frozen=True)
class UnknownField:
    """A field that the table does not have.

    name: its path, ``[]`` for an item of an array.
    nearest: the known field that is written most like it; None if none is.
    """

    name: str
    nearest: str | None

    def __str__(self) -> str:
        return self.name if self.nearest is None else f"{self.name}; {self.nearest}?"


def check_fields(body: Mapping[str, Any], form: BodyForm) -> list[UnknownField]:
    """The fields of a body that are unknown, each once. A null is the same as a field that is not there.

    Raises:
        ApiError: a field asks for something that is refused, belongs to the other API, or, though without
            effect, is of a wrong type.
    """
    unknown: dict[str, None] = {}
    _check_object(body, form, "", "", unknown)
    return [UnknownField(name, _nearest(name, form)) for name in unknown]


def unknown_field_error(field: UnknownField) -> ApiError:
    """The error of a body with an unknown field, where such are refused."""
    hint = "" if field.nearest is None else f"; {field.nearest}?"
    return ApiError("unknown_field", f"{field.name} is no field of this request{hint}", field.name)


def _check_object(
    value: Mapping[str, Any], form: BodyForm, place: str, shown: str, unknown: dict[str, None]
) -> None:
    """Checks the fields of the object at a place of the table; `shown` is the place with its indices."""
    for key, item in value.items():
        name, path = f"{place}{key}", f"{shown}{key}"
        if item is None and name in _OF_FORM[form]:
            continue
        fields = _OF_FORM[form].get(name)
        if fields is None:
            if item is not None and not place:
                _refuse_misplaced(name, form)
            unknown[name] = None
            continue
        _check_value(item, fields, path)
        if isinstance(item, Mapping) and name in _CONTAINERS:
            _check_object(item, form, f"{name}.", f"{path}.", unknown)
        elif isinstance(item, list) and f"{name}[]" in _CONTAINERS:
            for index, entry in enumerate(item):
                if isinstance(entry, Mapping):
                    _check_object(entry, form, f"{name}[].", f"{path}[{index}].", unknown)


def _refuse_misplaced(name: str, form: BodyForm) -> None:
    for path, other in PATHS.items():
        if other != form and name in _OF_FORM[other]:
            raise ApiError("unsupported_field", f"{name} is a field of {path}, not of this request", name)


def _check_value(value: object, fields: Fields, path: str) -> None:
    if fields.effect == "refused" and not any(_same(value, neutral) for neutral in fields.neutral):
        raise ApiError(
            "unsupported_field", f"{path} is {json_kind(value)}, which is not supported: {fields.says}", path
        )
    if fields.allowed == "an object" and not isinstance(value, Mapping):
        raise bad_value(path, value, "an object")
    if fields.json_types:
        types = [allowed for name in fields.json_types for allowed in _TYPES[name][0]]
        is_boolean = isinstance(value, bool)
        if not isinstance(value, tuple(types)) or (is_boolean and "boolean" not in fields.json_types):
            raise bad_value(path, value, " or ".join(_TYPES[name][1] for name in fields.json_types))


def _same(value: object, neutral: object) -> bool:
    """Equality of JSON values, in which true is not 1."""
    return isinstance(value, bool) == isinstance(neutral, bool) and value == neutral


def _nearest(name: str, form: BodyForm) -> str | None:
    """The known field that is written most like a name: one beside it if possible, else any."""
    place, _, key = name.rpartition(".")
    by_key: dict[str, str] = {}
    for known in sorted(_OF_FORM[form], key=lambda known: known.rpartition(".")[0] != place, reverse=True):
        by_key[known.rpartition(".")[2]] = known  # those beside it come last, and stay
    found = difflib.get_close_matches(key, by_key, n=1, cutoff=0.75)
    return by_key[found[0]] if found else None


def markdown_tables() -> str:
    """The table of fields as it stands in the documentation."""
    lines = ["| honoured | may be | does |", "|---|---|---|"]
    lines += [f"| {_names(fields)} | {fields.allowed} | {fields.says} |" for fields in _documented(HONOURED)]
    lines += ["", "| without effect | why |", "|---|---|"]
    lines += [f"| {_names(fields)} | {fields.says} |" for fields in _documented(WITHOUT_EFFECT)]
    lines += ["", "| refused | but for | why |", "|---|---|---|"]
    lines += [f"| {_names(fields)} | {_neutral(fields)} | {fields.says} |" for fields in _documented(REFUSED)]
    return "\n".join(lines) + "\n"


def _documented(table: Iterable[Fields]) -> list[Fields]:
    """The rows of a table, those that say the same as one."""
    rows: dict[tuple[Any, ...], Fields] = {}
    for fields in table:
        key = (fields.says, fields.allowed, str(fields.neutral), fields.forms)
        before = rows.get(key)
        rows[key] = (
            fields if before is None else dataclasses.replace(before, names=before.names + fields.names)
        )
    return list(rows.values())


def _names(fields: Fields) -> str:
    of = "" if fields.forms == BOTH else " (chat)" if fields.forms == CHAT else " (Responses)"
    return ", ".join(f"`{name}`" for name in fields.names) + of


def _neutral(fields: Fields) -> str:
    return ", ".join(f"`{json.dumps(value)}`" for value in fields.neutral)
