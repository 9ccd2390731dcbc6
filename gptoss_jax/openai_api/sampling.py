"""The fields of a request body that say how tokens are chosen → `SamplingParams`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from gptoss_jax.engine import SamplingParams
from gptoss_jax.engine.request import (
    MAX_BIASED_TOKENS,
    MAX_SAMPLES,
    MAX_STOP_STRINGS,
    MAX_STOP_TOKENS,
    MAX_TOP_LOGPROBS,
)
from gptoss_jax.openai_api.errors import ApiError, bad_value, json_kind, read_flag
from harmony.openai_formats import BodyForm

if TYPE_CHECKING:
    from harmony import HarmonyEncoding

WITH_LOGPROBS = "message.output_text.logprobs"
"""What stands in `include` of a Responses body that asks for log-probabilities."""

INCLUDABLE = (
    WITH_LOGPROBS,
    # The reasoning stands in the answer unencrypted, and there is nothing to include of what nobody runs.
    "reasoning.encrypted_content",
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "message.input_image.image_url",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
)
"""What OpenAI's API lists for `include`."""

_TOKEN_LIMITS = {
    "chat": ("max_completion_tokens", "max_tokens"),
    "responses": ("max_output_tokens",),
}
_MAX_BIAS = 100
_BANNED = -1e6
"""The bias of a word that is never drawn, far below all that logits and other biases come to."""

_NO_LIMIT = 2**31 - 1
_ID_DIGITS = 10


def sampling_from(
    body: Mapping[str, Any],
    form: BodyForm,
    defaults: SamplingParams,
    seed: int | None,
    encoding: HarmonyEncoding,
) -> SamplingParams:
    """The sampling that a body asks for, but for its grammar.

    `defaults` and `seed` are for what the body does not say.

    Raises:
        ApiError: a field is not what it must be.
    """
    given: dict[str, Any] = {
        "temperature": _number(body, "temperature", lambda x: 0 <= x <= 2, "a number from 0 to 2"),
        "top_p": _number(body, "top_p", lambda x: 0 < x <= 1, "a number above 0 and at most 1"),
        "top_k": _top_k(body),
        "min_p": _number(body, "min_p", lambda x: 0 <= x <= 1, "a number from 0 to 1"),
        # Far beyond these bounds a penalty or a bias leaves the range of the numbers it is added to.
        "repetition_penalty": _number(
            body, "repetition_penalty", lambda x: 0.1 <= x <= 10, "a number from 0.1 to 10"
        ),
        "presence_penalty": _penalty(body, "presence_penalty"),
        "frequency_penalty": _penalty(body, "frequency_penalty"),
        "logit_bias": _biases(body, encoding),
        "seed": _whole(body, "seed", lambda x: -(2**63) <= x < 2**63, "a whole number of 64 bits"),
        "n": _samples(body, form),
        "max_tokens": _token_limit(body, form),
        "min_tokens": _min_tokens(body),
        "stop": _stop(body),
        "stop_token_ids": _stop_token_ids(body),
        "logprobs": _response_logprobs(body) if form == "responses" else _chat_logprobs(body),
        "reasoning_budget": _reasoning_budget(body),
    }
    changes = {name: value for name, value in given.items() if value is not None}
    if asks_for_endless_reasoning(body):
        changes["reasoning_budget"] = None
    return dataclasses.replace(defaults, **{"seed": seed, **changes})


def _token_limit(body: Mapping[str, Any], form: BodyForm) -> int | None:
    limits = {
        name: limit
        for name in _TOKEN_LIMITS[form]
        if (limit := _whole(body, name, lambda x: 1 <= x < 2**31, "a whole number from 1")) is not None
    }
    if len(set(limits.values())) > 1:
        raise ApiError("invalid_request", f"{' and '.join(limits)} differ: give one", next(iter(limits)))
    return next(iter(limits.values()), None)


def _samples(body: Mapping[str, Any], form: BodyForm) -> int | None:
    if form == "responses":
        return _whole(body, "n", lambda x: x == 1, "1, as a response has one output")
    return _whole(body, "n", lambda x: 1 <= x <= MAX_SAMPLES, f"a whole number from 1 to {MAX_SAMPLES}")


def _stop(body: Mapping[str, Any]) -> tuple[str, ...] | None:
    value = body.get("stop")
    if value is None:
        return None
    strings = ([value] if value else []) if isinstance(value, str) else value
    expected = f"a string or an array of at most {MAX_STOP_STRINGS} strings, none of them empty"
    if not isinstance(strings, list) or len(strings) > MAX_STOP_STRINGS:
        raise bad_value("stop", value, expected)
    for index, string in enumerate(strings):
        if not isinstance(string, str) or not string:
            raise bad_value(f"stop[{index}]", string, "a string that is not empty")
        if not _is_unicode(string):
            raise ApiError("invalid_request", f"stop[{index}] has a lone surrogate", "stop")
    return tuple(strings)


def _stop_token_ids(body: Mapping[str, Any]) -> tuple[int, ...] | None:
    value = body.get("stop_token_ids")
    if value is None:
        return None
    expected = f"an array of at most {MAX_STOP_TOKENS} token ids"
    if not isinstance(value, list) or len(value) > MAX_STOP_TOKENS:
        raise bad_value("stop_token_ids", value, expected)
    for index, token in enumerate(value):
        if not isinstance(token, int) or isinstance(token, bool) or not 0 <= token < 2**31:
            raise bad_value(f"stop_token_ids[{index}]", token, "a token id")
    return tuple(value)


def _top_k(body: Mapping[str, Any]) -> int | None:
    top_k = _whole(body, "top_k", lambda x: -1 <= x < 2**31, "a whole number from 1, or 0 or -1 for all")
    return 0 if top_k == -1 else top_k


def _min_tokens(body: Mapping[str, Any]) -> int | None:
    """The tokens before which no stop token comes; with `ignore_eos` as many as there may be at all."""
    least = _whole(body, "min_tokens", lambda x: 0 <= x < 2**31, "a whole number from 0")
    if not read_flag(body.get("ignore_eos"), "ignore_eos"):
        return least
    if body.get("stop_token_ids"):
        message = "ignore_eos is true, and stop_token_ids end the completion: give one"
        raise ApiError("invalid_request", message, "ignore_eos")
    return _NO_LIMIT


def _biases(body: Mapping[str, Any], encoding: HarmonyEncoding) -> dict[int, float] | None:
    """The biases of `logit_bias` and those that keep the `bad_words` away."""
    biases, banned = _bias(body), _bad_words(body, encoding)
    if not banned:
        return biases
    both = {**(biases or {}), **dict.fromkeys(banned, _BANNED)}
    if len(both) > MAX_BIASED_TOKENS:
        message = f"bad_words and logit_bias name {len(both)} tokens: at most {MAX_BIASED_TOKENS} are allowed"
        raise ApiError("invalid_request", message, "bad_words")
    return both


def _bad_words(body: Mapping[str, Any], encoding: HarmonyEncoding) -> list[int]:
    """The tokens of words that are never drawn: each as it is and, where that is one token, after a space."""
    words = body.get("bad_words")
    if words is None:
        return []
    if not isinstance(words, list):
        raise bad_value("bad_words", words, "an array of words")
    banned = []
    for index, word in enumerate(words):
        if not isinstance(word, str) or not word.strip() or not _is_unicode(word):
            raise bad_value(f"bad_words[{index}]", word, "a word")
        word = word.strip()
        tokens, spaced = (encoding.encode_ordinary(text) for text in (word, f" {word}"))
        if len(tokens) > 1:
            message = f"bad_words[{index}] is {json_kind(word)}, which has {len(tokens)} tokens"
            raise ApiError(
                "unsupported_field", f"{message}: only words of one token can be kept away", "bad_words"
            )
        banned += tokens
        if len(spaced) == 1:
            banned += spaced
    return banned


def _bias(body: Mapping[str, Any]) -> dict[int, float] | None:
    value = body.get("logit_bias")
    if value is None:
        return None
    if not isinstance(value, dict):
        raise bad_value("logit_bias", value, "an object of token ids and numbers")
    if len(value) > MAX_BIASED_TOKENS:
        raise ApiError(
            "invalid_request",
            f"logit_bias has {len(value)} tokens: at most {MAX_BIASED_TOKENS} are allowed",
            "logit_bias",
        )
    biases: dict[int, float] = {}
    for key, bias in value.items():
        if not (key.isascii() and key.isdigit() and len(key) <= _ID_DIGITS):
            raise ApiError(
                "invalid_request",
                f"logit_bias has the key {json_kind(key)}: it must be a token id",
                "logit_bias",
            )
        if not _is_number(bias) or not -_MAX_BIAS <= bias <= _MAX_BIAS:
            raise bad_value(
                f"logit_bias[{json_kind(key)}]", bias, f"a number from {-_MAX_BIAS} to {_MAX_BIAS}"
            )
        biases[int(key)] = float(bias)
    return biases


def _chat_logprobs(body: Mapping[str, Any]) -> int | None:
    wanted, top = body.get("logprobs"), _top_logprobs(body)
    if wanted is not None and not isinstance(wanted, bool):
        raise bad_value("logprobs", wanted, "true or false")
    if top and not wanted:
        raise ApiError(
            "invalid_request", f"top_logprobs is {top}: it needs logprobs to be true", "top_logprobs"
        )
    return top or 0 if wanted else None


def _response_logprobs(body: Mapping[str, Any]) -> int | None:
    include, top = body.get("include"), _top_logprobs(body)
    if include is not None and not isinstance(include, list):
        raise bad_value("include", include, "an array")
    for index, name in enumerate(include or ()):
        if name not in INCLUDABLE:
            allowed = " or ".join(f'"{known}"' for known in INCLUDABLE)
            raise bad_value(f"include[{index}]", name, allowed)
    asked = body.get("logprobs")
    if asked is not None and asked is not False:  # 0 is neither
        message = f'logprobs is a field of /v1/chat/completions: here include "{WITH_LOGPROBS}"'
        raise ApiError("unsupported_field", message, "logprobs")
    wanted = WITH_LOGPROBS in (include or ())
    if top and not wanted:
        message = f'top_logprobs is {top}: it needs "{WITH_LOGPROBS}" in include'
        raise ApiError("invalid_request", message, "top_logprobs")
    return top or 0 if wanted else None


def _top_logprobs(body: Mapping[str, Any]) -> int | None:
    expected = f"a whole number from 0 to {MAX_TOP_LOGPROBS}"
    return _whole(body, "top_logprobs", lambda x: 0 <= x <= MAX_TOP_LOGPROBS, expected)


def asks_for_endless_reasoning(body: Mapping[str, Any]) -> bool:
    """Whether a body says that its reasoning has no limit, whatever the default."""
    return body.get("thinking_token_budget") == -1 and not (body.get("reasoning") or {}).get("max_tokens")


def _reasoning_budget(body: Mapping[str, Any]) -> int | None:
    reasoning = body.get("reasoning")
    if reasoning is None:
        reasoning = {}
    elif not isinstance(reasoning, dict):
        raise bad_value("reasoning", reasoning, "an object")
    if reasoning.get("enabled") is not None and not read_flag(reasoning["enabled"], "reasoning.enabled"):
        message = 'reasoning cannot be disabled: ask for the effort "low"'
        raise ApiError("unsupported_field", message, "reasoning.enabled")
    named = {"reasoning.max_tokens": reasoning.get("max_tokens")}
    budget = _whole(named, "reasoning.max_tokens", lambda x: 1 <= x < 2**31, "a whole number from 1")
    name, expected = "thinking_token_budget", "a whole number from 1, or -1 for no limit"
    other = _whole(body, name, lambda x: x == -1 or 1 <= x < 2**31, expected)
    if other in (None, -1) or other == budget:
        return budget
    if budget is not None:
        raise ApiError("invalid_request", f"reasoning.max_tokens and {name} differ: give one", name)
    return other


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
