"""The exceptions of this package, and how they show the value that caused them."""

from __future__ import annotations


class HarmonyError(RuntimeError):
    """Messages or tokens that the harmony format cannot express; `openai_harmony` has the same exception."""


class TokenRangeError(HarmonyError, OverflowError):
    """An integer that cannot be a token id: negative, or longer than 32 bits.

    It is an OverflowError too, because that is what openai-harmony raises here. For an id that is merely
    outside the vocabulary both libraries raise HarmonyError.
    """


class HarmonyFormatError(ValueError):
    """Invalid input in another format: an API body, a ChatML transcript, a vocabulary file.

    The message is one line that names the field, its value and what is allowed.
    """


def shown(value: object, limit: int = 60) -> str:
    """`repr(value)` on one line of at most `limit` characters, for an error message."""
    try:
        text = repr(value)
    except RecursionError:
        text = f"a {type(value).__name__} nested too deeply to be shown"
    except Exception:  # an int of thousands of digits, or a class whose repr fails
        text = f"a {type(value).__name__} that cannot be shown"
    return _shortened(text, limit)


def shown_json(value: object, limit: int = 60) -> str:
    """A value of a JSON body as JSON writes it (`null`, `"x"`), on one line of at most `limit` characters.

    What is not JSON data is shown as `shown` does.
    """
    import json  # every module imports this one, and most programs see no error

    try:
        text = json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):
        return shown(value, limit)
    if not text.isprintable():
        text = "".join(char if char.isprintable() else json.dumps(char)[1:-1] for char in text)
    return _shortened(text, limit)


def _shortened(text: str, limit: int) -> str:
    text = " ".join(line.strip() for line in text.splitlines())
    return text if len(text) <= limit else text[: limit - 1] + "…"
