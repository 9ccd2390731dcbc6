"""Which chain of thought stays in the prompt: the policies that drop old `analysis` messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from .messages import Message, Role

AnalysisPolicy = Literal["compatible", "guide", "none"]
"""`compatible`: as openai-harmony 0.0.8 does. `guide`: as OpenAI's guide says. `none`: drops nothing."""


def without_old_analysis(messages: Sequence[Message], policy: AnalysisPolicy) -> Sequence[Message]:
    """The messages that stay in the prompt under a policy.

    "compatible" does nothing unless the last assistant message is final. Then it drops the `analysis`
    messages before the *first* final message. "guide" drops the `analysis` messages before the *last* final
    message, and the results of the calls among them. The analysis of a turn that is not finished stays.
    """
    finals = [index for index, message in enumerate(messages) if message.channel == "final"]
    if policy == "none" or not finals:
        return messages
    if policy == "compatible":
        by_assistant = [message for message in messages if message.author.role is Role.ASSISTANT]
        if not by_assistant or by_assistant[-1].channel != "final":
            return messages
        return [
            message
            for index, message in enumerate(messages)
            if index > finals[0] or not _is_analysis(message)
        ]
    answers = [index for index in finals if messages[index].author.role is Role.ASSISTANT]
    return _without_analysis_before(messages, answers[-1]) if answers else messages


def _without_analysis_before(messages: Sequence[Message], last_final: int) -> list[Message]:
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
