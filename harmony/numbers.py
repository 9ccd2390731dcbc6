"""Reading JSON within limits, and writing it as openai-harmony does.

openai-harmony reads numbers with Rust's `serde_json`. Its fast mode can be wrong by one unit in the last
place. It writes a number with the fewest digits that read back as the same number. To render the same tokens
for the same schema, this module reproduces both.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping

from .json_types import Json

MAX_LEVELS = 128
"""How many levels deep JSON may be nested.

No conversation needs so many, and recursive code can handle them.
"""

TOO_DEEP = f"nested more than {MAX_LEVELS} levels deep"

_U64_MAX = 2**64 - 1
_I64_MIN = -(2**63)


def nests_too_deeply(value: object) -> bool:
    """Whether lists and mappings are nested more than `MAX_LEVELS` deep, or contain themselves."""
    waiting = [(value, 0)]
    while waiting:
        value, level = waiting.pop()
        if isinstance(value, Mapping | list | tuple):
            if level == MAX_LEVELS:
                return True
            items = value.values() if isinstance(value, Mapping) else value
            waiting += [(item, level + 1) for item in items]
    return False


def json_value(text: str | bytes) -> Json:
    """Reads JSON. Raises ValueError for text that is not JSON or is nested more than `MAX_LEVELS` deep."""
    try:
        value: Json = json.loads(text)
    except RecursionError:
        raise ValueError(f"it is {TOO_DEEP}") from None
    if nests_too_deeply(value):
        raise ValueError(f"it is {TOO_DEEP}")
    return value


def compact_json(value: object, levels: int = MAX_LEVELS) -> str:
    """JSON on one line without spaces, with numbers as openai-harmony writes them.

    Raises ValueError for NaN, infinities, numbers that do not fit a float64, and nesting deeper than
    `levels`.
    """
    if levels == 0 and isinstance(value, Mapping | list | tuple):
        raise ValueError(f"it is {TOO_DEEP}")
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, int | float):
        return number(value)
    if isinstance(value, list | tuple):
        return "[" + ",".join(compact_json(item, levels - 1) for item in value) + "]"
    if isinstance(value, Mapping):
        pairs = (
            f"{json.dumps(k, ensure_ascii=False)}:{compact_json(v, levels - 1)}" for k, v in value.items()
        )
        return "{" + ",".join(pairs) + "}"
    raise ValueError(f"{value!r} is not a JSON value")


def number(value: int | float) -> str:
    """A number as openai-harmony writes it.

    Raises ValueError if it is not finite or does not fit a float64.
    """
    if isinstance(value, int):
        if _I64_MIN <= value <= _U64_MAX:
            return str(int(value))
        literal = str(int(value))
    else:
        if not math.isfinite(value):
            raise ValueError(f"{value!r} is not a JSON number")
        literal = float.__repr__(value)
    return _shortest(_fast_float(literal))


def _fast_float(literal: str) -> float:
    """Reads a decimal literal the way `serde_json` does without its `float_roundtrip` feature."""
    mantissa, _, exponent_digits = literal.lower().partition("e")
    exponent = int(exponent_digits or 0)
    negative = mantissa.startswith("-")
    whole, _, fraction = mantissa.lstrip("-").partition(".")
    significand = 0
    dropped = False
    for digit in whole:
        if dropped or significand * 10 + int(digit) > _U64_MAX:
            dropped = True
            exponent += 1
        else:
            significand = significand * 10 + int(digit)
    for digit in fraction:
        if dropped or significand * 10 + int(digit) > _U64_MAX:
            break
        significand = significand * 10 + int(digit)
        exponent -= 1
    result = float(significand)
    while abs(exponent) > 308:
        if result == 0.0:
            break
        if exponent > 0:
            raise ValueError(f"{literal[:40]}… is out of range: numbers must fit a float64")
        result /= 1e308
        exponent += 308
    else:
        result = result * float(f"1e{exponent}") if exponent >= 0 else result / float(f"1e{-exponent}")
        if math.isinf(result):
            raise ValueError(f"{literal[:40]}… is out of range: numbers must fit a float64")
    return -result if negative else result


def _shortest(value: float) -> str:
    """The fewest digits that read back as the same number, in the notation of Rust's `ryu`."""
    sign = "-" if math.copysign(1.0, value) < 0 else ""
    if value == 0:
        return sign + "0.0"
    mantissa, _, exponent_digits = float.__repr__(abs(value)).lower().partition("e")
    whole, _, fraction = mantissa.partition(".")
    digits = (whole + fraction).lstrip("0")
    exponent = int(exponent_digits or 0) - len(fraction)  # value = digits × 10^exponent
    stripped = digits.rstrip("0")
    exponent += len(digits) - len(stripped)
    digits = stripped
    point = len(digits) + exponent  # digits before the decimal point
    if exponent >= 0 and point <= 16:
        body = digits + "0" * exponent + ".0"
    elif 0 < point <= 16:
        body = digits[:point] + "." + digits[point:]
    elif -5 < point <= 0:
        body = "0." + "0" * -point + digits
    else:
        tail = "." + digits[1:] if len(digits) > 1 else ""
        body = f"{digits[0]}{tail}e{point - 1}"
    return sign + body
