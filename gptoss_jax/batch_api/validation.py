"""Checks the input file of a batch before any of it is answered."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from gptoss_jax.openai_api import ApiError, parse_object
from gptoss_jax.openai_api.errors import json_kind
from harmony.json_types import Json

MOST_PROBLEMS = 100
"""Problems of a file that are told; those behind them are not looked for."""


@dataclasses.dataclass
class Survey:
    """What a file holds: how many requests, and what is wrong with it, as the `errors` of a batch list it."""

    rows: int = 0
    problems: list[dict[str, Any]] = dataclasses.field(default_factory=list)

    def add(self, code: str, message: str, line: int | None = None, param: str | None = None) -> None:
        """Adds a problem."""
        self.problems.append({"code": code, "message": message, "line": line, "param": param})


def check_input(
    path: Path, endpoint: str, *, max_rows: int, max_line_bytes: int, go_on: Callable[[], None]
) -> Survey:
    """Reads a file, whose requests must all be for `endpoint`.

    What is wrong inside the bodies is not looked for: it becomes a row of the error file. `go_on` is called
    for each line; what it raises ends the survey.
    """
    survey = Survey()
    first_lines: dict[str, int] = {}
    with open(path, "rb") as file:
        for number, raw in _lines(file, max_line_bytes):
            go_on()
            if raw is not None and not raw.removeprefix(b"\xef\xbb\xbf" if number == 1 else b"").strip():
                continue
            survey.rows += 1
            if survey.rows > max_rows:
                survey.add("too_many_requests", f"the file has more than {max_rows} requests", number)
                break
            try:
                if raw is None:
                    message = f"the line has more than {max_line_bytes} bytes"
                    raise ApiError("line_too_long", message)
                _check_line(_parsed(raw), endpoint, first_lines, number)
            except ApiError as error:
                survey.add(error.code, str(error), number, error.parameter)
            if len(survey.problems) >= MOST_PROBLEMS:
                break
    if not survey.rows:
        survey.add("empty_file", "the file has no requests")
    return survey


def _lines(file: BinaryIO, most: int) -> Iterator[tuple[int, bytes | None]]:
    """The lines with their numbers from 1; None for one of more than `most` bytes, which is not kept."""
    number = 0
    while raw := file.readline(most + 1):
        number += 1
        if len(raw) <= most or raw.endswith(b"\n"):
            yield number, raw
            continue
        while raw and not raw.endswith(b"\n"):
            raw = file.readline(most)
        yield number, None


def _parsed(raw: bytes) -> dict[str, Json]:
    try:
        return parse_object(raw)
    except ApiError as error:
        raise ApiError("invalid_json_line", f"the line is no JSON object: {error}") from None


def _check_line(document: dict[str, Json], endpoint: str, first_lines: dict[str, int], number: int) -> None:
    """Raises ApiError if a line is no request of the batch."""
    for name in ("custom_id", "method", "url", "body"):
        if document.get(name) is None:
            raise ApiError("missing_required_parameter", f"the line has no {name}", name)
    for name in ("messages", "prompt"):  # with them, a batch run takes the line for its plain form
        if name in document:
            raise ApiError("invalid_value", f"{name} stands beside body: it must be inside", name)
    id, url = document["custom_id"], document["url"]
    if not isinstance(id, str) or not id:
        message = f"custom_id must be a string that is not empty, not {json_kind(id)}"
        raise ApiError("invalid_value", message, "custom_id")
    first = first_lines.setdefault(id, number)
    if first != number:
        raise ApiError("duplicate_custom_id", f"custom_id is that of line {first} too", "custom_id")
    if document["method"] != "POST":
        message = f'method must be "POST", not {json_kind(document["method"])}'
        raise ApiError("invalid_value", message, "method")
    if url != endpoint:
        message = f'url must be the endpoint of the batch, "{endpoint}", not {json_kind(url)}'
        raise ApiError("invalid_url", message, "url")
    if not isinstance(document["body"], dict):
        message = f"body must be an object, not {json_kind(document['body'])}"
        raise ApiError("invalid_value", message, "body")
