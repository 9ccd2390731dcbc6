"""The rounds of one sample: the model calls a built-in tool, the server runs it, the model goes on."""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import logging
from typing import TYPE_CHECKING

from gptoss_jax.answers import renderable, text_of
from gptoss_jax.engine.request import Request
from gptoss_jax.openai_api.rendering import render_prompt
from gptoss_jax.tools import ToolSessions, answer_to
from harmony import Conversation

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gptoss_jax.answers import BuiltInCall, Sample, Usage
    from gptoss_jax.engine.request import SamplingParams
    from gptoss_jax.openai_api import Rounds
    from gptoss_jax.tools import Tool
    from harmony import HarmonyEncoding, Message

_logger = logging.getLogger("gptoss_jax.serve")


@dataclasses.dataclass(frozen=True)
class ToolLimits:
    """Limits on what built-in tools may do for one sample.

    calls: how many calls are run. The round behind the last one can call none.
    seconds: how long a call may take.
    """

    calls: int
    seconds: float

    def at_most(self, calls: int | None) -> ToolLimits:
        """These limits, with no more calls than so many; None leaves them as they are."""
        return self if calls is None else dataclasses.replace(self, calls=min(calls, self.calls))


DEFAULT_LIMITS = ToolLimits(calls=50, seconds=150)
"""Longer than a cell of the Python tool may take, which says so itself."""


class ToolLoop:
    """One sample's calls of built-in tools, and the requests of its rounds.

    It belongs to one event loop, and must be closed: its sessions live as long as it does.
    """

    def __init__(
        self,
        first: Request,
        sample: int,
        rounds: Rounds,
        tools: Iterable[Tool],
        limits: ToolLimits,
        encoding: HarmonyEncoding,
    ) -> None:
        """`first`: the request of the first round. `sample`: which of its samples this is."""
        self._first, self._sample, self._rounds, self._limits = first, sample, rounds, limits
        self._encoding = encoding
        self._sessions = ToolSessions(tool for tool in tools if tool.name in rounds.tools)
        self._calls = 0

    def may_run(self, usage: Usage) -> bool:
        """Whether the limits allow another call, after rounds of so many tokens."""
        most = self._first.sampling.max_tokens
        return self._calls < self._limits.calls and (most is None or usage.generated_tokens < most)

    async def run(self, call: BuiltInCall) -> tuple[Message, bool]:
        """The result of a call, and whether the tool failed to give one. It raises nothing."""
        self._calls += 1
        message = renderable(call.message, self._encoding)
        try:
            async with asyncio.timeout(self._limits.seconds):
                result = await self._sessions.run(call.message)
            return answer_to(message, text_of(result)), False
        except TimeoutError:
            text = f"error: {call.message.recipient} was interrupted after {self._limits.seconds:g} seconds"
        except Exception as error:
            _logger.error("the tool %s failed: %s", call.message.recipient, type(error).__name__)
            text = f"error: {call.message.recipient} failed"
        return answer_to(message, text), True

    def next_request(self, sample: Sample, max_length: int) -> Request | None:
        """The request of the next round; None if its prompt, with the last result, is too long.

        `sample`: all rounds so far.
        """
        turn = (renderable(message, self._encoding) for message in sample.turn)
        conversation = Conversation(messages=[*self._rounds.conversation.messages, *turn])
        prompt = render_prompt(conversation, self._encoding, self._rounds.history)
        if len(prompt) >= max_length:
            return None
        return Request(f"{self._first.id}-{self._sample}-{self._calls}", prompt, self._sampling(sample.usage))

    def _sampling(self, used: Usage) -> SamplingParams:
        """How the next round's tokens are chosen, after rounds of so many tokens."""
        may_call = self._calls < self._limits.calls
        constraint = self._rounds.calling if may_call else self._rounds.answering
        sampling = self._first.sampling
        tokens, budget, seed = sampling.max_tokens, sampling.reasoning_budget, sampling.seed
        if seed is not None:  # numbers of its own: the first ones were drawn with the seed itself
            words = f"{seed} {self._sample} {self._calls}".encode()
            seed = int.from_bytes(hashlib.blake2b(words, digest_size=8).digest(), "little")
        return dataclasses.replace(
            sampling,
            grammar=constraint.grammar,
            header_guard=constraint.header_guard,
            n=1,
            seed=seed,
            max_tokens=None if tokens is None else tokens - used.generated_tokens,
            min_tokens=max(0, sampling.min_tokens - used.generated_tokens),
            reasoning_budget=None if budget is None else max(1, budget - used.reasoning_tokens),
        )

    async def close(self) -> None:
        """Ends the sessions."""
        try:
            await self._sessions.close()
        except Exception as error:
            _logger.error("a session of a tool failed to close: %s", type(error).__name__)
