"""Summaries of the chain of thought, made by a function of the user's or by the model itself."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import logging
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

from gptoss_jax.answers import ReasoningDelta, kind_of, text_of
from gptoss_jax.openai_api.response_stream import SummaryReady

if TYPE_CHECKING:
    from gptoss_jax.answers import Sample, StreamEvent
    from gptoss_jax.serve.generation import Generation

_logger = logging.getLogger("gptoss_jax.serve")

Summarize = Callable[[str], "str | Awaitable[str]"]
"""A text → its summary, at once or awaited. One that is not awaited runs in a thread."""

PROMPT = (
    "The user gives the notes of somebody who thinks about a question. Say in at most three plain sentences "
    "what they consider and decide. Quote nothing. Do not answer the question."
)
"""What the model is told that summarises its own chain of thought."""


SUMMARY_TOKENS = 256
"""The most tokens that the model thinks about a summary."""


def load_summarizer(name: str) -> Summarize:
    """The function of a name, `module:function`. The working directory counts as a place of modules.

    Raises:
        ValueError: there is none, in one line.
    """
    module, _, function = name.partition(":")
    if not module or not function:
        raise ValueError(f"{name!r} must be model, or module:function")
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        found = getattr(importlib.import_module(module), function)
    except Exception as error:  # the module is the user's, and raises what it likes
        reason = " ".join(str(error).split())
        raise ValueError(f"{name!r} cannot be loaded: {type(error).__name__}: {reason}") from None
    if not callable(found):
        raise ValueError(f"{name!r} is no function")
    loaded: Summarize = found
    return loaded


class Summarizer:
    """Calls a function that summarises, for some time. The log tells of faults, and the summary is empty."""

    def __init__(self, function: Summarize, seconds: float) -> None:
        """`seconds`: the most that one call may take. A function in a thread goes on after that, unheard."""
        self._function, self._seconds = function, seconds

    async def __call__(self, text: str) -> str:
        """The summary of a text; "" if there is none."""
        try:
            summary = await asyncio.wait_for(self._call(text), self._seconds)
        except TimeoutError:
            _logger.warning("the summarizer took more than %g seconds", self._seconds)
            return ""
        except Exception as error:
            # Its message may quote the chain of thought, which is in no log.
            _logger.warning("the summarizer failed: %s", type(error).__name__)
            return ""
        if not isinstance(summary, str):
            _logger.warning("the summarizer gave no text but a value of the type %s", type(summary).__name__)
            return ""
        return summary.encode("utf-8", "replace").decode().strip()

    async def _call(self, text: str) -> object:
        if inspect.iscoroutinefunction(self._function):
            return await self._function(text)
        made = await asyncio.to_thread(self._function, text)
        return await made if inspect.isawaitable(made) else made


def asks_for_summary(body: Mapping[str, Any]) -> bool:
    """Whether a body asks for summaries of the reasoning."""
    reasoning = body.get("reasoning") or {}
    asked = reasoning.get("summary") or reasoning.get("generate_summary")
    return asked in ("auto", "concise", "detailed")


async def summaries_of(sample: Sample, summarize: Summarizer) -> dict[int, str]:
    """The summaries of a sample's reasoning, by the numbers of its messages."""
    found = {}
    for number, message in enumerate(sample.messages):
        if kind_of(message) == "reasoning" and text_of(message):
            found[number] = await summarize(text_of(message))
    return {number: summary for number, summary in found.items() if summary}


async def with_summaries(
    generation: Generation, summarize: Summarizer
) -> AsyncIterator[list[StreamEvent | SummaryReady]]:
    """The events of a generation of one sample. Where a reasoning message has ended, what follows waits for
    its summary."""
    number: int | None = None
    texts: list[str] = []
    async for events in generation:
        said: list[StreamEvent | SummaryReady] = []
        for event in events:
            goes_on = isinstance(event, ReasoningDelta) and event.message == number
            if number is not None and not goes_on:
                if said:
                    yield said
                summary = await summarize("".join(texts))
                said = [SummaryReady(number, summary)] if summary else []
                number, texts = None, []
            if isinstance(event, ReasoningDelta):
                number = event.message
                texts.append(event.text[len(event.separator) :])
            said.append(event)
        yield said
