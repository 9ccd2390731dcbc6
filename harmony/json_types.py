"""The types of JSON data."""

from __future__ import annotations

from typing import TypeAlias

Json: TypeAlias = "dict[str, Json] | list[Json] | str | int | float | bool | None"
"""A JSON value, as Python's `json` reads it."""

JsonObject: TypeAlias = "dict[str, Json]"
"""A JSON object."""
