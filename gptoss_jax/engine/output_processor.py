"""The host's decisions on one sequence's tokens: which drawn tokens are kept, and where the sequence ends.

The device draws a whole dispatch of tokens on its own. It knows little more than the stop tokens and how many
tokens it may draw. The host checks the tokens afterwards. Its decisions depend on the tokens alone and not on
how they were split into dispatches, so the completion does not depend on that either.

Some decisions change how the sequence continues: drawn tokens are dropped, or other tokens are appended. They
are only possible if the device has drawn nothing further in the meantime. So they are made in two places: at
the last token that the device may draw (`allowance`), and in sequences whose every dispatch is checked before
the next one is sent (`verifies`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Protocol

from gptoss_jax.engine.errors import RequestError
from gptoss_jax.engine.request import FinishReason, Request, SamplingParams

if TYPE_CHECKING:
    import numpy as np

    from gptoss_jax.engine.channels import Channels
    from gptoss_jax.engine.grammar import HeaderMatcher
    from harmony import HarmonyEncoding

_TO_FINAL = "<|end|><|start|>assistant<|channel|>final<|message|>"


class Matcher(Protocol):
    """The part of `gptoss_jax.engine.grammar.Matcher` that is used here."""

    @property
    def complete(self) -> bool:
        """True if the text under the grammar is complete."""

    def accept(self, tokens: Sequence[int]) -> int:
        """Takes the longest prefix of `tokens` that the grammar allows. Returns its length."""

    def mask(self) -> np.ndarray:
        """The tokens that the grammar allows next: uint32, bit `id % 32` of word `id // 32`."""

    def force(self, tokens: Sequence[int]) -> bool:
        """Takes all of the tokens and returns True, or none of them and returns False."""

    def close_reasoning(self) -> list[int] | None:
        """The tokens that lead from free text to the constrained text; None if there are none."""


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The decision on newly drawn tokens.

    accepted: how many of them are kept. The others are dropped, and drawn again unless the sequence ends.
    forced: tokens to append after the kept ones without drawing them.
    finish: why the sequence ends; None if it continues.
    stop: the stop string that ended it, which ends in the last kept token; None for other reasons.
    """

    accepted: int
    forced: tuple[int, ...] = ()
    finish: FinishReason | None = None
    stop: str | None = None


class OutputProcessor:
    """Applies a request's max_tokens, min_tokens, stops, channel limits and grammar to one of its sequences.

    With channel limits, the first `final` message is the last message: the completion ends where it ends.
    If the prompt ends within a message, its tokens do not count towards that channel's limits.
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
        headers: HeaderMatcher | None = None,
        prompt: Sequence[int],
    ) -> None:
        """A processor at the start of a completion.

        Args:
            request, sample: the request, and which of its samples this is.
            encoding: the model's encoding; None if the engine has none.
            stop_tokens: the model's stop tokens. The request's own are added to them.
            max_tokens: the most tokens of the completion.
            matcher: the request's grammar; None for no grammar.
            headers: the request's header guard; None for no guard, and where there is a grammar.
            prompt: the tokens before the completion.

        Raises:
            RequestError: the request needs an encoding, and the engine has none.
        """
        sampling = request.sampling
        self.request = request
        self.sample = sample
        self._max_tokens = max_tokens
        self._min_tokens = min(sampling.min_tokens, max_tokens)
        self._stop_tokens = stop_tokens | frozenset(sampling.stop_token_ids)
        self._generated = 0
        self._limits = sampling.limits
        self._has_minimum = any(limit.min for limit in self._limits.values())
        self._channels: Channels | None = None
        self._strings: _StopStrings | None = None
        self._openers: tuple[int, ...] = ()  # the tokens that begin a message's header
        self._enders: frozenset[int] = frozenset()
        self._to_final: tuple[int, ...] = ()
        if encoding is None:
            _refuse_without_encoding(sampling)
        elif self._limits or sampling.stop:
            from gptoss_jax.engine.channels import Channels  # needs pydantic, as the encoding does

            self._channels = Channels(encoding, prompt)
            self._openers = (encoding.start, encoding.channel)
            boundaries = (encoding.start, encoding.channel, encoding.end_of_text, *encoding.stop_tokens())
            self._enders = self._stop_tokens | set(boundaries)
            self._to_final = tuple(encoding.encode(_TO_FINAL, allowed_special="all"))
            self._strings = _StopStrings(encoding, sampling.stop) if sampling.stop else None
        self._matcher = matcher
        self._headers = headers
        self._mask = matcher.mask() if matcher is not None else None
        self._ban = self._banned()

    @property
    def verifies(self) -> bool:
        """True if the host must check each dispatch's tokens before it sends the next dispatch."""
        if self._headers is not None and self._headers.corrects:
            return True
        if self._matcher is not None or (self._has_minimum and self._generated < self._min_tokens):
            return True
        return any(
            self._count(channel) < limit.min
            for channel, limit in self._limits.items()
            if channel == "final" or not self._in_final
        )

    @property
    def grammar_complete(self) -> bool | None:
        """True if the text under the grammar is complete, False if not; None without a grammar."""
        if self._matcher is None:
            return None
        try:
            return self._matcher.complete
        except RequestError:  # the grammar became too complex to follow
            return False

    def allowance(self) -> int:
        """How many tokens the device may draw before the host must check them; at least 1.

        It is what is left of `max_tokens`, or less if a channel could reach its limit before that.
        """
        rest = self._max_tokens - self._generated
        channels = self._channels
        for channel, limit in self._limits.items():
            if channels is None or limit.max is None:
                continue
            left = limit.max - self._count(channel)
            if channels.in_content and channels.channel == channel:
                rest = min(rest, left)
            elif channel != "final" and not self._in_final:
                rest = min(rest, channels.tokens_before_content + left)
        return max(1, rest)

    def ban(self) -> tuple[tuple[int, ...], int]:
        """The banned tokens, ascending, and the length of the completion at which the ban ends.

        Before `min_tokens`, the stop tokens are banned; in a channel below its minimum, all tokens that would
        end the message. Nothing is banned where the grammar allows only the end.
        """
        banned, until = self._ban
        return tuple(sorted(banned)), until

    def mask(self) -> np.ndarray | None:
        """The tokens that the grammar allows next, as in `Matcher.mask`; None without a grammar.

        Under a header guard: None, unless the guard has just refused a token.
        """
        return self._mask

    def process(self, tokens: Sequence[int]) -> Outcome:
        """Decides on the next drawn tokens, which follow all accepted and forced ones."""
        kept = 0
        try:
            for token in tokens:
                if self._refuses(token):
                    break
                if token in self._openers and self._in_final:  # a new message begins without an <|end|>
                    return Outcome(kept, finish="stop")
                kept += 1
                outcome = self._process(token, kept)
                if outcome is not None:
                    return outcome
                if self._ban_changes():
                    break
            return self._continue(kept)
        except RequestError:  # the grammar became too complex to follow any further
            return Outcome(kept, finish="length")

    def _process(self, token: int, kept: int) -> Outcome | None:
        """Counts a kept token. Returns the outcome if the sequence or its message ends there, else None."""
        self._generated += 1
        channels, limits = self._channels, self._limits
        was_final = self._in_final
        is_content = channels is not None and channels.take(token)
        if token in self._stop_tokens:
            return Outcome(kept, finish="stop")
        if self._strings is not None:
            stop = self._strings.feed(token, is_content and channels is not None and channels.is_for_user)
            if stop is not None:
                return Outcome(kept, finish="stop", stop=stop)
        if was_final and not self._in_final:
            return Outcome(kept, finish="stop")
        if self._generated >= self._max_tokens:
            return Outcome(kept, finish="length")
        if channels is not None and channels.in_content and channels.channel in limits:
            limit = limits[channels.channel].max
            if limit is not None and self._count(channels.channel) >= limit:
                return self._close(kept, channels)
        return None

    def _close(self, kept: int, channels: Channels) -> Outcome:
        """The outcome where the current message has reached its channel's limit."""
        if channels.channel == "final" or channels.is_call:
            return Outcome(kept, finish="length")
        forced = self._to_final
        if self._matcher is not None:
            path = self._matcher.close_reasoning()
            if path is None or not self._matcher.force(path):
                return Outcome(kept, finish="length")
            forced = tuple(path)
        elif self._headers is not None and not self._headers.force(forced):
            return Outcome(kept, finish="length")
        if self._generated + len(forced) >= self._max_tokens:
            return Outcome(kept, finish="length")
        self._generated += len(forced)
        for token in forced:
            is_content = channels.take(token)
            if self._strings is not None:
                self._strings.feed(token, is_content and channels.is_for_user)
        return self._continue(kept, forced)

    def _continue(self, kept: int, forced: tuple[int, ...] = ()) -> Outcome:
        """The outcome where the sequence continues. Raises RequestError if the grammar became too complex."""
        self._ban = self._banned()
        if self._matcher is not None:
            self._mask = self._matcher.mask()
        elif self._headers is not None:
            self._mask = self._headers.mask(self._ban[0])
        if self._mask is not None and not _leaves_any(self._mask, self._ban[0]):
            return Outcome(kept, forced, finish="length")
        return Outcome(kept, forced)

    def _refuses(self, token: int) -> bool:
        """True if the token is not allowed here. If False, the matcher has taken the token."""
        if (token in self._stop_tokens or token in self._enders) and token in self._banned()[0]:
            return True
        if self._headers is not None:
            return not self._headers.take(token)
        return self._matcher is not None and self._matcher.accept((token,)) == 0

    def _ban_changes(self) -> bool:
        """True if the banned tokens from here on differ from those that the device was given.

        Then all later tokens are drawn again, even those that are not banned: another ban changes what top-p
        keeps.
        """
        if not self._has_minimum:
            return False
        given, until = self._ban
        return self._banned()[0] != (given if self._generated < until else frozenset())

    def _banned(self) -> tuple[frozenset[int], int]:
        """The banned tokens, and the least length of the completion at which the ban may end."""
        bans = []
        if self._generated < self._min_tokens:
            bans.append((self._stop_tokens, self._min_tokens))
        channels = self._channels
        if channels is not None and channels.in_content and channels.channel in self._limits:
            missing = self._limits[channels.channel].min - self._count(channels.channel)
            if missing > 0:
                bans.append((self._enders, self._generated + missing))
        if not bans or self.grammar_complete:
            return frozenset(), 0
        until = min(self._max_tokens, *(until for _, until in bans))
        return frozenset().union(*(ids for ids, _ in bans)), until

    @property
    def _in_final(self) -> bool:
        """True in the content of a `final` message, if there are channel limits: it is the last message."""
        channels = self._channels
        return bool(self._limits) and channels is not None and channels.channel == "final"

    def _count(self, channel: str) -> int:
        return self._channels.counts.get(channel, 0) if self._channels is not None else 0


def _leaves_any(mask: np.ndarray, banned: Collection[int]) -> bool:
    """Whether a mask allows any token that is not banned."""
    if not banned:
        return bool(mask.any())
    rest = mask.copy()
    for token in banned:
        if token // 32 < rest.size:
            rest[token // 32] &= ~(1 << token % 32) & 0xFFFFFFFF
    return bool(rest.any())


class _StopStrings:
    """Finds stop strings in a message's text for the user, however it is split into tokens.

    It searches bytes. In UTF-8 no character begins inside another's bytes, so a string's bytes occur exactly
    where its characters do.
    """

    def __init__(self, encoding: HarmonyEncoding, strings: Sequence[str]) -> None:
        self._encoding = encoding
        self._wanted = [(string, string.encode()) for string in strings]
        self._longest = max(len(data) for _, data in self._wanted)
        self._before = b""  # the message's last bytes, one fewer than the longest string has

    def feed(self, token: int, is_text: bool) -> str | None:
        """Takes a token. Returns the stop string that ends in it, the one that begins first; else None.

        `is_text`: True if the token is text for the user. No string extends across a token that is not.
        """
        if not is_text:
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


def _refuse_without_encoding(sampling: SamplingParams) -> None:
    for name in ("stop", "reasoning_budget", "channel_limits", "grammar", "header_guard"):
        if getattr(sampling, name):
            raise RequestError(f"{name} needs an engine with an encoding: this one has none")
