"""Conversations → prompts: how much of the earlier chain of thought stays in them."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Literal, get_args

from gptoss_jax.engine.grammar import HeaderGuard
from gptoss_jax.engine.request import RequestError, SamplingParams
from harmony import RenderConversationConfig, Role
from harmony.errors import shown
from harmony.history import AnalysisPolicy

if TYPE_CHECKING:
    from harmony import Conversation, HarmonyEncoding

History = Literal["guide", "compatible", "all"]
"""How much of the earlier chain of thought a prompt has.

"guide", the default: what the model was trained on. Reasoning before the last answer is left out. Reasoning
after it stays, as the model may still be at work, between calls of functions.
"compatible": what the `openai-harmony` package does. Reasoning is left out only where the conversation ends
with an answer, and then only what comes before the first answer.
"all": everything stays.
"""

_POLICIES: dict[History, AnalysisPolicy] = {"guide": "guide", "compatible": "compatible", "all": "none"}


def check_history(history: object) -> History:
    """The value, if it is a `History`. Raises RequestError if it is none."""
    for known in _POLICIES:
        if history == known:
            return known
    raise RequestError(f"history is {shown(history)}: it must be {' or '.join(get_args(History))}")


def render_prompt(conversation: Conversation, encoding: HarmonyEncoding, history: History) -> list[int]:
    """The tokens of a conversation up to where the assistant is to speak.

    Raises:
        HarmonyError: the conversation cannot be rendered.
    """
    config = RenderConversationConfig(analysis_policy=_POLICIES[history])
    return encoding.render_conversation_for_completion(conversation, Role.ASSISTANT, config)


def with_header_guard(sampling: SamplingParams, conversation: Conversation) -> SamplingParams:
    """Sampling parameters with the header guard that `HeaderGuard.for_conversation` makes.

    Parameters that already have a guard or a grammar are returned unchanged.
    """
    if sampling.grammar is not None or sampling.header_guard is not None:
        return sampling
    return dataclasses.replace(sampling, header_guard=HeaderGuard.for_conversation(conversation))
