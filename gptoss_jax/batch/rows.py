"""Makes a request of one line of a batch file, or raises an `ApiError` that says why it cannot.

A file may mix two forms of lines:

- OpenAI's Batch format: ``{"custom_id", "method": "POST", "url", "body"}`` with the url
  ``/v1/chat/completions`` or ``/v1/responses``;
- the plain form: ``{"id", "messages"}`` or ``{"id", "prompt"}``, with the fields of a chat body beside them.

`gptoss_jax.openai_api` reads the bodies; their fields mean the same in every form.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Literal, Protocol

from gptoss_jax.batch.ids import IdTable, id_digest
from gptoss_jax.batch.source import MAX_LINE_BYTES
from gptoss_jax.engine.request import row_seed
from gptoss_jax.openai_api import PATHS, ApiError, Context, Prepared, parse_object
from gptoss_jax.openai_api import prepare as prepare_body
from gptoss_jax.openai_api.errors import json_kind
from gptoss_jax.openai_api.request import RequestChecker
from harmony.json_types import Json, JsonObject
from harmony.openai_formats import BodyForm

if TYPE_CHECKING:
    from gptoss_jax.engine import Completion, Request
    from gptoss_jax.engine.statistics import Statistics


@dataclasses.dataclass(frozen=True)
class Envelope:
    """The identity of a line.

    line: its number, from 1.
    id: its id.
    shape: the form of its answer; "unknown" if the line could not be read far enough to tell.
    """

    line: int
    id: str | int
    shape: Literal["openai", "plain", "unknown"]

    @classmethod
    def unknown(cls, line: int) -> Envelope:
        """The envelope of a line that was not read yet."""
        return cls(line=line, id=f"line-{line}", shape="unknown")

    @property
    def key(self) -> str:
        """The id as a string, which must be unique in the file; the ids 7 and "7" are the same."""
        return str(self.id)


class RowEngine(RequestChecker, Protocol):
    """What answers the requests of rows: an `Engine`, or a part of one."""

    statistics: Statistics

    @property
    def compiled_programs(self) -> int:
        """How many programs were compiled so far."""

    def run(self, requests: Iterable[Request]) -> Iterator[Completion]:
        """Completes every request, and yields each completion as soon as it is finished."""


@dataclasses.dataclass(frozen=True)
class RowContext(Context):
    """The settings of a run that turn lines into requests.

    seed: the run's seed; a row without a seed gets one from `gptoss_jax.engine.request.row_seed`.
    """

    engine: RowEngine
    seed: int


def envelope_of(document: Mapping[str, Json], line: int) -> Envelope:
    """Returns the identity of a parsed line. A row without an id gets the id "line-NUMBER".

    Raises:
        ApiError: the id is neither a string nor a whole number.
    """
    plain = "messages" in document or "prompt" in document
    openai = not plain and any(name in document for name in ("custom_id", "method", "url", "body"))
    name = "custom_id" if "custom_id" in document else "id"
    identifier = document.get(name)
    if identifier is None:
        identifier = f"line-{line}"
    elif isinstance(identifier, bool) or not isinstance(identifier, (str, int)) or identifier == "":
        raise ApiError("invalid_id", f"{name} must be a string, not {json_kind(identifier)}", name)
    return Envelope(line, identifier, "openai" if openai else "plain")


def read_line(raw: bytes, line: int) -> tuple[JsonObject, Envelope]:
    """Returns a line as JSON, and its identity.

    Raises:
        ApiError: the line is too long, is no JSON object, or has an id that is none.
    """
    if len(raw) > MAX_LINE_BYTES:
        raise ApiError("line_too_long", f"has more than {MAX_LINE_BYTES >> 20} MiB")
    document = parse_object(raw)
    return document, envelope_of(document, line)


def check_id(envelope: Envelope, ids: IdTable) -> None:
    """Notes the id of a line. Raises ApiError if an earlier line has the same."""
    first = ids.first_line(id_digest(envelope.key), envelope.line)
    if first != envelope.line:
        shown = json.dumps(envelope.id, ensure_ascii=False)
        raise ApiError("duplicate_id", f"the id {shown} is already that of line {first}")


def prepare(document: Mapping[str, Json], envelope: Envelope, context: RowContext) -> Prepared:
    """Returns the request of a parsed line.

    Raises:
        ApiError: the row cannot be answered.
    """
    form, body = _form_and_body(document, envelope)
    seed = row_seed(context.seed, envelope.key)
    return prepare_body(body, form, context, id=str(envelope.line), seed=seed)


def _form_and_body(document: Mapping[str, Json], envelope: Envelope) -> tuple[BodyForm, Mapping[str, Json]]:
    if envelope.shape == "plain":
        return "chat", _plain_body(document)
    if "body" not in document:
        raise ApiError("missing_body", "has no body", "body")
    body = document["body"]
    if not isinstance(body, dict):
        raise ApiError("invalid_body", f"body must be an object, not {json_kind(body)}", "body")
    method = document.get("method", "POST")
    if method != "POST":
        raise ApiError("invalid_method", f'method must be "POST", not {json_kind(method)}', "method")
    url = document.get("url")
    if not isinstance(url, str) or url not in PATHS:
        known = " or ".join(f'"{name}"' for name in PATHS)
        raise ApiError("unknown_url", f"url must be {known}, not {json_kind(url)}", "url")
    return PATHS[url], body


def _plain_body(document: Mapping[str, Json]) -> Mapping[str, Json]:
    """The chat body of a row in the plain form."""
    if "messages" not in document and "prompt" not in document:
        raise ApiError("invalid_request", "has no messages, no prompt and no body")
    body = {name: value for name, value in document.items() if name not in ("id", "custom_id")}
    if "prompt" in body:
        prompt = body.pop("prompt")
        if "messages" in body:
            raise ApiError("invalid_request", "has both messages and prompt: give one", "prompt")
        if not isinstance(prompt, str):
            raise ApiError("invalid_request", f"prompt must be a string, not {json_kind(prompt)}", "prompt")
        body["messages"] = [{"role": "user", "content": prompt}]
    return body
