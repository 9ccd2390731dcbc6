"""Conversion of callers' values to plain Python numbers and lists, with one-line errors."""

from __future__ import annotations

import math
import numbers
import operator
from collections.abc import Callable, Iterable, Mapping, Sized
from typing import Any, NoReturn

from gptoss_jax.engine.errors import RequestError
from harmony.errors import shown


def as_integer(value: object) -> int | None:
    """Returns a value of any integer type, numpy's and jax's scalars included, as an int.

    Returns None for everything else. Booleans and floats do not count as integers, not even 2.0.
    """
    if type(value) is int:
        return value
    if isinstance(value, bool):
        return None
    try:
        return int(operator.index(value))  # type: ignore[arg-type]
    except Exception:
        return None


def as_number(value: object) -> float | None:
    """Returns a finite number of any real type, numpy's and jax's scalars included, as a float; else None.

    Booleans do not count as numbers.
    """
    if isinstance(value, bool) or getattr(getattr(value, "dtype", None), "kind", None) == "b":
        return None
    if not isinstance(value, numbers.Real) and getattr(value, "shape", None) != ():
        return None
    try:
        number = float(value)  # type: ignore[arg-type]
    except Exception:  # an int beyond the range of floats, or an array that holds no number
        return None
    return number if math.isfinite(number) else None


def as_items(value: object) -> list[Any] | None:
    """Returns the items of a list, tuple, set or array; None for anything else, such as a string or dict."""
    if isinstance(value, (str, bytes, bytearray, memoryview, Mapping)):
        return None
    if not isinstance(value, Iterable) or not isinstance(value, Sized):
        return None
    try:
        return list(value)
    except Exception:  # an array without dimensions
        return None


def refuse(name: str, value: object, allowed: str) -> NoReturn:
    """Raises `RequestError`: "NAME is VALUE: it must be ALLOWED"."""
    raise RequestError(f"{name} is {shown(value)}: it must be {allowed}")


def integer_from(name: str, value: object, lowest: int | None, highest: int | None = None) -> int:
    """Returns `value` as an int from `lowest` to `highest`, both included. A bound of None is no bound.

    Raises:
        RequestError: the value is no integer, or lies outside the bounds.
    """
    number = as_integer(value)
    if (
        number is None
        or (lowest is not None and number < lowest)
        or (highest is not None and number > highest)
    ):
        within = "" if lowest is None else f" from {lowest}" + ("" if highest is None else f" to {highest}")
        refuse(name, value, f"a whole number{within}")
    return number


def number_from(
    name: str, value: object, allowed: str, valid: Callable[[float], bool] = lambda number: True
) -> float:
    """Returns `value` as a float. `allowed` says in the error what `valid` accepts.

    Raises:
        RequestError: the value is no finite number, or `valid` returns False for it.
    """
    number = as_number(value)
    if number is None or not valid(number):
        refuse(name, value, allowed)
    return number
