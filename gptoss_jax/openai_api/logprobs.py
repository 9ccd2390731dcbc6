"""Log-probabilities as OpenAI's APIs list them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gptoss_jax.answers import ScoredToken
    from harmony import HarmonyEncoding

MIN_LOGPROB = -9999.0
"""What stands for a logarithm below it, as in the hosted API."""

Entries = list[dict[str, Any]]
"""One for each token: ``{"token", "logprob", "bytes", "top_logprobs": [{"token", "logprob", "bytes"}]}``."""


def logprob_entries(tokens: Iterable[ScoredToken], encoding: HarmonyEncoding) -> Entries:
    """The entries of tokens of text, in their order."""
    return [
        {
            **_entry(scored.token, scored.logprobs.chosen, encoding),
            "top_logprobs": [_entry(token, value, encoding) for token, value in scored.logprobs.top],
        }
        for scored in tokens
    ]


def _entry(token: int, logprob: float, encoding: HarmonyEncoding) -> dict[str, Any]:
    data = encoding.token_bytes(token) or b""
    return {
        "token": data.decode("utf-8", "replace"),
        "logprob": max(logprob, MIN_LOGPROB),
        "bytes": list(data),
    }
