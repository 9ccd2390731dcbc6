"""The engine's input and output: `Request` with its `SamplingParams`, `Update` and `Completion`."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Literal

from gptoss_jax.engine.errors import RequestError
from gptoss_jax.engine.grammar.header_guard import HeaderGuard
from gptoss_jax.engine.grammar.spec import Grammar
from gptoss_jax.engine.values import as_integer, as_items, as_number, integer_from, number_from, refuse
from harmony.errors import shown

__all__ = [
    "ChannelLimit",
    "Completion",
    "FinishReason",
    "Request",
    "RequestError",
    "SamplingParams",
    "TokenLogprobs",
    "Update",
    "row_seed",
]

FinishReason = Literal["stop", "length", "cancelled"]

MAX_TOP_LOGPROBS = 20
MAX_BIASED_TOKENS = 300
MAX_STOP_TOKENS = 16
MAX_STOP_STRINGS = 16
MAX_STOP_CHARACTERS = 4096
MAX_SAMPLES = 128

LIMITED_CHANNELS = ("analysis", "commentary", "final")
"""The channels that may have limits."""

_TOKEN_IDS = 2**31
_SEEDS = 2**64


@dataclasses.dataclass(frozen=True)
class ChannelLimit:
    """Limits on the content tokens of one channel, summed over its messages.

    min: the channel's messages do not end before it has this many tokens.
    max: the channel is closed at this many tokens. From analysis and commentary the model is moved on to
        `final`; a final message or a tool call ends the completion with the finish reason "length". None for
        no limit.
    """

    min: int = 0
    max: int | None = None

    def __post_init__(self) -> None:
        _set(self, "min", integer_from("min", self.min, 0))
        if self.max is not None:
            _set(self, "max", integer_from("max", self.max, max(1, self.min)))


@dataclasses.dataclass(frozen=True)
class SamplingParams:
    """How tokens are chosen. The defaults sample from the model's own distribution, as gpt-oss recommends.

    The constructor checks every field. A number may have any numeric type, numpy's scalars included, but not
    bool. `logit_bias`, `stop`, `stop_token_ids` and `channel_limits` may be None, which means empty.
    Containers are copied.

    temperature: divides the logits; 0 always takes the likeliest token.
    top_p: keeps the smallest set of likeliest tokens whose probabilities sum to at least this.
    top_k: keeps this many of the likeliest tokens; 0 keeps all.
    min_p: keeps tokens whose probability is at least this fraction of the likeliest token's.
    repetition_penalty: divides positive logits, and multiplies negative ones, of tokens that occur in the
        prompt or the completion.
    presence_penalty: subtracted from the logits of tokens that occur in the completion.
    frequency_penalty: subtracted from them once for each occurrence.
    logit_bias: token id → number added to its logit; at most 300 entries.
    seed: any integer, of which 64 bits are used; None derives one from the request's id.
    n: number of completions of the prompt, each with its own random numbers; at most 128.
    max_tokens: the most tokens to generate; None, or more than fit, for as many as fit.
    min_tokens: no stop token is drawn before this many tokens.
    stop: a string, or at most 16 of them, of at most 4,096 characters each. The completion ends where one
        appears in text for the user: in `final` messages and preambles (`commentary` without a recipient),
        not in analysis and not in calls. If the prompt has no `<|start|>`, it is not harmony, and all text
        counts.
    stop_token_ids: at most 16 token ids that end the completion, in addition to the model's own.
    logprobs: how many of the likeliest tokens, up to 20, are listed with their log-probabilities for each
        token, in addition to the token's own log-probability; None for no log-probabilities. They are the
        model's own, before temperature, penalties, bias and grammar.
    reasoning_budget: tokens of analysis after which the model is moved on to `final`; None for no limit.
    channel_limits: channel name → `ChannelLimit`. `reasoning_budget` is short for analysis's max.
    grammar: what the `final` content, or a call's arguments, must match; None for no constraint.
    header_guard: what the headers of messages may say; None for no constraint. A grammar constrains headers
        too: with a grammar, the guard has no effect.

    Raises:
        RequestError: a field has a value that is not allowed.
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
    header_guard: HeaderGuard | None = None

    def __post_init__(self) -> None:
        for name, allowed, valid in _NUMBERS:
            _set(self, name, number_from(name, getattr(self, name), allowed, valid))
        for name, lowest, highest in _INTEGERS:
            _set(self, name, integer_from(name, getattr(self, name), lowest, highest))
        for name, minimum, maximum in _OPTIONAL_INTEGERS:
            value = getattr(self, name)
            if value is not None:
                _set(self, name, integer_from(name, value, minimum, maximum))
        _set(self, "logit_bias", _biases(self.logit_bias))
        _set(self, "stop", _stop_strings(self.stop))
        _set(self, "stop_token_ids", _stop_token_ids(self.stop_token_ids))
        _set(self, "channel_limits", _channel_limits(self.channel_limits))
        if self.grammar is not None and not isinstance(self.grammar, Grammar):
            refuse("grammar", self.grammar, "a Grammar, such as Grammar.json_schema({…}), or None")
        if self.header_guard is not None and not isinstance(self.header_guard, HeaderGuard):
            refuse("header_guard", self.header_guard, "a HeaderGuard or None")
        _check_budget(self)

    @property
    def limits(self) -> dict[str, ChannelLimit]:
        """The limits by channel, `reasoning_budget` included; only of channels that have one."""
        limits = dict(self.channel_limits)
        if self.reasoning_budget is not None:
            analysis, budget = limits.get("analysis", ChannelLimit()), self.reasoning_budget
            limits["analysis"] = ChannelLimit(analysis.min, min(budget, analysis.max or budget))
        return {channel: limit for channel, limit in limits.items() if limit.min or limit.max is not None}


_NUMBERS: tuple[tuple[str, str, Callable[[float], bool]], ...] = (
    ("temperature", "a number from 0", lambda value: value >= 0),
    ("top_p", "a number above 0, at most 1", lambda value: 0 < value <= 1),
    ("min_p", "a number from 0 to 1", lambda value: 0 <= value <= 1),
    ("repetition_penalty", "a number above 0", lambda value: value > 0),
    ("presence_penalty", "a finite number", lambda value: True),
    ("frequency_penalty", "a finite number", lambda value: True),
)
"""Name, what is allowed in words, and a check that is True for an allowed finite number."""

_INTEGERS: tuple[tuple[str, int, int | None], ...] = (
    ("top_k", 0, 2**31 - 1),
    ("n", 1, MAX_SAMPLES),
    ("min_tokens", 0, None),
)
_OPTIONAL_INTEGERS: tuple[tuple[str, int | None, int | None], ...] = (
    ("seed", None, None),
    ("max_tokens", 1, None),
    ("logprobs", 0, MAX_TOP_LOGPROBS),
    ("reasoning_budget", 1, None),
)
"""Name, lowest and highest value; None for no bound."""


def _set(of: object, name: str, value: object) -> None:
    """Sets a field of a frozen dataclass in its `__post_init__`."""
    object.__setattr__(of, name, value)


def _biases(value: object) -> dict[int, float]:
    if value is None:
        return {}
    allowed = f"a mapping of at most {MAX_BIASED_TOKENS} token ids to finite numbers, or None"
    if not isinstance(value, Mapping) or len(value) > MAX_BIASED_TOKENS:
        refuse("logit_bias", value, allowed)
    found = {}
    for token, bias in value.items():
        id, number = as_integer(token), as_number(bias)
        if id is None or not 0 <= id < _TOKEN_IDS:
            raise RequestError(f"logit_bias has the key {shown(token)}: it must be a token id")
        if number is None:
            raise RequestError(f"logit_bias[{id}] is {shown(bias)}: it must be a finite number")
        found[id] = number
    return found


def _stop_strings(value: object) -> tuple[str, ...]:
    if value is None:
        return ()
    strings = [value] if isinstance(value, str) else as_items(value)
    if strings is None or len(strings) > MAX_STOP_STRINGS:
        refuse("stop", value, f"a string, at most {MAX_STOP_STRINGS} strings, or None")
    for string in strings:
        if not isinstance(string, str) or not 1 <= len(string) <= MAX_STOP_CHARACTERS:
            allowed = f"a string of 1 to {MAX_STOP_CHARACTERS} characters"
            raise RequestError(f"stop holds {shown(string)}: it must be {allowed}")
        try:
            string.encode()
        except UnicodeEncodeError:
            raise RequestError(
                f"stop holds {shown(string)}: it must be text without lone surrogates"
            ) from None
    return tuple(map(str, strings))


def _stop_token_ids(value: object) -> tuple[int, ...]:
    if value is None:
        return ()
    tokens = as_items(value)
    if tokens is None or len(tokens) > MAX_STOP_TOKENS:
        refuse("stop_token_ids", value, f"at most {MAX_STOP_TOKENS} token ids, or None")
    return tuple(_token_id("stop_token_ids", token) for token in tokens)


def _token_id(name: str, token: object) -> int:
    id = as_integer(token)
    if id is None or not 0 <= id < _TOKEN_IDS:
        raise RequestError(f"{name} holds token {shown(token)}: it must be a token id")
    return id


def _channel_limits(value: object) -> dict[str, ChannelLimit]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        refuse("channel_limits", value, "a mapping of channel names to ChannelLimits, or None")
    for channel, limit in value.items():
        if not isinstance(channel, str) or channel not in LIMITED_CHANNELS:
            allowed = ", ".join(LIMITED_CHANNELS)
            raise RequestError(f"channel_limits names {shown(channel)}: it must be one of {allowed}")
        if not isinstance(limit, ChannelLimit):
            refuse(f"channel_limits[{channel!r}]", limit, "a ChannelLimit, such as ChannelLimit(max=100)")
    return dict(value)


def _check_budget(sampling: SamplingParams) -> None:
    """Refuses a reasoning budget below the minimum of the analysis channel."""
    analysis = sampling.channel_limits.get("analysis")
    budget = sampling.reasoning_budget
    if analysis is not None and budget is not None and budget < analysis.min:
        raise RequestError(
            f"reasoning_budget is {shown(budget)}: it must be at least the min of analysis, {analysis.min}"
        )


@dataclasses.dataclass(frozen=True)
class Request:
    """A prompt of token ids to be completed.

    id: names the request in its updates, and seeds its random numbers unless `sampling` has a seed.
    prompt: token ids of any integer type, as a list, tuple or array; copied into a list of ints.
    sampling: how tokens are chosen; None means `SamplingParams()`.
    background: True lets all requests go first that are not in the background. One that waits takes the slot
        of a sequence in the background, which is computed again later. Tokens are the same.

    Raises:
        RequestError: a field has a value that is not allowed.
    """

    id: str
    prompt: list[int]
    sampling: SamplingParams = dataclasses.field(default_factory=SamplingParams)
    background: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.id, str):
            refuse("id", self.id, "a string")
        _set(self, "prompt", _prompt(self.prompt))
        if self.sampling is None:
            _set(self, "sampling", SamplingParams())
        elif not isinstance(self.sampling, SamplingParams):
            refuse("sampling", self.sampling, "a SamplingParams")
        if not isinstance(self.background, bool):
            refuse("background", self.background, "True or False")

    def seed_words(self, sample: int = 0) -> tuple[int, int]:
        """The seed of one sample's random numbers, as two 32-bit words, the high one first."""
        seed = _hash64(self.id) if self.sampling.seed is None else self.sampling.seed
        if not -_SEEDS // 2 <= seed < _SEEDS:
            seed %= _SEEDS
        if sample:
            seed = _hash64(f"{seed}\0{sample}")
        return (seed >> 32) & 0xFFFFFFFF, seed & 0xFFFFFFFF


def row_seed(run_seed: int, id: str) -> int:
    """Returns the seed of a row that has none: a hash of the run's seed and the row's id, in [0, 2**63).

    It depends neither on the row's place nor on what else runs, nor in which process: a row that is run
    again, in another order or on another host, draws the same samples. Batches and `LLM.generate(ids=...)`
    share it.
    """
    digest = hashlib.blake2b(f"{run_seed}\0{id}".encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def _prompt(value: object) -> list[int]:
    tokens = None if isinstance(value, Set) else as_items(value)
    if tokens is None:
        refuse("the prompt", value, "a list of token ids")
    if all(type(token) is int for token in tokens):
        return tokens
    return [_token_id("the prompt", token) for token in tokens]


def _hash64(text: str) -> int:
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little")


@dataclasses.dataclass(frozen=True)
class TokenLogprobs:
    """Log-probabilities (natural logarithms) at one position of a completion.

    chosen: of the token that was drawn.
    top: of the likeliest tokens, as (token id, log-probability), best first.
    """

    chosen: float
    top: tuple[tuple[int, float], ...] = ()


@dataclasses.dataclass(frozen=True)
class Completion:
    """What the model generated for one sample of a request.

    id: the request's id.
    tokens: the generated tokens, the stop token included if one was drawn.
    finish_reason: "stop" for a stop token or a stop string; "length" for max_tokens, a channel's limit or
        the engine's max_length; "cancelled" if the caller cancelled the request or the engine failed on it.
    prompt_tokens: the length of the prompt.
    sample: which of the request's n completions it is, from 0.
    stop: the stop string that ended it, which `tokens` may still contain; None for other reasons.
    cached_tokens: the prompt's tokens that came from the prefix cache.
    logprobs: one entry for each token; None if the request has no `logprobs`.
    grammar_complete: True if the text under the grammar is complete, False if it was cut; None without a
        grammar.
    error: how the engine's own code failed on this request, in one line; None if it did not.
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
    error: str | None = None


@dataclasses.dataclass(frozen=True)
class Update:
    """New tokens of one sequence. `completion` is None in all but the sequence's last update."""

    id: str
    sample: int
    tokens: list[int]
    logprobs: tuple[TokenLogprobs, ...] | None = None
    completion: Completion | None = None
