"""Reads the small files of a checkpoint without trusting them: regular files only, limited in size, strict
JSON.

Python's `json` module accepts more than JSON: NaN, a byte order mark, UTF-16, duplicate keys (the last one
wins) and lone surrogates. Two programs could read different models from one such file, so all of this is
refused.
"""

from __future__ import annotations

import json
import math
import os
import re
import stat
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from checkpoints.config import CheckpointError, shown, shown_name

MAX_JSON_BYTES = 4 << 20
"""The largest JSON file that is parsed, in bytes, since parsing can take 50 times the size in memory. The
largest one of a published checkpoint, the index of 120b, has less than 0.1 MB.
"""

_MAX_DEPTH = 100
_ESCAPED_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


def open_regular(path: Path) -> BinaryIO:
    """Opens a regular file for reading, unbuffered. Refuses a pipe or a device without waiting for it.

    Raises:
        CheckpointError: it is not a regular file.
        OSError: it cannot be opened.
    """
    # Opening a device can have side effects, so its kind is checked first. Opening a pipe blocks without
    # O_NONBLOCK.
    _check_regular(path, os.stat(path).st_mode)
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    try:
        _check_regular(path, os.fstat(descriptor).st_mode)
        return os.fdopen(descriptor, "rb", buffering=0)
    except BaseException:
        os.close(descriptor)
        raise


def _check_regular(path: Path, mode: int) -> None:
    if not stat.S_ISREG(mode):
        kind = "a folder" if stat.S_ISDIR(mode) else "a pipe, socket or device"
        raise CheckpointError(f"{shown_name(path.name)} is {kind}: it must be a file")


def read_json(path: Path, max_bytes: int = MAX_JSON_BYTES) -> dict[str, Any]:
    """The JSON object in a file.

    Raises:
        CheckpointError: the file cannot be read, is longer than `max_bytes`, or is not one strict JSON
            object. The message begins with the path.
    """
    try:
        with open_regular(path) as stream:
            data = read_up_to(stream, max_bytes + 1)
        if len(data) > max_bytes:
            raise CheckpointError(f"is too large: it may have at most {max_bytes:,} bytes")
        return parse_json(data)
    except CheckpointError as error:
        raise CheckpointError(f"{path}: {error}") from None
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: cannot be read: {reason(error)}") from None


def parse_json(data: bytes) -> dict[str, Any]:
    """Parses `data` as one JSON object.

    Raises:
        CheckpointError: it is not UTF-8, not strict JSON (see the module), or not an object.
    """
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise CheckpointError(f"cannot be read as JSON: byte {error.start} is not UTF-8") from None
    try:
        value = json.loads(
            text,
            object_pairs_hook=_unique,
            parse_constant=_no_constant,
            parse_float=_finite,
            parse_int=_whole,
        )
        nested = text.count("[") + text.count("{") > _MAX_DEPTH and _depth(value) > _MAX_DEPTH
    except RecursionError:
        nested = True
    except CheckpointError:
        raise
    except ValueError as error:
        raise CheckpointError(f"cannot be read as JSON: {error}") from None
    if nested:
        raise CheckpointError(f"cannot be read as JSON: it is nested more than {_MAX_DEPTH} levels deep")
    if _ESCAPED_SURROGATE.search(text):
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise CheckpointError("cannot be read as JSON: a string holds a lone surrogate") from None
    if not isinstance(value, dict):
        raise CheckpointError("must be a JSON object")
    return value


def read_up_to(stream: BinaryIO, count: int) -> bytes:
    """Reads `count` bytes, or fewer if the file ends before."""
    parts = []
    while count and (part := stream.read(count)):
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


def reason(error: OSError | ValueError) -> str:
    """The message of an exception, without the path, which the caller names itself."""
    return (isinstance(error, OSError) and error.strerror) or str(error)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        twice = next(key for key, count in Counter(key for key, _ in pairs).items() if count > 1)
        raise CheckpointError(f"has the key {shown(twice)} twice in one object")
    return found


def _no_constant(word: str) -> float:
    raise CheckpointError(f"cannot be read as JSON: it holds {word}")


def _whole(digits: str) -> int | float:
    """Parses a whole number.

    Minus zero becomes a float, so that it does not pass for a length or an offset.
    """
    _finite(digits)
    return -0.0 if digits == "-0" else int(digits)


def _finite(digits: str) -> float:
    value = float(digits)
    if math.isinf(value):
        raise CheckpointError(f"cannot be read as JSON: the number {shown(digits)} is out of range")
    return value


def _depth(value: object) -> int:
    """The nesting depth of objects and lists, computed without recursion."""
    level, depth = [value], 0
    while level := [item for item in level if isinstance(item, (dict, list))]:
        depth += 1
        level = [item for container in level for item in _items(container)]
    return depth


def _items(container: dict[str, Any] | list[Any]) -> Iterator[Any]:
    return iter(container.values() if isinstance(container, dict) else container)
