"""The fields of a row that say how tokens are chosen → `SamplingParams`; a bad one is a `RowError`."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from typing import Any, Literal

from gptoss_jax.engine import SamplingParams
from gptoss_jax.engine.request import (
    MOST_BIASED_TOKENS,
    MOST_SAMPLES,
    MOST_STOP_STRINGS,
    MOST_STOP_TOKENS,
    MOST_TOP_LOGPROBS,
)

Form = Literal["chat", "responses", "plain"]
"""What a row is: a body of Chat Completions or of Responses, or the plain form."""

WITH_LOGPROBS = "message.output_text.logprobs"
"""What stands in `include` of a Responses body that asks for log-probabilities."""

_TOKEN_LIMITS = {
    "chat": ("max_completion_tokens", "max_tokens"),
    "responses": ("max_output_tokens",),
    "plain": ("max_tokens", "max_completion_tokens"),
}
_MOST_BIAS = 100
_ID_DIGITS = 10


class RowError(ValueError):
    """A line that cannot be answered: `code` for programs, the message for people.

    `parameter` is the field at fault, where there is one; `status` what an HTTP server would have said.
    """

    def __init__(self, code: str, message: str, parameter: str | None = None, *, status: int = 400):
        super().__init__(message)
        self.code = code
        self.parameter = parameter
        self.status = status


def sampling_from(body: Mapping[str, Any], form: Form, defaults: SamplingParams, seed: int) -> SamplingParams:
    """The sampling of a row, but for its grammar; `defaults` and `seed` are for what it does not say.

    Raises:
        RowError: a field is not what it must be.
    """
    given: dict[str, Any] = {
        "temperature": _number(body, "temperature", lambda x: 0 <= x <= 2, "a number from 0 to 2"),
        "top_p": _number(body, "top_p", lambda x: 0 < x <= 1, "a number above 0 and at most 1"),
        "top_k": _whole(body, "top_k", lambda x: 0 <= x < 2**31, "a whole number from 0 (off)"),
        "min_p": _number(body, "min_p", lambda x: 0 <= x <= 1, "a number from 0 to 1"),
        # Far beyond these bounds a penalty or a bias leaves the range of the numbers it is added to.
        "repetition_penalty": _number(
            body, "repetition_penalty", lambda x: 0.1 <= x <= 10, "a number from 0.1 to 10"
        ),
        "presence_penalty": _penalty(body, "presence_penalty"),
        "frequency_penalty": _penalty(body, "frequency_penalty"),
        "logit_bias": _bias(body),
        "seed": _whole(body, "seed", lambda x: -(2**63) <= x < 2**63, "a whole number of 64 bits"),
        "n": _samples(body, form),
        "max_tokens": _token_limit(body, form),
        "min_tokens": _whole(body, "min_tokens", lambda x: 0 <= x < 2**31, "a whole number from 0"),
        "stop": _stop(body),
        "stop_token_ids": _stop_token_ids(body),
        "logprobs": _response_logprobs(body) if form == "responses" else _chat_logprobs(body),
        "reasoning_budget": _reasoning_budget(body),
    }
    changes = {name: value for name, value in given.items() if value is not None}
    return dataclasses.replace(defaults, **{"seed": seed, **changes})


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


def bad_value(name: str, value: object, expected: str) -> RowError:
    """The error of a field whose value is none that is allowed."""
    return RowError("invalid_request", f"{name} must be {expected}, not {kind_of(value)}", name)


def _token_limit(body: Mapping[str, Any], form: Form) -> int | None:
    limits = {
        name: limit
        for name in _TOKEN_LIMITS[form]
        if (limit := _whole(body, name, lambda x: 1 <= x < 2**31, "a whole number from 1")) is not None
    }
    if len(set(limits.values())) > 1:
        raise RowError("invalid_request", f"{' and '.join(limits)} differ: give one", next(iter(limits)))
    return next(iter(limits.values()), None)


def _samples(body: Mapping[str, Any], form: Form) -> int | None:
    if form == "responses":
        return _whole(body, "n", lambda x: x == 1, "1, as a response has one output")
    return _whole(body, "n", lambda x: 1 <= x <= MOST_SAMPLES, f"a whole number from 1 to {MOST_SAMPLES}")


def _stop(body: Mapping[str, Any]) -> tuple[str, ...] | None:
    value = body.get("stop")
    if value is None:
        return None
    strings = ([value] if value else []) if isinstance(value, str) else value
    expected = f"a string or an array of at most {MOST_STOP_STRINGS} strings, none of them empty"
    if not isinstance(strings, list) or len(strings) > MOST_STOP_STRINGS:
        raise bad_value("stop", value, expected)
    for index, string in enumerate(strings):
        if not isinstance(string, str) or not string:
            raise bad_value(f"stop[{index}]", string, "a string that is not empty")
        if not _is_unicode(string):
            raise RowError("invalid_request", f"stop[{index}] has a lone surrogate", "stop")
    return tuple(strings)


def _stop_token_ids(body: Mapping[str, Any]) -> tuple[int, ...] | None:
    value = body.get("stop_token_ids")
    if value is None:
        return None
    expected = f"an array of at most {MOST_STOP_TOKENS} token ids"
    if not isinstance(value, list) or len(value) > MOST_STOP_TOKENS:
        raise bad_value("stop_token_ids", value, expected)
    for index, token in enumerate(value):
        if not isinstance(token, int) or isinstance(token, bool) or not 0 <= token < 2**31:
            raise bad_value(f"stop_token_ids[{index}]", token, "a token id")
    return tuple(value)


def _bias(body: Mapping[str, Any]) -> dict[int, float] | None:
    value = body.get("logit_bias")
    if value is None:
        return None
    if not isinstance(value, dict):
        raise bad_value("logit_bias", value, "an object of token ids and numbers")
    if len(value) > MOST_BIASED_TOKENS:
        raise RowError(
            "invalid_request",
            f"logit_bias has {len(value)} tokens: at most {MOST_BIASED_TOKENS} are allowed",
            "logit_bias",
        )
    biases: dict[int, float] = {}
    for key, bias in value.items():
        if not (key.isascii() and key.isdigit() and len(key) <= _ID_DIGITS):
            raise RowError(
                "invalid_request",
                f"logit_bias has the key {kind_of(key)}: it must be a token id",
                "logit_bias",
            )
        if not _is_number(bias) or not -_MOST_BIAS <= bias <= _MOST_BIAS:
            raise bad_value(
                f"logit_bias[{kind_of(key)}]", bias, f"a number from {-_MOST_BIAS} to {_MOST_BIAS}"
            )
        biases[int(key)] = float(bias)
    return biases


def _chat_logprobs(body: Mapping[str, Any]) -> int | None:
    wanted, top = body.get("logprobs"), _top_logprobs(body)
    if wanted is not None and not isinstance(wanted, bool):
        raise bad_value("logprobs", wanted, "true or false")
    if top and not wanted:
        raise RowError(
            "invalid_request", f"top_logprobs is {top}: it needs logprobs to be true", "top_logprobs"
        )
    return top or 0 if wanted else None


def _response_logprobs(body: Mapping[str, Any]) -> int | None:
    include, top = body.get("include"), _top_logprobs(body)
    if include is not None and not isinstance(include, list):
        raise bad_value("include", include, "an array")
    if body.get("logprobs") not in (None, False):
        message = f'logprobs is a field of /v1/chat/completions: here include "{WITH_LOGPROBS}"'
        raise RowError("unsupported_field", message, "logprobs")
    wanted = WITH_LOGPROBS in (include or ())
    if top and not wanted:
        message = f'top_logprobs is {top}: it needs "{WITH_LOGPROBS}" in include'
        raise RowError("invalid_request", message, "top_logprobs")
    return top or 0 if wanted else None


def _top_logprobs(body: Mapping[str, Any]) -> int | None:
    expected = f"a whole number from 0 to {MOST_TOP_LOGPROBS}"
    return _whole(body, "top_logprobs", lambda x: 0 <= x <= MOST_TOP_LOGPROBS, expected)


def _reasoning_budget(body: Mapping[str, Any]) -> int | None:
    reasoning = body.get("reasoning")
    if reasoning is None:
        return None
    if not isinstance(reasoning, dict):
        raise bad_value("reasoning", reasoning, "an object")
    if reasoning.get("enabled") is False:
        message = 'reasoning cannot be disabled: ask for the effort "low"'
        raise RowError("unsupported_field", message, "reasoning.enabled")
    named = {"reasoning.max_tokens": reasoning.get("max_tokens")}
    return _whole(named, "reasoning.max_tokens", lambda x: 1 <= x < 2**31, "a whole number from 1")


def _penalty(body: Mapping[str, Any], name: str) -> float | None:
    return _number(body, name, lambda x: -2 <= x <= 2, "a number from -2 to 2")


def _number(
    body: Mapping[str, Any], name: str, allowed: Callable[[float], bool], expected: str
) -> float | None:
    value = body.get(name)
    if value is None:
        return None
    if not _is_number(value) or not allowed(value):
        raise bad_value(name, value, expected)
    return float(value)


def _whole(body: Mapping[str, Any], name: str, allowed: Callable[[int], bool], expected: str) -> int | None:
    value = body.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not allowed(value):
        raise bad_value(name, value, expected)
    return value


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
