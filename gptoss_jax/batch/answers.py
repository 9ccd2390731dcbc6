"""The completions of a row → the line that goes into the output file, in the form its request came in.

Every row has ``line`` (added when it is written), the input line's number from 1, and ``error``.

- OpenAI's form: ``{"id", "custom_id", "response": {"status_code", "request_id", "body"}, "error": null}``,
  the body a ``chat.completion`` or ``response`` object. A refused request has the status 400 and the body
  ``{"error": {"message", "type", "param", "code"}}``; a line that is no request at all has
  ``"response": null`` and ``"error": {"code", "message"}``.
- The plain form: ``{"id", "messages", "text", "reasoning", "tool_calls", "finish_reason", "usage",
  "error": null}``; ``messages`` are harmony messages with their channels and recipients, ``text``,
  ``reasoning`` and ``tool_calls`` the same content as a chat message would carry it; ``logprobs`` stands
  beside them if asked for. A row that asked for several samples has a list ``samples`` of such objects in
  their place. An error row is ``{"id", "error": {"code", "message"}}``.

Log-probabilities are those of the tokens of text, not of reasoning and calls. ``finish_reason`` is "length"
wherever a text that must follow a schema was cut before it was whole, so that "stop" promises a valid one.
``cached_tokens`` counts prompt tokens that earlier requests had left in the cache: it depends on what else
ran, and is the only part of a row that differs when a run is repeated, apart from the times.

Where the model's harmony was malformed, ``diagnostics`` lists what was wrong and the raw text, and with
several samples in which one.
"""

from __future__ import annotations

import dataclasses
import hashlib
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gptoss_jax.batch.fields import RowError
from gptoss_jax.batch.logprobs import Entries, text_logprobs
from gptoss_jax.batch.rows import Envelope, Prepared
from gptoss_jax.llm.answer import Answer, read_answer
from harmony.openai_formats import chat_message_from, responses_output_from

if TYPE_CHECKING:
    from gptoss_jax.engine import Completion
    from harmony import HarmonyEncoding


@dataclasses.dataclass(frozen=True)
class Sample:
    """One completion of a row, parsed; `logprobs` has the entries of each message of text, if asked for."""

    answer: Answer
    logprobs: list[Entries] | None = None


@dataclasses.dataclass(frozen=True)
class Usage:
    """The tokens of a row: its prompt counted once, its samples together."""

    prompt: int
    cached: int
    generated: int
    reasoning: int


def read_sample(completion: Completion, encoding: HarmonyEncoding) -> Sample:
    """Parses a completion; malformed harmony is recovered and never raises."""
    answer = read_answer(completion, encoding)
    if completion.grammar_complete is False:
        answer = dataclasses.replace(answer, finish_reason="length")
    if completion.logprobs is None:
        return Sample(answer)
    return Sample(answer, text_logprobs(completion, answer.messages, encoding))


def usage_of(samples: Sequence[Sample]) -> Usage:
    """What the samples of a row come to. Cached is what none of them had to compute."""
    answers = [sample.answer for sample in samples]
    return Usage(
        prompt=answers[0].prompt_tokens,
        cached=min(answer.cached_tokens for answer in answers),
        generated=sum(answer.generated_tokens for answer in answers),
        reasoning=sum(answer.reasoning_tokens for answer in answers),
    )


def answer_row(prepared: Prepared, samples: Sequence[Sample], *, model: str, run: str) -> dict[str, Any]:
    """The output row of an answered request; `run` is a hash of what the run is, so that ids are unique."""
    unique = _unique(run, prepared.envelope)
    diagnostics = [
        dataclasses.asdict(diagnostic) | ({"sample": index} if len(samples) > 1 else {})
        for index, sample in enumerate(samples)
        for diagnostic in sample.answer.diagnostics
    ]
    extra = {"diagnostics": diagnostics} if diagnostics else {}
    if prepared.form == "plain":
        said = [_plain_sample(prepared, index, sample, unique) for index, sample in enumerate(samples)]
        return {
            "id": prepared.envelope.id,
            **(said[0] if len(said) == 1 else {"samples": said}),
            "usage": _chat_usage(usage_of(samples)),
            **extra,
            "error": None,
        }
    body = _chat_body if prepared.form == "chat" else _responses_body
    return {
        "id": f"batch_req_{unique}",
        "custom_id": prepared.envelope.id,
        "response": {
            "status_code": 200,
            "request_id": f"req_{unique}",
            "body": body(prepared, samples, model, unique),
        },
        **extra,
        "error": None,
    }


def error_row(envelope: Envelope, error: RowError, *, run: str) -> dict[str, Any]:
    """The output row of a line that cannot be answered."""
    message = f"line {envelope.line}: {error}"
    if envelope.shape == "plain":
        return {"id": envelope.id, "error": {"code": error.code, "message": message}}
    unique = _unique(run, envelope)
    if envelope.shape == "unknown":
        error_field = {"code": error.code, "message": message}
        return {"id": f"batch_req_{unique}", "custom_id": None, "response": None, "error": error_field}
    kind = "invalid_request_error" if error.status < 500 else "server_error"
    body = {"error": {"message": message, "type": kind, "param": error.parameter, "code": error.code}}
    return {
        "id": f"batch_req_{unique}",
        "custom_id": envelope.id,
        "response": {"status_code": error.status, "request_id": f"req_{unique}", "body": body},
        "error": None,
    }


def _plain_sample(prepared: Prepared, index: int, sample: Sample, unique: str) -> dict[str, Any]:
    message = _chat_message(prepared, index, sample, unique)
    logprobs = _chat_logprobs(sample)
    return {
        "messages": [message.to_dict() for message in sample.answer.messages],
        "text": message.get("content") or "",
        "reasoning": message.get("reasoning") or "",
        "tool_calls": message.get("tool_calls") or [],
        "finish_reason": sample.answer.finish_reason,
        **({} if logprobs is None else {"logprobs": logprobs}),
    }


def _chat_body(prepared: Prepared, samples: Sequence[Sample], model: str, unique: str) -> dict[str, Any]:
    return {
        "id": f"chatcmpl-{unique}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": model,
        "choices": [_choice(prepared, index, sample, unique) for index, sample in enumerate(samples)],
        "usage": _chat_usage(usage_of(samples)),
    }


def _choice(prepared: Prepared, index: int, sample: Sample, unique: str) -> dict[str, Any]:
    message = _chat_message(prepared, index, sample, unique)
    if (prepared.body.get("reasoning") or {}).get("exclude") is True:
        message.pop("reasoning", None)
    return {
        "index": index,
        "message": message,
        "logprobs": _chat_logprobs(sample),
        "finish_reason": sample.answer.finish_reason,
    }


def _chat_logprobs(sample: Sample) -> dict[str, Any] | None:
    if sample.logprobs is None:
        return None
    return {"content": [entry for entries in sample.logprobs for entry in entries], "refusal": None}


def _responses_body(prepared: Prepared, samples: Sequence[Sample], model: str, unique: str) -> dict[str, Any]:
    (sample,) = samples
    cut = sample.answer.finish_reason == "length"
    body, sampling, usage = prepared.body, prepared.request.sampling, usage_of(samples)
    return {
        "id": f"resp_{unique}",
        "object": "response",
        "created_at": int(time.time()),
        "status": "incomplete" if cut else "completed",
        "error": None,
        "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
        "instructions": body.get("instructions"),
        "max_output_tokens": body.get("max_output_tokens"),
        "metadata": body.get("metadata") or {},
        "model": model,
        "output": _output(sample, unique, complete=not cut),
        "parallel_tool_calls": False,
        "temperature": sampling.temperature,
        "tool_choice": body.get("tool_choice") or "auto",
        "tools": body.get("tools") or [],
        "top_logprobs": sampling.logprobs or 0,
        "top_p": sampling.top_p,
        "usage": {
            "input_tokens": usage.prompt,
            "input_tokens_details": {"cached_tokens": usage.cached, "cache_write_tokens": 0},
            "output_tokens": usage.generated,
            "output_tokens_details": {"reasoning_tokens": usage.reasoning},
            "total_tokens": usage.prompt + usage.generated,
        },
    }


def _output(sample: Sample, unique: str, *, complete: bool) -> list[dict[str, Any]]:
    items = responses_output_from(
        sample.answer.messages,
        item_id=lambda prefix, index: f"{prefix}_{unique}{index:02d}",
        complete=complete,
    )
    texts = [item["content"][0] for item in items if item["type"] == "message"]
    for index, entries in enumerate(sample.logprobs or ()):
        if texts:  # malformed headers may make fewer messages than were begun
            texts[min(index, len(texts) - 1)]["logprobs"] += entries
    return items


def _chat_message(prepared: Prepared, index: int, sample: Sample, unique: str) -> dict[str, Any]:
    # Calls of several samples in one row must not share their ids.
    of_sample = unique if prepared.request.sampling.n == 1 else f"{unique}{index:03d}"
    return chat_message_from(sample.answer.messages, call_id=lambda call: f"call_{of_sample}{call:02d}")


def _chat_usage(usage: Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.prompt,
        "completion_tokens": usage.generated,
        "total_tokens": usage.prompt + usage.generated,
        "prompt_tokens_details": {"cached_tokens": usage.cached},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning},
    }


def _unique(run: str, envelope: Envelope) -> str:
    return hashlib.blake2b(f"{run}\0{envelope.line}".encode(), digest_size=12).hexdigest()
