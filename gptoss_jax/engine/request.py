"""What a caller asks of the engine, and what comes back."""

from __future__ import annotations

import dataclasses
import hashlib
import math
from typing import Literal


class RequestError(ValueError):
    """A request that cannot be run; the message names the field, its value and what is allowed."""


@dataclasses.dataclass(frozen=True)
class SamplingParams:
    """How tokens are chosen. The defaults sample from the model's own distribution, as gpt-oss recommends.

    temperature: 0 takes the likeliest token every time. top_p: keep the fewest tokens whose probabilities
    reach it. top_k: keep that many; 0 keeps all. seed: any integer; None derives one from the request's id.
    max_tokens: the most tokens to generate, None for as many as fit.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None
    max_tokens: int | None = None

    def __post_init__(self) -> None:
        self._check("temperature", _is_number(self.temperature) and self.temperature >= 0, "a number from 0")
        self._check("top_p", _is_number(self.top_p) and 0 < self.top_p <= 1, "a number above 0, at most 1")
        self._check("top_k", _is_integer(self.top_k) and 0 <= self.top_k < 2**31, "a whole number from 0")
        self._check("seed", self.seed is None or _is_integer(self.seed), "a whole number")
        if self.max_tokens is not None:
            valid = _is_integer(self.max_tokens) and self.max_tokens >= 1
            self._check("max_tokens", valid, "a whole number from 1")

    def _check(self, name: str, valid: bool, allowed: str) -> None:
        if not valid:
            raise RequestError(f"{name} is {getattr(self, name)!r}: it must be {allowed}")


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


@dataclasses.dataclass(frozen=True)
class Request:
    """A prompt of token ids to be continued. `id` names it in its completion and seeds its randomness."""

    id: str
    prompt: list[int]
    sampling: SamplingParams = SamplingParams()

    def seed_words(self) -> tuple[int, int]:
        """The two 32-bit words that start this request's random stream."""
        if self.sampling.seed is None:
            digest = hashlib.blake2b(self.id.encode("utf-8", "surrogatepass"), digest_size=8).digest()
            seed = int.from_bytes(digest, "little")
        else:
            seed = self.sampling.seed
        return (seed >> 32) & 0xFFFFFFFF, seed & 0xFFFFFFFF


@dataclasses.dataclass(frozen=True)
class Completion:
    """What the model generated for one request.

    `tokens` ends with the stop token if there was one. `finish_reason`: "stop" for a stop token, "length" for
    max_tokens or the engine's longest sequence.
    """

    id: str
    tokens: list[int]
    finish_reason: Literal["stop", "length"]
    prompt_tokens: int
