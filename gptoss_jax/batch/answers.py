"""A completion → the row that goes into the output file, in the form its request came in.

Every row has ``line`` (added when it is written), the input line's number from 1, and ``error``.

- OpenAI's form: ``{"id", "custom_id", "response": {"status_code", "request_id", "body"}, "error": null}``,
  the body a ``chat.completion`` or ``response`` object. A refused request has the status 400 and the body
  ``{"error": {"message", "type", "param", "code"}}``; a line that is no request at all has
  ``"response": null`` and ``"error": {"code", "message"}``.
- The plain form: ``{"id", "messages", "text", "reasoning", "tool_calls", "finish_reason", "usage",
  "error": null}``; ``messages`` are harmony messages with their channels and recipients, ``text``,
  ``reasoning`` and ``tool_calls`` the same content as a chat message would carry it. An error row is
  ``{"id", "error": {"code", "message"}}``.

Where the model's harmony was malformed, ``diagnostics`` lists what was wrong and the raw text.
"""

from __future__ import annotations

import dataclasses
import hashlib
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from gptoss_jax.batch.rows import Envelope, Prepared, RowError
from harmony import Role, parse_completion
from harmony.openai_formats import called_function, chat_message_from, responses_output_from

if TYPE_CHECKING:
    from gptoss_jax.engine import Completion
    from harmony import Diagnostic, HarmonyEncoding, Message


@dataclasses.dataclass(frozen=True)
class Answer:
    """A completion, parsed.

    `finish_reason` is "stop", "length" or "tool_calls"; `diagnostics` is what was wrong with the model's
    harmony (being cut short is not); `reasoning_tokens` counts the content tokens of analysis messages.
    """

    messages: list[Message]
    diagnostics: list[Diagnostic]
    finish_reason: str
    prompt_tokens: int
    generated_tokens: int
    reasoning_tokens: int


def read_answer(completion: Completion, encoding: HarmonyEncoding) -> Answer:
    """Parses a completion; malformed harmony is recovered and never raises."""
    parsed = parse_completion(encoding, completion.tokens, role=Role.ASSISTANT)
    finish_reason: str = completion.finish_reason
    if finish_reason == "stop" and any(map(called_function, parsed.messages)):
        finish_reason = "tool_calls"
    cut = finish_reason == "length"
    return Answer(
        messages=parsed.messages,
        diagnostics=[found for found in parsed.diagnostics if not (cut and found.what == "truncated")],
        finish_reason=finish_reason,
        prompt_tokens=completion.prompt_tokens,
        generated_tokens=len(completion.tokens),
        reasoning_tokens=count_reasoning(completion.tokens, encoding),
    )


def count_reasoning(tokens: Iterable[int], encoding: HarmonyEncoding) -> int:
    """How many of a completion's tokens are the content of messages on the analysis channel."""
    boundaries = {encoding.start, *encoding.stop_tokens()}
    count, reasoning, in_content = 0, False, False
    name: bytes | None = None
    for token in tokens:
        if token in boundaries:
            reasoning, in_content, name = False, False, None
        elif in_content:
            count += reasoning
        elif token == encoding.channel:
            name = b""
        elif token == encoding.message:
            reasoning = name is not None and name.split()[:1] == [b"analysis"]
            in_content = True
        elif name is not None:
            name += encoding.token_bytes(token) or b""
    return count


def answer_row(prepared: Prepared, answer: Answer, *, model: str, run: str) -> dict[str, Any]:
    """The output row of an answered request; `run` is a hash of what the run is, so that ids are unique."""
    unique = _unique(run, prepared.envelope)
    diagnostics = [dataclasses.asdict(diagnostic) for diagnostic in answer.diagnostics]
    extra = {"diagnostics": diagnostics} if diagnostics else {}
    if prepared.form == "plain":
        message = _chat_message(answer, unique)
        return {
            "id": prepared.envelope.id,
            "messages": [message.to_dict() for message in answer.messages],
            "text": message.get("content") or "",
            "reasoning": message.get("reasoning") or "",
            "tool_calls": message.get("tool_calls") or [],
            "finish_reason": answer.finish_reason,
            "usage": _chat_usage(answer),
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
            "body": body(prepared, answer, model, unique),
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


def _chat_body(prepared: Prepared, answer: Answer, model: str, unique: str) -> dict[str, Any]:
    message = _chat_message(answer, unique)
    if (prepared.body.get("reasoning") or {}).get("exclude") is True:
        message.pop("reasoning", None)
    return {
        "id": f"chatcmpl-{unique}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": model,
        "choices": [
            {"index": 0, "message": message, "logprobs": None, "finish_reason": answer.finish_reason}
        ],
        "usage": _chat_usage(answer),
    }


def _responses_body(prepared: Prepared, answer: Answer, model: str, unique: str) -> dict[str, Any]:
    cut = answer.finish_reason == "length"
    body, sampling = prepared.body, prepared.request.sampling
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
        "output": responses_output_from(
            answer.messages,
            item_id=lambda prefix, index: f"{prefix}_{unique}{index:02d}",
            complete=not cut,
        ),
        "parallel_tool_calls": False,
        "temperature": sampling.temperature,
        "tool_choice": body.get("tool_choice") or "auto",
        "tools": body.get("tools") or [],
        "top_p": sampling.top_p,
        "usage": {
            "input_tokens": answer.prompt_tokens,
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": answer.generated_tokens,
            "output_tokens_details": {"reasoning_tokens": answer.reasoning_tokens},
            "total_tokens": answer.prompt_tokens + answer.generated_tokens,
        },
    }


def _chat_message(answer: Answer, unique: str) -> dict[str, Any]:
    return chat_message_from(answer.messages, call_id=lambda index: f"call_{unique}{index:02d}")


def _chat_usage(answer: Answer) -> dict[str, Any]:
    return {
        "prompt_tokens": answer.prompt_tokens,
        "completion_tokens": answer.generated_tokens,
        "total_tokens": answer.prompt_tokens + answer.generated_tokens,
        "completion_tokens_details": {"reasoning_tokens": answer.reasoning_tokens},
    }


def _unique(run: str, envelope: Envelope) -> str:
    return hashlib.blake2b(f"{run}\0{envelope.line}".encode(), digest_size=12).hexdigest()
