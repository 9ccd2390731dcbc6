"""Surrogates in a `str`: halves of a UTF-16 pair.

JSON escapes can leave them, and UTF-8 cannot encode them.
"""

from __future__ import annotations

from typing import Literal

from .errors import shown


def without_surrogates(text: str, errors: Literal["strict", "replace"] = "strict") -> str:
    """The text with each pair of surrogates joined into the character that it stands for.

    A lone surrogate raises ValueError; with `errors="replace"` it becomes U+FFFD instead.
    """
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        try:
            return text.encode("utf-16", "surrogatepass").decode("utf-16", errors)
        except UnicodeDecodeError:
            raise ValueError(f"{shown(text)} is not Unicode text: it has a lone surrogate") from None
    return text
