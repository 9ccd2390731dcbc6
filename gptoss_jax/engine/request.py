"""What a caller asks of the engine, and what comes back."""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from gptoss_jax.engine.grammar import Grammar

FinishReason = Literal["stop", "length", "cancelled"]

MOST_TOP_LOGPROBS = 20
MOST_BIASED_TOKENS = 300
MOST_STOP_TOKENS = 16
MOST_STOP_STRINGS = 16
MOST_SAMPLES = 128


class RequestError(ValueError):
    """A request that cannot be run; the message names the field, its value and what is allowed."""


@dataclasses.dataclass(frozen=True)
class ChannelLimit:
    """How many content tokens the messages of one channel may have, all of them together.

    `least`: no message of the channel ends before it. `most`: at that number the channel is closed: analysis
    and commentary give way to `final`; a final message, or a tool call's arguments, end with the reason
    "length".
    """

    least: int = 0
    most: int | None = None

    def __post_init__(self) -> None:
        _check(self, "least", _is_integer(self.least) and self.least >= 0, "a whole number from 0")
        if self.most is not None:
            valid = _is_integer(self.most) and self.most >= max(1, self.least)
            _check(self, "most", valid, f"a whole number from {max(1, self.least)}")


@dataclasses.dataclass(frozen=True)
class SamplingParams:
    """How tokens are chosen. The defaults sample from the model's own distribution, as gpt-oss recommends.

    temperature: 0 takes the likeliest token every time.
    top_p: keep the fewest tokens whose probabilities reach it.
    top_k: keep that many; 0 keeps all.
    min_p: keep tokens at least that likely in comparison with the likeliest.
    repetition_penalty: divides the positive logits, and multiplies the negative ones, of tokens that stand in
        the prompt or the completion.
    presence_penalty, frequency_penalty: subtracted from the logits of the completion's tokens, once and for
        each time.
    logit_bias: token id → number added to its logit; at most 300.
    seed: any integer; None derives one from the request's id.
    n: completions of the same prompt, each with random numbers of its own.
    max_tokens: the most tokens to generate, None for as many as fit.
    min_tokens: no stop token before that many.
    stop: at most 16 strings that end the completion where one appears in a message's content.
    stop_token_ids: at most 16 token ids that end it, besides the model's own.
    logprobs: None for none, else how many of the likeliest tokens, up to 20, are listed with their
        log-probabilities beside that of the chosen token. They are the model's own: of its logits as they
        are, before temperature, penalties, bias and grammar.
    reasoning_budget: tokens of analysis after which the model is moved to `final`.
    channel_limits: channel name → least and most content tokens; `reasoning_budget` is the short form of
        analysis' most.
    grammar: what `final` content, or a tool's arguments, must be.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = dataclasses.field(default_factory=dict)
    seed: int | None = None
    n: int = 1
    max_tokens: int | None = None
    min_tokens: int = 0
    stop: Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    logprobs: int | None = None
    reasoning_budget: int | None = None
    channel_limits: Mapping[str, ChannelLimit] = dataclasses.field(default_factory=dict)
    grammar: Grammar | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "stop", (self.stop,) if isinstance(self.stop, str) else tuple(self.stop))
        object.__setattr__(self, "stop_token_ids", tuple(self.stop_token_ids))
        self._check("temperature", _is_number(self.temperature) and self.temperature >= 0, "a number from 0")
        self._check("top_p", _is_number(self.top_p) and 0 < self.top_p <= 1, "a number above 0, at most 1")
        self._check("top_k", _is_integer(self.top_k) and 0 <= self.top_k < 2**31, "a whole number from 0")
        self._check("min_p", _is_number(self.min_p) and 0 <= self.min_p <= 1, "a number from 0 to 1")
        for name in ("presence_penalty", "frequency_penalty"):
            self._check(name, _is_number(getattr(self, name)), "a finite number")
        valid = _is_number(self.repetition_penalty) and self.repetition_penalty > 0
        self._check("repetition_penalty", valid, "a number above 0")
        self._check_bias()
        self._check("seed", self.seed is None or _is_integer(self.seed), "a whole number")
        valid = _is_integer(self.n) and 1 <= self.n <= MOST_SAMPLES
        self._check("n", valid, f"a whole number from 1 to {MOST_SAMPLES}")
        if self.max_tokens is not None:
            valid = _is_integer(self.max_tokens) and self.max_tokens >= 1
            self._check("max_tokens", valid, "a whole number from 1")
        self._check(
            "min_tokens", _is_integer(self.min_tokens) and self.min_tokens >= 0, "a whole number from 0"
        )
        valid = len(self.stop) <= MOST_STOP_STRINGS and all(isinstance(s, str) and s for s in self.stop)
        self._check("stop", valid, f"at most {MOST_STOP_STRINGS} strings, none of them empty")
        valid = len(self.stop_token_ids) <= MOST_STOP_TOKENS and all(map(_is_integer, self.stop_token_ids))
        self._check("stop_token_ids", valid, f"at most {MOST_STOP_TOKENS} token ids")
        if self.logprobs is not None:
            valid = _is_integer(self.logprobs) and 0 <= self.logprobs <= MOST_TOP_LOGPROBS
            self._check("logprobs", valid, f"a whole number from 0 to {MOST_TOP_LOGPROBS}")
        if self.reasoning_budget is not None:
            valid = _is_integer(self.reasoning_budget) and self.reasoning_budget >= 1
            self._check("reasoning_budget", valid, "a whole number from 1")

    def _check_bias(self) -> None:
        valid = len(self.logit_bias) <= MOST_BIASED_TOKENS and all(
            _is_integer(token) and _is_number(bias) for token, bias in self.logit_bias.items()
        )
        self._check("logit_bias", valid, f"at most {MOST_BIASED_TOKENS} token ids with a finite number each")

    def _check(self, name: str, valid: bool, allowed: str) -> None:
        _check(self, name, valid, allowed)


def _check(of: Any, name: str, valid: bool, allowed: str) -> None:
    if not valid:
        raise RequestError(f"{name} is {getattr(of, name)!r}: it must be {allowed}")


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


@dataclasses.dataclass(frozen=True)
class Request:
    """A prompt of token ids to be continued. `id` names it in its completion and seeds its randomness."""

    id: str
    prompt: list[int]
    sampling: SamplingParams = dataclasses.field(default_factory=SamplingParams)

    def seed_words(self, sample: int = 0) -> tuple[int, int]:
        """The two 32-bit words that start the random stream of one of the request's samples."""
        seed = _hash64(self.id) if self.sampling.seed is None else self.sampling.seed
        if sample:
            seed = _hash64(f"{seed}\0{sample}")
        return (seed >> 32) & 0xFFFFFFFF, seed & 0xFFFFFFFF


def _hash64(text: str) -> int:
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little")


@dataclasses.dataclass(frozen=True)
class TokenLogprobs:
    """The natural logarithms of the probabilities at one place: the chosen token's, and the likeliest ones'
    as (token id, logarithm), best first."""

    chosen: float
    top: tuple[tuple[int, float], ...] = ()


@dataclasses.dataclass(frozen=True)
class Completion:
    """What the model generated for one request.

    `tokens` ends with the stop token if there was one. `finish_reason`: "stop" for a stop token or a stop
    string; "length" for max_tokens, a channel's limit or the engine's longest sequence; "cancelled".
    `stop`: the stop string that ended it, whose text `tokens` may still contain. `sample`: which of the
    request's n completions it is. `cached_tokens`: how many of the prompt's tokens were not computed, as an
    earlier request had left them. `logprobs`: one entry for each token, if asked for. `grammar_complete`:
    under a grammar, whether the text it constrains is whole; None without one.
    """

    id: str
    tokens: list[int]
    finish_reason: FinishReason
    prompt_tokens: int
    sample: int = 0
    stop: str | None = None
    cached_tokens: int = 0
    logprobs: tuple[TokenLogprobs, ...] | None = None
    grammar_complete: bool | None = None


@dataclasses.dataclass(frozen=True)
class Update:
    """New tokens of one sequence, as a dispatch brought them; the last one carries the whole completion."""

    id: str
    sample: int
    tokens: list[int]
    logprobs: tuple[TokenLogprobs, ...] | None = None
    completion: Completion | None = None
