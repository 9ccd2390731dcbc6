"""What can go wrong, as two exceptions."""

from __future__ import annotations


class HarmonyError(RuntimeError):
    """Tokens or messages that the harmony format cannot express (the known library's error)."""


class HarmonyFormatError(ValueError):
    """Input of another format (an API body, a vocabulary file) is not what it must be.

    The message is one line that names the field, its value and what is allowed.
    """


def shown(value: object, limit: int = 60) -> str:
    """`repr` of a value, shortened so that an error stays one readable line."""
    try:
        text = repr(value)
    except RecursionError:
        text = f"a {type(value).__name__} nested too deeply to be shown"
    return text if len(text) <= limit else text[: limit - 1] + "…"
