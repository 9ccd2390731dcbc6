"""The generation arguments of a task → how an answer is sampled, and where it ends."""

from __future__ import annotations

import dataclasses
import hashlib
import re
from collections.abc import Mapping
from typing import Any

from gptoss_jax.engine.grammar import Grammar, HeaderGuard
from gptoss_jax.engine.request import (
    MAX_STOP_CHARACTERS,
    MAX_STOP_STRINGS,
    ChannelLimit,
    RequestError,
    SamplingParams,
)
from gptoss_jax.engine.values import integer_from, refuse
from gptoss_jax.lm_eval.arguments import Arguments
from harmony.errors import shown

_LIMITS = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")
"""The names of a limit, in the order in which lm_eval takes the first that is given."""

_NUMBERS = ("top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty")

_HEADER_TOKENS = 16
"""Room for the tokens that lead from reasoning to the answer, and for the one that ends it."""

_ANSWER_SHARE = 4
"""Reasoning leaves the answer at most one part in this many of the tokens that fit."""

_HEADERS = HeaderGuard(channels=("analysis", "final"))
"""There are no tools, so no preambles to their calls: what is no reasoning is the answer."""


@dataclasses.dataclass(frozen=True)
class Asked:
    """What the generation arguments of a document ask for.

    sampling: temperature and the like.
    max_gen_toks: the most tokens of the answer; None for as many as fit.
    until: the strings before which the answer ends, none of them empty.
    unknown: the names of arguments that have no effect.
    """

    sampling: SamplingParams
    max_gen_toks: int | None
    until: tuple[str, ...]
    unknown: tuple[str, ...]


def asked_by(given: Mapping[str, Any], max_gen_toks: int | None = None) -> Asked:
    """Reads generation arguments by lm_eval's rules.

    Without `do_sample` and `temperature`, and with `do_sample: false`, the likeliest token is taken. With
    `do_sample: true` alone the temperature is 1. `max_gen_toks` is the limit for tasks that give none.

    Raises:
        RequestError: a value is not allowed.
    """
    given = {name: value for name, value in given.items() if value is not None}
    limits = [_integer(name, given.pop(name)) for name in _LIMITS if name in given]
    if limits:
        max_gen_toks = integer_from("max_gen_toks", limits[0], 1)
    until = _strings(given.pop("until", ()))
    do_sample = given.pop("do_sample", None)
    if do_sample not in (None, True, False):
        refuse("do_sample", do_sample, "true or false")
    temperature = _number("temperature", given.pop("temperature", 1.0 if do_sample else 0.0))
    fields: dict[str, Any] = {"temperature": 0.0 if do_sample is False else temperature}
    for name in _NUMBERS:
        if name in given:
            fields[name] = _number(name, given.pop(name))
    if "top_k" in given:
        fields["top_k"] = max(0, _integer("top_k", given.pop("top_k")))  # -1 is "all" elsewhere
    return Asked(SamplingParams(**fields), max_gen_toks, until, tuple(given))


def sampling_for(
    asked: Asked, arguments: Arguments, *, seed: int, room: int, prefix: str = "", prefix_tokens: int = 0
) -> SamplingParams:
    """The sampling of one request.

    Args:
        asked: what the document's generation arguments ask for.
        arguments: those of the model.
        seed: as `seed_of` gives it.
        room: the tokens that fit behind the prompt.
        prefix: what the answer begins with. The model reasons first.
        prefix_tokens: its length in tokens, which `max_gen_toks` does not count.
    """
    if arguments.max_tokens is not None:
        room = min(room, arguments.max_tokens)
    limit = None if asked.max_gen_toks is None else asked.max_gen_toks + prefix_tokens
    limits = {} if limit is None else {"final": ChannelLimit(max=limit)}
    budget = arguments.reasoning_budget
    if budget is None:
        quarter = room // _ANSWER_SHARE
        budget = max(1, room - _HEADER_TOKENS - (quarter if limit is None else min(limit, quarter)))
    ends = [string for string in asked.until if _ends_generation(string, prefix)]
    return dataclasses.replace(
        asked.sampling,
        seed=seed,
        max_tokens=arguments.max_tokens,
        channel_limits=limits,
        reasoning_budget=budget or None,
        stop=ends[:MAX_STOP_STRINGS],
        grammar=Grammar.regex(f"{_META.sub(_ESCAPED, prefix)}(?s:.*)") if prefix else None,
        header_guard=None if prefix else _HEADERS,
    )


def answer_of(text: str, asked: Asked, prefix: str = "") -> str:
    """The answer in the text of the `final` message: behind the prefix, before the first stop string."""
    text = text[len(prefix) :]  # a text that was cut within the prefix holds no answer
    ends = [text.find(string) for string in asked.until]
    return text[: min((end for end in ends if end >= 0), default=len(text))]


def seed_of(seed: int, context: str, repeat: int) -> int:
    """The seed of a sample: it depends on the model's seed, the prompt, and which of its repeats it is.

    So a document draws the same whatever else is run with it.
    """
    digest = hashlib.blake2b(f"{seed}\0{repeat}\0{context}".encode("utf-8", "surrogatepass"), digest_size=8)
    return int.from_bytes(digest.digest(), "little")


_META = re.compile(r"[\\.+*?()|\[\]{}^$#&~-]")
_ESCAPED = r"\\\g<0>"


def _ends_generation(string: str, prefix: str) -> bool:
    """Whether the engine may end a completion at a stop string.

    It searches the whole `final` message. A string that the prefix holds, or that can begin in it, is looked
    for in the answer afterwards.
    """
    begins = any(prefix.endswith(string[:length]) for length in range(1, len(string)))
    return len(string) <= MAX_STOP_CHARACTERS and string not in prefix and not begins


def _strings(value: object) -> tuple[str, ...]:
    strings = [value] if isinstance(value, str) else value
    if not isinstance(strings, list | tuple) or not all(isinstance(string, str) for string in strings):
        refuse("until", value, "a string or a list of strings")
    return tuple(dict.fromkeys(string for string in strings if string))


def _number(name: str, value: object) -> float:
    """A number, also one that YAML or the command line left as text."""
    try:
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise RequestError(f"{name} is {shown(value)}: it must be a number") from None


def _integer(name: str, value: object) -> int:
    number = _number(name, value)
    if not number.is_integer():
        raise RequestError(f"{name} is {shown(value)}: it must be a whole number")
    return int(number)
