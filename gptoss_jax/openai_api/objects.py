"""Samples → the `chat.completion` that answers a request of Chat Completions.

`unique` is what tells an answer from all others; the ids of the object and of its parts are made of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gptoss_jax.answers import Sample, Usage, usage_of
from gptoss_jax.openai_api.built_in import turn_with_calls
from gptoss_jax.openai_api.logprobs import logprob_entries
from harmony.openai_formats import chat_message_from

if TYPE_CHECKING:
    from gptoss_jax.openai_api.request import Prepared
    from harmony import HarmonyEncoding


def chat_completion(
    prepared: Prepared,
    samples: Sequence[Sample],
    encoding: HarmonyEncoding,
    *,
    unique: str,
    model: str,
    created: int,
    reasoning_field: str = "reasoning",
) -> dict[str, Any]:
    """The `chat.completion` of a request's samples.

    `created` is a Unix time in seconds. `reasoning_field` is the field of messages that has the chain of
    thought.
    """
    choices = chat_choices(samples, encoding, unique=unique, with_reasoning=prepared.with_reasoning)
    for choice in choices:
        message = choice["message"]
        if reasoning_field != "reasoning" and "reasoning" in message:
            message[reasoning_field] = message.pop("reasoning")
    return {
        "id": completion_id(unique),
        "object": "chat.completion",
        "created": created,
        "model": model,
        "choices": choices,
        "usage": chat_usage(usage_of(samples)),
    }


def completion_id(unique: str) -> str:
    """The id of a `chat.completion` and of its chunks."""
    return f"chatcmpl-{unique}"


def chat_call_id(unique: str, sample: int, samples: int, call: int) -> str:
    """The id of a call: the `call`-th of one of so many samples, both counted from 0."""
    return f"call_{unique}{sample:03d}{call:02d}" if samples > 1 else f"call_{unique}{call:02d}"


def chat_choices(
    samples: Sequence[Sample], encoding: HarmonyEncoding, *, unique: str, with_reasoning: bool = True
) -> list[dict[str, Any]]:
    """The `choices` of a `chat.completion`. The calls of all of them have ids of their own."""
    return [_choice(sample, encoding, unique, len(samples), with_reasoning) for sample in samples]


def _choice(
    sample: Sample, encoding: HarmonyEncoding, unique: str, samples: int, with_reasoning: bool
) -> dict[str, Any]:
    message = chat_message_from(
        sample.told_messages, call_id=lambda call: chat_call_id(unique, sample.index, samples, call)
    )
    if with_reasoning:
        message |= turn_with_calls(sample)
    else:
        message.pop("reasoning", None)
    logprobs = None
    if sample.text_tokens is not None:
        shown = (scored for tokens in sample.text_tokens for scored in tokens)
        logprobs = {"content": logprob_entries(shown, encoding), "refusal": None}
    return {
        "index": sample.index,
        "message": message,
        "logprobs": logprobs,
        "finish_reason": sample.finish_reason,
    }


def chat_usage(usage: Usage) -> dict[str, Any]:
    """The `usage` of a `chat.completion`."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.generated_tokens,
        "total_tokens": usage.total_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
    }
