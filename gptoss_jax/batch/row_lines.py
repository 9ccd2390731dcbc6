"""Rows as lines of JSON, and what an output knows of each."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from gptoss_jax.batch.ids import id_digest

if TYPE_CHECKING:
    from harmony.json_types import Json


class Entry(NamedTuple):
    """What is known of a row.

    line: the number of its input line. is_error: True for an error row. end: where it ends in the output, in
    bytes. id: its id's digest; empty if it has none, or only repeats another row's.
    """

    line: int
    is_error: bool
    end: int
    id: bytes


def entry_of(line: int, row: Mapping[str, Json], end: int) -> Entry:
    """The entry of a row."""
    return Entry(line, is_error_row(row), end, _id_of(row))


def is_error_row(row: Mapping[str, Json]) -> bool:
    """True if a row is an error row: its line was not answered."""
    response = row.get("response")
    refused = isinstance(response, dict) and response.get("status_code") != 200
    return row.get("error") is not None or refused


def _id_of(row: Mapping[str, Json]) -> bytes:
    response, error = row.get("response"), row.get("error")
    if isinstance(response, dict) and isinstance(body := response.get("body"), dict) and error is None:
        error = body.get("error")
    if isinstance(error, dict) and error.get("code") == "duplicate_id":
        return b""
    id = row["custom_id"] if "custom_id" in row else row.get("id")
    return b"" if id is None else id_digest(str(id))


def encoded_row(line: int, row: Mapping[str, Json]) -> bytes:
    """A row as one line of JSON in UTF-8, with the number of its input line and with its newline."""
    return json_line({**row, "line": line})


def json_line(document: Mapping[str, Json]) -> bytes:
    """An object as one line of JSON in UTF-8, with its newline."""
    try:
        data = json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()
    except UnicodeEncodeError:  # a lone surrogate: UTF-8 cannot encode it, an escape of JSON can
        data = json.dumps(document, separators=(",", ":")).encode()
    return data + b"\n"
