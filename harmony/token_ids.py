"""Token ids of any integer type → Python's `int`: of numpy, jax, torch, or a class of the caller's own.

None of these libraries is imported here. An integer is a value with `__index__`; floats, strings and numpy's
booleans have none.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import SupportsIndex, cast

from .errors import TokenRangeError, shown

MAX_ID = 2**32 - 1
"""Token ids are unsigned 32-bit integers."""


def token_id(value: SupportsIndex) -> int:
    """A token id as an `int`.

    Raises TypeError if it is not an integer, and TokenRangeError if it is outside of 0 … `MAX_ID`.
    """
    try:
        token = operator.index(value)
    except TypeError:
        raise TypeError(f"a token is {shown(value)}: it must be an integer") from None
    if not 0 <= token <= MAX_ID:
        raise TokenRangeError(f"a token is {token}: it must be from 0 to {MAX_ID}")
    return token


def tokens_of(values: Iterable[SupportsIndex]) -> Iterable[SupportsIndex]:
    """The tokens, ready to iterate over.

    An array becomes a list: its own iterator makes an array of each token. Raises TypeError if `values`
    cannot be iterated over.
    """
    if type(values) is list or type(values) is tuple:
        return values
    to_list = getattr(values, "tolist", None)
    if callable(to_list):
        listed = to_list()
        # `tolist` makes Python's booleans of numpy's. Those are integers, so such an array stays as it is.
        if isinstance(listed, list) and bool not in map(type, listed):
            return listed
    try:
        return iter(values)
    except TypeError:
        raise TypeError(f"tokens is {shown(values)}: it must be a sequence of integers") from None


def token_ids(values: Iterable[SupportsIndex]) -> list[int]:
    """Tokens as a list of `int`. Raises as `token_id` and `tokens_of` do."""
    tokens = list(tokens_of(values))
    if set(map(type, tokens)) <= {int}:
        ids = cast(list[int], tokens)
        if not ids or (min(ids) >= 0 and max(ids) <= MAX_ID):
            return ids
    return list(map(token_id, tokens))
