"""Makes the output row of a request, in the form in which the request came.

Every row has ``line``, the number of its input line from 1 (added when the row is written), and ``error``.

- OpenAI's form: ``{"id", "custom_id", "response": {"status_code", "request_id", "body"}, "error": null}``,
  the body a ``chat.completion`` or ``response`` object. A refused request has the status 400 and the body
  ``{"error": {"message", "type", "param", "code"}}``. A line that is no request at all has
  ``"response": null`` and ``"error": {"code", "message"}``.
- The plain form: ``{"id", "messages", "text", "reasoning", "tool_calls", "finish_reason", "usage",
  "error": null}``. ``messages`` are harmony messages with their channels and recipients; ``text``,
  ``reasoning`` and ``tool_calls`` are the same content as in a chat message. ``logprobs`` is added if the
  request has it. With several samples, the row has a list ``samples`` of such objects instead. An error row
  is ``{"id", "error": {"code", "message"}}``.

Log-probabilities are given for the tokens of text, not for those of reasoning and calls. ``finish_reason`` is
"length" if a text under a schema was cut before it was complete; so with "stop" the text is valid.
``cached_tokens`` counts prompt tokens that came from the prefix cache. It depends on what else ran: it and
the times are all that differs when a run is repeated.

If the model's harmony was malformed, ``diagnostics`` lists what was wrong, with the raw text and, if there
are several samples, the sample's number. A row without its reasoning has no raw text, which may be such.
"""

from __future__ import annotations

import dataclasses
import hashlib
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gptoss_jax.answers import Sample, kind_of, usage_of
from gptoss_jax.batch.rows import Envelope
from gptoss_jax.openai_api import ApiError, Prepared, chat_completion, error_object, response
from gptoss_jax.openai_api.objects import chat_choices, chat_usage

if TYPE_CHECKING:
    from harmony import HarmonyEncoding
    from harmony.json_types import Json, JsonObject


def answer_row(
    envelope: Envelope,
    prepared: Prepared,
    samples: Sequence[Sample],
    encoding: HarmonyEncoding,
    *,
    model: str,
    run: str,
    reasoning_field: str = "reasoning",
) -> JsonObject:
    """Returns the output row of an answered request.

    `run`: a hash of the run, which makes ids unique. `reasoning_field`: the field of chat messages that has
    the chain of thought, in OpenAI's form.
    """
    unique, created = _unique(run, envelope), int(time.time())
    shown = prepared.with_reasoning
    diagnostics: list[Json] = [
        {name: value for name, value in dataclasses.asdict(diagnostic).items() if name != "raw" or shown}
        | ({"sample": sample.index} if len(samples) > 1 else {})
        for sample in samples
        for diagnostic in sample.diagnostics
    ]
    extra: JsonObject = {"diagnostics": diagnostics} if diagnostics else {}
    if envelope.shape == "plain":
        choices = chat_choices(samples, encoding, unique=unique, with_reasoning=shown)
        plain = [_plain_sample(*pair, shown) for pair in zip(samples, choices, strict=True)]
        return {
            "id": envelope.id,
            **(plain[0] if len(plain) == 1 else {"samples": [*plain]}),
            "usage": chat_usage(usage_of(samples)),
            **extra,
            "error": None,
        }
    if prepared.form == "chat":
        names: Any = {"unique": unique, "model": model, "created": created}
        body = chat_completion(prepared, samples, encoding, **names, reasoning_field=reasoning_field)
    else:
        (sample,) = samples
        body = response(prepared, sample, encoding, unique=unique, model=model, created=created)
    return {
        "id": f"batch_req_{unique}",
        "custom_id": envelope.id,
        "response": {"status_code": 200, "request_id": f"req_{unique}", "body": body},
        **extra,
        "error": None,
    }


def error_row(envelope: Envelope, error: ApiError, *, run: str) -> JsonObject:
    """Returns the output row of a line that cannot be answered."""
    message = f"line {envelope.line}: {error}"
    if envelope.shape == "plain":
        return {"id": envelope.id, "error": {"code": error.code, "message": message}}
    unique = _unique(run, envelope)
    if envelope.shape == "unknown":
        error_field: JsonObject = {"code": error.code, "message": message}
        return {"id": f"batch_req_{unique}", "custom_id": None, "response": None, "error": error_field}
    body = error_object(error, message)
    return {
        "id": f"batch_req_{unique}",
        "custom_id": envelope.id,
        "response": {"status_code": error.status, "request_id": f"req_{unique}", "body": body},
        "error": None,
    }


def _plain_sample(sample: Sample, choice: Mapping[str, Any], with_reasoning: bool) -> JsonObject:
    """A sample in the plain form, made from the sample and its choice of a `chat.completion`."""
    message, logprobs = choice["message"], choice["logprobs"]
    return {
        "messages": [
            one.to_dict() for one in sample.messages if with_reasoning or kind_of(one) != "reasoning"
        ],
        "text": message.get("content") or "",
        "reasoning": message.get("reasoning") or "",
        "tool_calls": message.get("tool_calls") or [],
        "finish_reason": sample.finish_reason,
        **({} if logprobs is None else {"logprobs": logprobs}),
    }


def _unique(run: str, envelope: Envelope) -> str:
    return hashlib.blake2b(f"{run}\0{envelope.line}".encode(), digest_size=12).hexdigest()
