"""What a chat needs of whatever answers it: an engine in this process, or a server."""

from __future__ import annotations

import dataclasses
from collections.abc import Generator, Sequence
from typing import Any, Literal, Protocol

ChatMessage = dict[str, Any]
"""A message as in Chat Completions: "role", "content", and for the assistant also "reasoning" and
"tool_calls". An assistant message that was cut has "finish_reason" too: "length", "cancelled" or "error"."""


@dataclasses.dataclass(frozen=True, slots=True)
class Piece:
    """New text of an answer: of the chain of thought, or for the user (preambles and the final text)."""

    kind: Literal["reasoning", "content"]
    text: str


@dataclasses.dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer.

    message: the assistant's message. It has "tool_calls" only if their results are expected.
    finish_reason: as in Chat Completions: "stop", "length", "tool_calls" or what else a server says.
    generated_tokens: tokens of the answer, reasoning included; None if a server does not say.
    reasoning_tokens: the part of them that is reasoning; None if a server does not say.
    """

    message: ChatMessage
    finish_reason: str
    generated_tokens: int | None
    reasoning_tokens: int | None


class Backend(Protocol):
    """Answers conversations."""

    name: str
    """What the model is called."""

    def answer(self, messages: Sequence[ChatMessage], effort: str | None) -> Generator[Piece | Answer]:
        """The pieces of the next answer as they come, then the whole. Closing the iterator ends the request.

        `effort` is "low", "medium" or "high"; None leaves it to the model's or the server's default.

        Raises:
            ChatError: there is no answer, or it broke off.
        """

    def close(self) -> None:
        """Frees what it holds."""
