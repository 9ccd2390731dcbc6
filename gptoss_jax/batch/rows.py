"""One line of a batch file → one request for the engine, or a `RowError` that says why not.

Two forms, which may be mixed in one file:

- OpenAI's Batch format: ``{"custom_id", "method": "POST", "url", "body"}`` with the url
  ``/v1/chat/completions`` or ``/v1/responses``;
- the plain form: ``{"id", "messages"}`` or ``{"id", "prompt"}``, with the fields of a chat body beside them.

A field that is neither honoured nor refused is ignored, as the hosted API's clients expect. Those that say
how tokens are chosen are in `gptoss_jax.batch.fields`, and mean the same in every form.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from gptoss_jax.batch.fields import Form, RowError, kind_of, sampling_from
from gptoss_jax.engine import Request, RequestError, SamplingParams
from gptoss_jax.engine.grammar import GrammarError, grammar_from_body
from harmony import Conversation, HarmonyError, Role
from harmony.numbers import TOO_DEEP, nests_too_deeply
from harmony.openai_formats import conversation_from_body

if TYPE_CHECKING:
    from gptoss_jax.engine import Engine
    from harmony import HarmonyEncoding

URLS: Mapping[str, Form] = {"/v1/chat/completions": "chat", "/v1/responses": "responses"}

_OF_RESPONSES = ("input", "instructions", "max_output_tokens")
_OF_CHAT = ("messages", "response_format", "max_tokens", "max_completion_tokens")
_MISPLACED: Mapping[Form, tuple[str, ...]] = {
    "chat": _OF_RESPONSES,
    "responses": _OF_CHAT,
    "plain": _OF_RESPONSES,
}

# Fields that would change the answer and that nothing here honours → the values that ask for nothing.
_REFUSED: Mapping[str, tuple[Any, ...]] = {
    "best_of": (1,),
    "audio": (),
    "modalities": (["text"],),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "web_search_options": (),
    "background": (False,),
    "conversation": (),
    "previous_response_id": (),
    "truncation": ("disabled",),
}


@dataclasses.dataclass(frozen=True)
class Envelope:
    """Who a line is: its number (from 1), its id, and the outer shape of its answer.

    "unknown" is the shape of a line that could not be read far enough to know its own.
    """

    line: int
    id: str | int
    shape: Literal["openai", "plain", "unknown"]

    @classmethod
    def unknown(cls, line: int) -> Envelope:
        """The envelope of a line of which nothing is known yet."""
        return cls(line=line, id=f"line-{line}", shape="unknown")

    @property
    def key(self) -> str:
        """What makes the id unique in its file; the ids 7 and "7" are the same."""
        return str(self.id)


@dataclasses.dataclass(frozen=True)
class Prepared:
    """A good line, ready for the engine."""

    envelope: Envelope
    form: Form
    body: Mapping[str, Any]
    request: Request


@dataclasses.dataclass(frozen=True)
class RowContext:
    """What turns lines into requests, the same for a whole run.

    `sampling` serves the rows that say nothing themselves (its seed is not used: see `row_seed`); `date` is
    the system message's current date, ``YYYY-MM-DD``.
    """

    engine: Engine
    encoding: HarmonyEncoding
    sampling: SamplingParams
    seed: int
    effort: str | None
    date: str


def row_seed(run_seed: int, key: str) -> int:
    """The seed of a row that names none: a hash of the run's seed and the row's id, in [0, 2**31).

    It depends on neither the row's place in the file nor on what is left to do, so that a resumed or
    reordered run samples the same answers.
    """
    digest = hashlib.blake2b(f"{run_seed}\0{key}".encode("utf-8", "surrogatepass"), digest_size=4).digest()
    return int.from_bytes(digest, "big") >> 1


def parse_line(raw: bytes) -> dict[str, Any]:
    """The JSON object on a line.

    Raises:
        RowError: the line is not UTF-8, not JSON, nested more than 128 levels deep, or not an object.
    """
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise RowError("invalid_utf8", f"not UTF-8: {error.reason} at byte {error.start + 1}") from None
    try:
        document = json.loads(text, parse_constant=_refuse_constant)
    except RecursionError:
        raise RowError("invalid_json", TOO_DEEP) from None
    except json.JSONDecodeError as error:
        raise RowError("invalid_json", f"not valid JSON: {error.msg} at column {error.colno}") from None
    except ValueError as error:  # a number with thousands of digits, or NaN
        raise RowError("invalid_json", f"not valid JSON: {error}") from None
    if nests_too_deeply(document):
        raise RowError("invalid_json", TOO_DEEP)
    if not isinstance(document, dict):
        raise RowError("not_an_object", f"must be a JSON object, not {kind_of(document)}")
    return document


def envelope_of(document: Mapping[str, Any], line: int) -> Envelope:
    """The identity of a parsed line; a row without an id is called after its line.

    Raises:
        RowError: the id is neither a string nor a whole number.
    """
    plain = "messages" in document or "prompt" in document
    openai = not plain and any(name in document for name in ("custom_id", "method", "url", "body"))
    name = "custom_id" if "custom_id" in document else "id"
    identifier = document.get(name)
    if identifier is None:
        identifier = f"line-{line}"
    elif isinstance(identifier, bool) or not isinstance(identifier, (str, int)) or identifier == "":
        raise RowError("invalid_id", f"{name} must be a string, not {kind_of(identifier)}", name)
    return Envelope(line, identifier, "openai" if openai else "plain")


def prepare(document: Mapping[str, Any], envelope: Envelope, context: RowContext) -> Prepared:
    """The request of a parsed line, its conversation rendered and its sampling checked.

    Raises:
        RowError: anything about the row that keeps it from being answered.
    """
    form, body = _form_and_body(document, envelope)
    _refuse_unsupported(body, form)
    sampling = sampling_from(body, form, context.sampling, row_seed(context.seed, envelope.key))
    try:
        conversation = _conversation(body, form, context)
        prompt = context.encoding.render_conversation_for_completion(conversation, Role.ASSISTANT)
        grammar = grammar_from_body(body, "responses" if form == "responses" else "chat")
    except UnicodeEncodeError:
        raise RowError(
            "invalid_request", "the text contains a lone surrogate, which is no character"
        ) from None
    except RowError:
        raise
    except (HarmonyError, ValueError) as error:
        raise _invalid(error, body) from None
    if len(prompt) >= context.engine.max_length:
        raise RowError(
            "context_length_exceeded",
            f"the prompt has {len(prompt)} tokens: fewer than {context.engine.max_length} fit",
            "input" if form == "responses" else "messages",
        )
    sampling = dataclasses.replace(sampling, grammar=grammar)
    request = Request(id=str(envelope.line), prompt=prompt, sampling=sampling)
    try:
        context.engine.check(request)
    except GrammarError as error:
        field = _format_field(form) if str(error).startswith("the final content") else "tools"
        raise RowError("invalid_json_schema", f"{field}: {_one_line(error)}", field) from None
    except RequestError as error:
        raise _invalid(error, body) from None
    return Prepared(envelope, form, body, request)


def _form_and_body(document: Mapping[str, Any], envelope: Envelope) -> tuple[Form, Mapping[str, Any]]:
    if envelope.shape == "plain":
        if "messages" not in document and "prompt" not in document:
            raise RowError("invalid_request", "has no messages, no prompt and no body")
        body = dict(document)
        if "prompt" in body:
            prompt = body.pop("prompt")
            if "messages" in body:
                raise RowError("invalid_request", "has both messages and prompt: give one", "prompt")
            if not isinstance(prompt, str):
                raise RowError("invalid_request", f"prompt must be a string, not {kind_of(prompt)}", "prompt")
            body["messages"] = [{"role": "user", "content": prompt}]
        return "plain", body
    if "body" not in document:
        raise RowError("missing_body", "has no body", "body")
    body = document["body"]
    if not isinstance(body, dict):
        raise RowError("invalid_body", f"body must be an object, not {kind_of(body)}", "body")
    method = document.get("method", "POST")
    if method != "POST":
        raise RowError("invalid_method", f'method must be "POST", not {kind_of(method)}', "method")
    url = document.get("url")
    if not isinstance(url, str) or url not in URLS:
        known = " or ".join(f'"{name}"' for name in URLS)
        raise RowError("unknown_url", f"url must be {known}, not {kind_of(url)}", "url")
    return URLS[url], body


def _refuse_unsupported(body: Mapping[str, Any], form: Form) -> None:
    for name, neutral in _REFUSED.items():
        value = body.get(name)
        if value is not None and not any(value == allowed for allowed in neutral):
            raise RowError("unsupported_field", f"{name} is not supported: {kind_of(value)}", name)
    for name in _MISPLACED[form]:
        if body.get(name) is not None:
            url = "/v1/chat/completions" if form == "responses" else "/v1/responses"
            raise RowError("unsupported_field", f"{name} is a field of {url}, not of this request", name)
    if form == "responses" and body.get("prompt") is not None:
        raise RowError("unsupported_field", "prompt (a stored prompt) is not supported", "prompt")
    choice = body.get("tool_choice")
    if isinstance(choice, dict) and choice.get("type") != "function":
        raise RowError(
            "unsupported_field",
            f"tool_choice of type {kind_of(choice.get('type'))} is not supported: it must be none, auto, "
            "required or a function",
            "tool_choice",
        )


def _format_field(form: Form) -> str:
    return "text.format" if form == "responses" else "response_format"


def _conversation(body: Mapping[str, Any], form: Form, context: RowContext) -> Conversation:
    name = "input" if form == "responses" else "messages"
    if name not in body:
        raise RowError("invalid_request", f"body has no {name}", name)
    return conversation_from_body(
        body,
        "responses" if form == "responses" else "chat",
        reasoning_effort=context.effort,
        current_date=context.date,
    )


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


def _invalid(error: Exception, body: Mapping[str, Any]) -> RowError:
    """The error of a row whose messages, tools or sampling are wrong; it begins with the field at fault."""
    message = _one_line(error)
    path = re.match(r"\w+[\w.\[\]]*", message)
    is_field = path is not None and re.split(r"\W", path[0])[0] in body
    return RowError("invalid_request", message, path[0] if path is not None and is_field else None)


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())
