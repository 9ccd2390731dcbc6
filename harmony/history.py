"""Which chain of thought stays in the prompt: the policies for leaving out `analysis` messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from .messages import Message, Role

AnalysisPolicy = Literal["compatible", "guide", "none"]
"""`compatible`: what openai-harmony 0.0.8 does. `guide`: what the format's guide says. `none`: all stays."""


def without_old_analysis(messages: Sequence[Message], policy: AnalysisPolicy) -> Sequence[Message]:
    """The messages that the policy leaves in the prompt.

    "compatible" acts only when the last assistant message is final, and then drops the `analysis` messages
    before the *first* final one. "guide" drops those before the *last* final one, also while the model is
    at work on a later turn, whose analysis stays; the result of a dropped call goes with it.
    """
    finals = [index for index, message in enumerate(messages) if message.channel == "final"]
    if policy == "none" or not finals:
        return messages
    if policy == "compatible":
        said = [message for message in messages if message.author.role is Role.ASSISTANT]
        if not said or said[-1].channel != "final":
            return messages
        return [
            message
            for index, message in enumerate(messages)
            if index > finals[0] or not _is_analysis(message)
        ]
    spoken = [index for index in finals if messages[index].author.role is Role.ASSISTANT]
    return _guided(messages, spoken[-1]) if spoken else messages


def _guided(messages: Sequence[Message], last_final: int) -> list[Message]:
    kept = []
    dropped_calls: list[str] = []
    for index, message in enumerate(messages):
        if message.author.role is Role.TOOL and message.author.name in dropped_calls:
            dropped_calls.remove(message.author.name)
        elif index < last_final and _is_analysis(message):
            if message.author.role is Role.ASSISTANT and message.recipient is not None:
                dropped_calls.append(message.recipient)
        else:
            kept.append(message)
    return kept


def _is_analysis(message: Message) -> bool:
    return message.channel == "analysis"
