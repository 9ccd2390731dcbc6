"""The arguments of a call of the browser, as JSON that a model wrote."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from harmony.errors import shown_json


class ArgumentError(ValueError):
    """Arguments that cannot be used. The message is one line, for the model."""


class Arguments:
    """The arguments of a call. Those that nobody asks for are ignored."""

    def __init__(self, text: str) -> None:
        """Reads the text of a call; an empty one has no arguments.

        Raises:
            ArgumentError: it is no JSON object.
        """
        try:
            values = json.loads(text) if text.strip() else {}
        except (ValueError, RecursionError) as error:
            raise ArgumentError(f"the arguments are not valid JSON: {error}") from None
        if not isinstance(values, dict):
            raise ArgumentError(f"the arguments are {shown_json(values)}: they must be a JSON object")
        self._values: Mapping[str, Any] = values

    def text(self, name: str) -> str:
        """A string that must be there and say something; a number is taken as its text."""
        value = self._values.get(name)
        if isinstance(value, int | float) and not isinstance(value, bool):
            value = shown_json(value)
        if not isinstance(value, str) or not value.strip():
            raise ArgumentError(f"`{name}` is {shown_json(value)}: it must be a string that is not empty")
        return value

    def number(self, name: str) -> int | None:
        """A whole number from 0; None if it is not given, null, or negative, which all mean the default."""
        value = self._values.get(name)
        if isinstance(value, str) and value.strip().lstrip("-").isdecimal() and len(value) < 20:
            value = int(value)
        if isinstance(value, float) and math.isfinite(value) and value == int(value):
            value = int(value)
        if value is None or value == "":
            return None
        if isinstance(value, bool) or not isinstance(value, int):
            raise ArgumentError(f"`{name}` is {shown_json(value)}: it must be a whole number")
        return None if value < 0 else value

    def number_or_text(self, name: str) -> int | str | None:
        """A whole number from 0 or other text; None as in `number`."""
        value = self._values.get(name)
        if isinstance(value, str) and not value.strip().lstrip("-").isdecimal():
            return value.strip() or None
        return self.number(name)

    def flag(self, name: str) -> bool:
        """True or False; False if it is not given."""
        value = self._values.get(name)
        if value is None or isinstance(value, bool):
            return bool(value)
        raise ArgumentError(f"`{name}` is {shown_json(value)}: it must be true or false")
