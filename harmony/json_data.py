"""Python values → the plain JSON data that they become when they are written as JSON and read back.

openai-harmony is given messages as JSON, so this is what it renders of a tuple, an enum or a dataclass.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping

from pydantic import BaseModel

from .errors import shown
from .json_types import Json, JsonObject
from .numbers import TOO_DEEP, nests_too_deeply, number
from .surrogates import without_surrogates

_SURELY_IN_RANGE = 1e300


class NotJsonError(ValueError):
    """A value that JSON cannot express.

    `path` says where it is: keys and indexes, the outermost first.
    """

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.problem = problem
        self.path: list[str | int] = []

    def __str__(self) -> str:
        if not self.path:
            return self.problem
        where = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in self.path)
        return f"{self.problem} (at {where.removeprefix('.')})"


def json_data(value: object) -> Json:
    """The value as JSON data: dictionaries with string keys, lists, `str`, `int`, `float`, `bool` and None.

    A tuple becomes a list, a member of a `str` enum its string. A pydantic model or a dataclass becomes a
    dictionary of its fields that are not None. Raises NotJsonError for any other type, for numbers that are
    not finite or do not fit a float64, for lone surrogates, and for nesting deeper than
    `numbers.MAX_LEVELS`.
    """
    if nests_too_deeply(value):
        raise NotJsonError(f"it is {TOO_DEEP}")
    return _json_data(value)


def _json_data(value: object) -> Json:
    if isinstance(value, str):
        return unicode_text(value)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int | float):
        return _plain_number(value)
    if isinstance(value, BaseModel):
        value = value.model_dump(exclude_none=True, warnings=False)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        value = {name: item for name, item in fields.items() if item is not None}
    if isinstance(value, Mapping):
        data: JsonObject = {}
        for key, item in value.items():
            name = _key(key)
            try:
                data[name] = _json_data(item)
            except NotJsonError as error:
                error.path.insert(0, name)
                raise
        return data
    if isinstance(value, list | tuple):
        items: list[Json] = []
        for item in value:
            try:
                items.append(_json_data(item))
            except NotJsonError as error:
                error.path.insert(0, len(items))
                raise
        return items
    raise NotJsonError(f"{shown(value)} is not a JSON value")


def unicode_text(text: str) -> str:
    """The text as a plain `str`, with surrogate pairs joined. Raises NotJsonError for a lone surrogate."""
    try:
        return without_surrogates(str.__str__(text))
    except ValueError as error:
        raise NotJsonError(str(error)) from None


def _plain_number(value: int | float) -> int | float:
    plain = int(value) if isinstance(value, int) else float(value)
    if not -_SURELY_IN_RANGE < plain < _SURELY_IN_RANGE:
        try:
            number(plain)
        except ValueError as error:
            raise NotJsonError(str(error)) from None
    return plain


def _key(key: object) -> str:
    """A key as Python's `json` writes it."""
    if isinstance(key, str):
        return unicode_text(key)
    if key is None or isinstance(key, bool | int | float):
        return json.dumps(key)
    raise NotJsonError(f"the key {shown(key)} is not a string")
