"""What a server is told when it starts."""

from __future__ import annotations

import dataclasses
from typing import Literal

from gptoss_jax.engine.request import SamplingParams
from gptoss_jax.openai_api.rendering import History
from gptoss_jax.serve.summaries import Summarize
from gptoss_jax.serve.tool_loop import DEFAULT_LIMITS, ToolLimits

MAX_BODY_BYTES = 16 << 20
MAX_SAMPLES = 2048
SUMMARY_SECONDS = 30


@dataclasses.dataclass(frozen=True)
class ServerSettings:
    """The settings of a server.

    model: the name under which it lists its model. Requests may name any.
    sampling, effort: for requests that do not say.
    date: the current date that the model is told, ``YYYY-MM-DD``; None for each day's own.
    history: how much of the earlier chain of thought stays in prompts.
    header_guard: True limits the headers of messages to the channels and functions that a request
        declares.
    hide_reasoning: True keeps the chain of thought out of all that leaves the server, whatever requests say.
    reasoning_share: where neither a request nor `sampling` has a reasoning budget, this part of the tokens
        that fit behind the prompt; None for no limit.
    reasoning_field: the field of chat messages and deltas that has the chain of thought.
    summarizer: what makes summaries of the chain of thought for requests that ask for them: a function, or
        "model" for the model itself; None for no summaries.
    summary_seconds: the most that making one may take.
    api_keys: a request must carry one of them; none lets everybody in.
    page: whether the page is at `/`.
    max_body_bytes: the longest body of a request.
    max_samples: samples that run or wait at the same time; a request beyond them is told to come back later.
    max_seconds: how long a request may wait and run; then it ends as it is. None for no limit.
    tool_limits: on what built-in tools do for one sample.
    """

    model: str = "gpt-oss"
    sampling: SamplingParams = dataclasses.field(default_factory=SamplingParams)
    effort: str | None = None
    date: str | None = None
    history: History = "guide"
    header_guard: bool = True
    hide_reasoning: bool = False
    reasoning_field: str = "reasoning"
    reasoning_share: float | None = None
    summarizer: Summarize | Literal["model"] | None = None
    summary_seconds: float = SUMMARY_SECONDS
    api_keys: tuple[str, ...] = ()
    page: bool = True
    max_body_bytes: int = MAX_BODY_BYTES
    max_samples: int = MAX_SAMPLES
    max_seconds: float | None = None
    tool_limits: ToolLimits = DEFAULT_LIMITS
