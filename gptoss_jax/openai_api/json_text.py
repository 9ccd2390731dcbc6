"""Parses the JSON of a request body, or of a line of a batch file."""

from __future__ import annotations

import json
import math
from typing import Any

from gptoss_jax.openai_api.errors import ApiError, json_kind
from harmony.numbers import TOO_DEEP, nests_too_deeply


def parse_object(raw: bytes, *, finite: bool = False) -> dict[str, Any]:
    """Parses the text of a JSON object.

    Args:
        raw: the text in UTF-8, with or without a byte order mark.
        finite: True refuses numbers beyond float64's range. False reads them as infinity, so that the error
            about the field can name it.

    Raises:
        ApiError: the text is not UTF-8, not JSON, nested more than 128 levels deep, or not an object.
    """
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ApiError("invalid_utf8", f"not UTF-8: {error.reason} at byte {error.start + 1}") from None
    try:
        parse_float = _finite if finite else float
        document = json.loads(text, parse_constant=_refuse_constant, parse_float=parse_float)
    except RecursionError:
        raise ApiError("invalid_json", TOO_DEEP) from None
    except json.JSONDecodeError as error:
        reason = error.msg.removesuffix(" at")  # as in "Invalid control character at"
        raise ApiError("invalid_json", f"not valid JSON: {reason} at column {error.colno}") from None
    except ValueError as error:  # NaN, or a number beyond the range
        raise ApiError("invalid_json", f"not valid JSON: {error}") from None
    if nests_too_deeply(document):
        raise ApiError("invalid_json", TOO_DEEP)
    if not isinstance(document, dict):
        raise ApiError("not_an_object", f"must be a JSON object, not {json_kind(document)}")
    return document


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


def _finite(text: str) -> float:
    """A number with a point or an exponent. Raises ValueError if it cannot be written as JSON again."""
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"{text[:20]} is beyond the range of a float64")
    return value
