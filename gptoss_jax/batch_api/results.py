"""Makes the files that clients download of the rows that a batch has."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gptoss_jax.batch.output import is_error_row, json_line
from gptoss_jax.batch.source import Source
from gptoss_jax.batch_api.files import Files
from harmony.json_types import JsonObject

_OUR_OWN = ("line", "diagnostics")
"""What a batch run's rows have beside the fields of OpenAI's."""


@dataclasses.dataclass
class Results:
    """What has become of a batch.

    output, errors: the ids of its files; None for one without rows.
    answered, failed: the rows of either file.
    usage: the tokens of all answers.
    """

    output: str | None
    errors: str | None
    answered: int = 0
    failed: int = 0
    usage: dict[str, Any] = dataclasses.field(default_factory=lambda: _usage(0, 0, 0, 0))


def write_results(
    files: Files, batch: str, source: Path, rows: Path, unanswered: Mapping[str, str]
) -> Results:
    """Writes the rows of a batch into an output file and an error file, in the order of the input.

    The files' ids follow from the batch's, so doing it again after a crash gives the same files.

    Args:
        files: where to.
        batch: the batch's id.
        source: its input.
        rows: its rows so far; there need be no such file.
        unanswered: the error, code and message, of lines that have no row.
    """
    results = Results(_id(batch, "output"), _id(batch, "errors"))
    assert results.output is not None and results.errors is not None
    places = _places(rows)
    with (
        Source(source) as lines,
        files.written(results.output) as output,
        files.written(results.errors) as errors,
        open(rows, "rb") if places else contextlib.nullcontext() as found,
    ):
        for number, raw in lines.read():
            if number in places and found is not None:
                found.seek(places[number])
                row: JsonObject = json.loads(found.readline())
            else:
                row = _unanswered(batch, number, raw, unanswered)
            kept = json_line({name: value for name, value in row.items() if name not in _OUR_OWN})
            if is_error_row(row):
                results.failed += 1
                errors.write(kept)
            else:
                results.answered += 1
                results.usage = _with(results.usage, row)
                output.write(kept)
    if not results.answered:
        files.path(results.output).unlink()
        results.output = None
    if not results.failed:
        files.path(results.errors).unlink()
        results.errors = None
    return results


def _id(batch: str, part: str) -> str:
    return f"file-{uuid.uuid5(uuid.NAMESPACE_OID, f'{batch} {part}').hex}"


def _places(rows: Path) -> dict[int, int]:
    """Line of the input → where its row begins. A torn row at the end counts as none."""
    places: dict[int, int] = {}
    if not rows.exists():
        return places
    with open(rows, "rb") as file:
        place = 0
        for raw in file:
            if raw.endswith(b"\n"):
                places[int(json.loads(raw)["line"])] = place
            place += len(raw)
    return places


def _unanswered(batch: str, number: int, raw: bytes, error: Mapping[str, str]) -> JsonObject:
    return {
        "id": f"batch_req_{uuid.uuid5(uuid.NAMESPACE_OID, f'{batch} {number}').hex}",
        "custom_id": json.loads(raw.decode("utf-8-sig"))["custom_id"],
        "response": None,
        "error": {"code": error["code"], "message": error["message"]},
    }


def _with(usage: dict[str, Any], row: JsonObject) -> dict[str, Any]:
    """The usage with that of a row, whichever API's body it has."""
    response: Any = row["response"]
    given = response["body"]["usage"]
    read, written = ("prompt", "completion") if "prompt_tokens" in given else ("input", "output")
    return _usage(
        usage["input_tokens"] + given[f"{read}_tokens"],
        usage["input_tokens_details"]["cached_tokens"] + given[f"{read}_tokens_details"]["cached_tokens"],
        usage["output_tokens"] + given[f"{written}_tokens"],
        usage["output_tokens_details"]["reasoning_tokens"]
        + given[f"{written}_tokens_details"]["reasoning_tokens"],
    )


def _usage(read: int, cached: int, written: int, reasoning: int) -> dict[str, Any]:
    return {
        "input_tokens": read,
        "input_tokens_details": {"cached_tokens": cached},
        "output_tokens": written,
        "output_tokens_details": {"reasoning_tokens": reasoning},
        "total_tokens": read + written,
    }
