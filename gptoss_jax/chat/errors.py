"""What a user of the chat is told, in one line."""

from __future__ import annotations


class ChatError(ValueError):
    """An answer, a command or a file of the chat failed; the message says why, in one line."""


def one_line(reason: object, longest: int = 400) -> str:
    """The words of an error in one line of at most `longest` characters."""
    text = " ".join(str(reason).split())
    return text if len(text) <= longest else text[: longest - 1] + "…"
