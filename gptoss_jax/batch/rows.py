"""One line of a batch file → one request for the engine, or a `RowError` that says why not.

Two forms, which may be mixed in one file:

- OpenAI's Batch format: ``{"custom_id", "method": "POST", "url", "body"}`` with the url
  ``/v1/chat/completions`` or ``/v1/responses``;
- the plain form: ``{"id", "messages"}`` or ``{"id", "prompt"}``, with the fields of a chat body beside them.

A field that is neither honoured nor listed here is ignored, as the hosted API's clients expect.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal

from gptoss_jax.engine import Request, RequestError, SamplingParams
from harmony import Conversation, HarmonyError, Role
from harmony.numbers import TOO_DEEP, nests_too_deeply
from harmony.openai_formats import conversation_from_body

if TYPE_CHECKING:
    from gptoss_jax.engine import Engine
    from harmony import HarmonyEncoding

Form = Literal["chat", "responses", "plain"]

URLS: Mapping[str, Form] = {"/v1/chat/completions": "chat", "/v1/responses": "responses"}

_TOKEN_LIMITS = {
    "chat": ("max_completion_tokens", "max_tokens"),
    "responses": ("max_output_tokens",),
    "plain": ("max_tokens", "max_completion_tokens"),
}

_OF_RESPONSES = ("input", "instructions", "max_output_tokens")
_OF_CHAT = ("messages", "response_format", "max_tokens", "max_completion_tokens")
_MISPLACED: Mapping[Form, tuple[str, ...]] = {
    "chat": _OF_RESPONSES,
    "responses": _OF_CHAT,
    "plain": _OF_RESPONSES,
}

# Fields that would change the answer and that nothing here honours yet → the values that ask for nothing.
_REFUSED: Mapping[str, tuple[Any, ...]] = {
    "n": (1,),
    "best_of": (1,),
    "stop": ([], ""),
    "stop_token_ids": ([],),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "logit_bias": ({},),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "repetition_penalty": (1,),
    "min_p": (0,),
    "min_tokens": (0,),
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


class RowError(ValueError):
    """A line that cannot be answered: `code` for programs, the message for people.

    `parameter` is the field at fault, where there is one; `status` what an HTTP server would have said.
    """

    def __init__(self, code: str, message: str, parameter: str | None = None, *, status: int = 400):
        super().__init__(message)
        self.code = code
        self.parameter = parameter
        self.status = status


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
    sampling = _sampling(body, form, envelope, context)
    try:
        conversation = _conversation(body, form, context)
        prompt = context.encoding.render_conversation_for_completion(conversation, Role.ASSISTANT)
    except UnicodeEncodeError:
        raise RowError(
            "invalid_request", "the text contains a lone surrogate, which is no character"
        ) from None
    except (HarmonyError, ValueError) as error:
        raise RowError("invalid_request", _one_line(error)) from None
    if len(prompt) >= context.engine.max_length:
        raise RowError(
            "context_length_exceeded",
            f"the prompt has {len(prompt)} tokens: fewer than {context.engine.max_length} fit",
            "input" if form == "responses" else "messages",
        )
    request = Request(id=str(envelope.line), prompt=prompt, sampling=sampling)
    try:
        context.engine.check(request)
    except RequestError as error:
        raise RowError("invalid_request", _one_line(error)) from None
    return Prepared(envelope, form, body, request)


def kind_of(value: object) -> str:
    """A JSON value's type in words, with the value itself where it is short."""
    if value is None:
        return "null"
    if isinstance(value, list):
        return "an array"
    if isinstance(value, dict):
        return "an object"
    text = json.dumps(value)
    return text if len(text) <= 40 else text[:36] + "…" + text[-1]


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
    _refuse_unenforced(body, form)
    reasoning = body.get("reasoning")
    if reasoning is not None and not isinstance(reasoning, dict):
        raise RowError(
            "invalid_request", f"reasoning must be an object, not {kind_of(reasoning)}", "reasoning"
        )
    if reasoning and reasoning.get("max_tokens") is not None:
        raise RowError("unsupported_field", "reasoning.max_tokens is not supported", "reasoning.max_tokens")
    if reasoning and reasoning.get("enabled") is False:
        raise RowError(
            "unsupported_field", 'reasoning cannot be disabled: ask for the effort "low"', "reasoning.enabled"
        )


def _refuse_unenforced(body: Mapping[str, Any], form: Form) -> None:
    """Refuses what the hosted API guarantees and a prompt can only ask for."""
    choice = body.get("tool_choice")
    if choice not in (None, "auto", "none"):
        message = f"tool_choice {kind_of(choice)} is not supported: calls are not enforced yet"
        raise RowError("unsupported_field", message, "tool_choice")
    name = "text.format" if form == "responses" else "response_format"
    wanted = _as_object(body.get("text")).get("format") if form == "responses" else body.get(name)
    wanted = _as_object(wanted)
    schema = wanted if form == "responses" else _as_object(wanted.get("json_schema"))
    if wanted.get("type") == "json_object" or schema.get("strict") is True:
        message = f"{name} is not enforced yet: only a json_schema without strict is supported"
        raise RowError("unsupported_field", message, name)


def _as_object(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


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


def _sampling(body: Mapping[str, Any], form: Form, envelope: Envelope, context: RowContext) -> SamplingParams:
    defaults = context.sampling
    temperature = _number(body, "temperature", lambda x: 0 <= x <= 2, "a number from 0 to 2")
    top_p = _number(body, "top_p", lambda x: 0 < x <= 1, "a number above 0 and at most 1")
    top_k = _whole(body, "top_k", lambda x: 0 <= x < 2**31, "a whole number from 0 (off)")
    seed = _whole(body, "seed", lambda x: -(2**63) <= x < 2**63, "a whole number of 64 bits")
    limits = {
        name: limit
        for name in _TOKEN_LIMITS[form]
        if (limit := _whole(body, name, lambda x: 1 <= x < 2**31, "a whole number from 1")) is not None
    }
    if len(set(limits.values())) > 1:
        raise RowError("invalid_request", f"{' and '.join(limits)} differ: give one", next(iter(limits)))
    return SamplingParams(
        temperature=defaults.temperature if temperature is None else temperature,
        top_p=defaults.top_p if top_p is None else top_p,
        top_k=defaults.top_k if top_k is None else top_k,
        seed=row_seed(context.seed, envelope.key) if seed is None else seed,
        max_tokens=next(iter(limits.values()), defaults.max_tokens),
    )


def _number(
    body: Mapping[str, Any], name: str, allowed: Callable[[float], bool], expected: str
) -> float | None:
    value = body.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not allowed(value):
        raise RowError("invalid_request", f"{name} must be {expected}, not {kind_of(value)}", name)
    return float(value)


def _whole(body: Mapping[str, Any], name: str, allowed: Callable[[int], bool], expected: str) -> int | None:
    value = body.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not allowed(value):
        raise RowError("invalid_request", f"{name} must be {expected}, not {kind_of(value)}", name)
    return value


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())
