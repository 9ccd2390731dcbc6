"""The log-probabilities of a completion, as OpenAI's APIs list them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gptoss_jax.engine.channels import Channels
from gptoss_jax.llm.answer import kind_of, said_tokens, text_of

if TYPE_CHECKING:
    from gptoss_jax.engine import Completion
    from gptoss_jax.engine.request import TokenLogprobs
    from harmony import HarmonyEncoding, Message

LEAST = -9999.0
"""What stands for a logarithm below it, as in the hosted API."""

Entries = list[dict[str, Any]]
"""One for each token: ``{"token", "logprob", "bytes", "top_logprobs": [{"token", "logprob", "bytes"}]}``."""


def text_logprobs(
    completion: Completion, messages: Sequence[Message], encoding: HarmonyEncoding
) -> list[Entries]:
    """The entries of each message of text, `final` or preamble, in order; what is neither has none.

    `messages` are what the completion was parsed to. Of a message that a stop string ended, the tokens that
    reach into its text are listed.
    """
    channels = Channels(encoding)
    groups: list[Entries] = []
    for token, found in zip(said_tokens(completion, encoding), completion.logprobs or (), strict=False):
        was_content = channels.in_content
        is_content = channels.take(token)
        if channels.is_call or channels.channel not in ("final", "commentary"):
            continue
        if is_content:
            groups[-1].append(_entry(token, found, encoding))
        elif channels.in_content and not was_content:
            groups.append([])
    if completion.stop is not None and groups and messages and kind_of(messages[-1]) in ("text", "preamble"):
        groups[-1] = _up_to(groups[-1], len(text_of(messages[-1]).encode("utf-8", "surrogatepass")))
    return groups


def _up_to(entries: Entries, length: int) -> Entries:
    """The entries of tokens that begin before so many bytes."""
    sizes = [len(entry["bytes"]) for entry in entries]
    starts = itertools.accumulate(sizes, initial=0)
    return [entry for entry, start in zip(entries, starts, strict=False) if start < length]


def _entry(token: int, found: TokenLogprobs, encoding: HarmonyEncoding) -> dict[str, Any]:
    top = [_token(id, value, encoding) for id, value in found.top]
    return {**_token(token, found.chosen, encoding), "top_logprobs": top}


def _token(token: int, logprob: float, encoding: HarmonyEncoding) -> dict[str, Any]:
    data = encoding.token_bytes(token) or b""
    return {
        "token": data.decode("utf-8", "replace"),
        "logprob": max(logprob, LEAST),
        "bytes": list(data),
    }
