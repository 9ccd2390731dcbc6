"""Text from outside, as text that can be written as UTF-8."""

from __future__ import annotations


def without_surrogates(text: str) -> str:
    """The text with pairs of surrogates joined, and `U+FFFD` for each that is alone.

    Terminals, JSON escapes and odd servers can bring them; neither files nor requests can carry them.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text
