"""What the host decides about the tokens of one sequence: where it ends, and what must stand in it.

The device draws up to a dispatch of tokens by itself and knows little more than stop tokens and how many it
may draw. The host looks at them afterwards. What it decides depends on the tokens alone, never on how they
came in dispatches, so neither does the completion.

A decision after which the sequence goes on otherwise (tokens taken back, tokens appended) is made only where
the device has nothing drawn behind it but the rest of one dispatch: after the last token it was allowed
(`allowance`), or while every dispatch is looked at before the next one is sent (`verifies`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from gptoss_jax.engine.channels import Channels
from gptoss_jax.engine.request import ChannelLimit, FinishReason, Request, RequestError, SamplingParams

if TYPE_CHECKING:
    import numpy as np

    from harmony import HarmonyEncoding

LIMITED = ("analysis", "commentary", "final")
"""The channels that may have limits."""

_TO_FINAL = "<|end|><|start|>assistant<|channel|>final<|message|>"


class Matcher(Protocol):
    """What is asked of a grammar's matcher (`gptoss_jax.engine.grammar.Matcher`)."""

    @property
    def complete(self) -> bool:
        """Whether the constrained document is whole."""

    def accept(self, tokens: Sequence[int]) -> int:
        """Takes the longest prefix that may come next; its length."""

    def mask(self) -> np.ndarray:
        """The tokens that may come next, uint32, bit `id % 32` of word `id // 32`."""

    def force(self, tokens: Sequence[int]) -> bool:
        """Takes all of the tokens, or none; whether it did."""

    def close_reasoning(self) -> list[int] | None:
        """The tokens that lead from free text to what is constrained; None where there is no such way."""


@dataclasses.dataclass(frozen=True)
class Verdict:
    """What becomes of new tokens.

    `accepted`: how many of them are kept; those behind are void, and drawn again unless the sequence ends.
    `forced`: tokens that are appended without being drawn. `finish`: why the sequence ends, if it does.
    `stop`: the stop string that ended it; the last token kept is the one that completed it.
    """

    accepted: int
    forced: tuple[int, ...] = ()
    finish: FinishReason | None = None
    stop: str | None = None


class Control:
    """The limits of one sequence: of its length, of its channels, its stop tokens and strings, its grammar.

    With limits of channels, a message in `final` is the last one: where it ends, so does the completion.
    Content tokens of the prompt, if it ends within a message, do not count towards a channel's limits.
    """

    def __init__(
        self,
        request: Request,
        sample: int,
        *,
        encoding: HarmonyEncoding | None,
        stop_tokens: frozenset[int],
        max_tokens: int,
        matcher: Matcher | None,
        prompt: Sequence[int],
    ) -> None:
        """The completion of `prompt` by at most `max_tokens` tokens; `stop_tokens` are the model's own.

        Raises RequestError for limits that contradict each other, and for all that needs an encoding where
        there is none.
        """
        sampling = request.sampling
        self.request = request
        self.sample = sample
        self._max_tokens = max_tokens
        self._min_tokens = min(sampling.min_tokens, max_tokens)
        self._stop_tokens = stop_tokens | frozenset(sampling.stop_token_ids)
        self._generated = 0
        self._limits = _limits(sampling)
        self._has_least = any(limit.least for limit in self._limits.values())
        self._channels: Channels | None = None
        self._strings: _StopStrings | None = None
        self._start: int | None = None
        self._enders: frozenset[int] = frozenset()
        self._to_final: tuple[int, ...] = ()
        if encoding is None:
            _refuse_without_encoding(sampling)
        elif self._limits or sampling.stop:
            self._channels = Channels(encoding, prompt)
            self._start = encoding.start
            self._enders = self._stop_tokens | {encoding.start, *encoding.stop_tokens()}
            self._to_final = tuple(encoding.encode(_TO_FINAL, allowed_special="all"))
            self._strings = _StopStrings(encoding, sampling.stop) if sampling.stop else None
        self._matcher = matcher
        self._mask = matcher.mask() if matcher is not None else None
        self._ban = self._banned()

    @property
    def verifies(self) -> bool:
        """Whether the tokens of each dispatch must be looked at before the next one is sent."""
        if self._matcher is not None or (self._has_least and self._generated < self._min_tokens):
            return True
        return any(
            self._count(channel) < limit.least
            for channel, limit in self._limits.items()
            if channel == "final" or not self._in_final
        )

    @property
    def grammar_complete(self) -> bool | None:
        """Whether the text that the grammar constrains is whole; None without one."""
        if self._matcher is None:
            return None
        try:
            return self._matcher.complete
        except RequestError:  # a grammar that grew too complex
            return False

    def allowance(self) -> int:
        """How many tokens may be drawn before the host must look again; at least 1.

        The rest of `max_tokens`, or less where a channel that gives way to `final` could come to its limit.
        """
        rest = self._max_tokens - self._generated
        channels = self._channels
        for channel, limit in self._limits.items():
            if channels is None or limit.most is None:
                continue
            left = limit.most - self._count(channel)
            if channels.in_content and channels.channel == channel:
                rest = min(rest, left)
            elif channel != "final" and not self._in_final:
                rest = min(rest, channels.tokens_before_content + left)
        return max(1, rest)

    def ban(self) -> tuple[tuple[int, ...], int]:
        """Tokens that cannot be drawn until the completion has so many tokens.

        Stop tokens until `min_tokens`; in the content of a channel all that would end it, until it has its
        least. None where the grammar leaves nothing else to do than to end.
        """
        banned, until = self._ban
        return tuple(sorted(banned)), until

    def mask(self) -> np.ndarray | None:
        """The tokens that the grammar allows next, as uint32 bits; None without one."""
        return self._mask

    def advance(self, tokens: Sequence[int]) -> Verdict:
        """Takes in tokens that were drawn after those accepted so far and those forced."""
        kept = 0
        try:
            for token in tokens:
                if self._refuses(token):
                    break
                if token == self._start and self._in_final:  # it ends without its end
                    return Verdict(kept, finish="stop")
                kept += 1
                verdict = self._take(token, kept)
                if verdict is not None:
                    return verdict
                if self._ban_changes():
                    break
            return self._goes_on(kept)
        except RequestError:  # the grammar grew too complex: it cannot be followed any further
            return Verdict(kept, finish="length")

    def _take(self, token: int, kept: int) -> Verdict | None:
        """Takes in a token that is kept; the verdict if it ends the sequence, or its message."""
        self._generated += 1
        channels, limits = self._channels, self._limits
        was_final = self._in_final
        is_content = channels is not None and channels.take(token)
        if token in self._stop_tokens:
            return Verdict(kept, finish="stop")
        if self._strings is not None:
            stop = self._strings.take(token, is_content)
            if stop is not None:
                return Verdict(kept, finish="stop", stop=stop)
        if was_final and not self._in_final:
            return Verdict(kept, finish="stop")
        if self._generated >= self._max_tokens:
            return Verdict(kept, finish="length")
        if channels is not None and channels.in_content and channels.channel in limits:
            most = limits[channels.channel].most
            if most is not None and self._count(channels.channel) >= most:
                return self._close(kept, channels)
        return None

    def _close(self, kept: int, channels: Channels) -> Verdict:
        """The message at hand has come to its channel's limit."""
        if channels.channel == "final" or channels.is_call:
            return Verdict(kept, finish="length")
        forced = self._to_final
        if self._matcher is not None:
            path = self._matcher.close_reasoning()
            if path is None or not self._matcher.force(path):
                return Verdict(kept, finish="length")
            forced = tuple(path)
        if self._generated + len(forced) >= self._max_tokens:
            return Verdict(kept, finish="length")
        self._generated += len(forced)
        for token in forced:
            is_content = channels.take(token)
            if self._strings is not None:
                self._strings.take(token, is_content)
        return self._goes_on(kept, forced)

    def _goes_on(self, kept: int, forced: tuple[int, ...] = ()) -> Verdict:
        """The verdict that does not end the sequence. Raises RequestError where the grammar gives up."""
        self._ban = self._banned()
        if self._matcher is not None:
            self._mask = self._matcher.mask()
        return Verdict(kept, forced)

    def _refuses(self, token: int) -> bool:
        """Whether a token may not stand here. If it may, the matcher has taken it."""
        if (token in self._stop_tokens or token in self._enders) and token in self._banned()[0]:
            return True
        return self._matcher is not None and self._matcher.accept((token,)) == 0

    def _ban_changes(self) -> bool:
        """Whether what may not be drawn from here on is not what the device was told.

        Tokens behind this place are drawn again even if they are none of those: top-p keeps others then.
        """
        if not self._has_least:
            return False
        told, until = self._ban
        return self._banned()[0] != (told if self._generated < until else frozenset())

    def _banned(self) -> tuple[frozenset[int], int]:
        """The tokens that may not be drawn next, and until how many tokens that holds at least."""
        bans = []
        if self._generated < self._min_tokens:
            bans.append((self._stop_tokens, self._min_tokens))
        channels = self._channels
        if channels is not None and channels.in_content and channels.channel in self._limits:
            missing = self._limits[channels.channel].least - self._count(channels.channel)
            if missing > 0:
                bans.append((self._enders, self._generated + missing))
        if not bans or self.grammar_complete:
            return frozenset(), 0
        return frozenset().union(*(ids for ids, _ in bans)), min(until for _, until in bans)

    @property
    def _in_final(self) -> bool:
        """Whether this is the content of a `final` message which, as there are limits, is the last one."""
        channels = self._channels
        return bool(self._limits) and channels is not None and channels.channel == "final"

    def _count(self, channel: str) -> int:
        return self._channels.counts.get(channel, 0) if self._channels is not None else 0


class _StopStrings:
    """Looks for strings in the text of a message's content, whatever tokens it comes in.

    A string's UTF-8 bytes are found in the bytes of the tokens exactly where its characters stand in their
    text, as no character's bytes begin within another's.
    """

    def __init__(self, encoding: HarmonyEncoding, strings: Sequence[str]) -> None:
        self._encoding = encoding
        self._wanted = [(string, _utf8(string)) for string in strings]
        self._longest = max(len(data) for _, data in self._wanted)
        self._before = b""  # the last bytes of the message, one less than the longest string

    def take(self, token: int, is_content: bool) -> str | None:
        """Takes a token; the string that it completes, the one that begins first if there are several."""
        if not is_content:
            self._before = b""
            return None
        text = self._before + (self._encoding.token_bytes(token) or b"\xef\xbf\xbd")
        first, found = (len(text), 0), None
        for string, data in self._wanted:
            begin = text.find(data)
            if begin >= 0 and (begin, len(data)) < first:
                first, found = (begin, len(data)), string
        self._before = text[max(0, len(text) - self._longest + 1) :]
        return found


def _utf8(string: str) -> bytes:
    try:
        return string.encode()
    except UnicodeEncodeError:
        raise RequestError(f"stop holds {string!r}: it must be text without lone surrogates") from None


def _limits(sampling: SamplingParams) -> dict[str, ChannelLimit]:
    """The limits that a request sets, its reasoning budget among them."""
    for channel in sampling.channel_limits:
        if channel not in LIMITED:
            allowed = ", ".join(LIMITED)
            raise RequestError(f"channel_limits names {channel!r}: it must be one of {allowed}")
    limits = dict(sampling.channel_limits)
    budget = sampling.reasoning_budget
    if budget is not None:
        analysis = limits.get("analysis", ChannelLimit())
        if budget < analysis.least:
            raise RequestError(
                f"reasoning_budget is {budget}: it must be at least the least of analysis, {analysis.least}"
            )
        most = budget if analysis.most is None else min(budget, analysis.most)
        limits["analysis"] = ChannelLimit(analysis.least, most)
    return {channel: limit for channel, limit in limits.items() if limit.least or limit.most is not None}


def _refuse_without_encoding(sampling: SamplingParams) -> None:
    for name in ("stop", "reasoning_budget", "channel_limits", "grammar"):
        if getattr(sampling, name):
            raise RequestError(f"{name} needs an engine with an encoding: this one has none")
