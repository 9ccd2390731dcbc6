"""The code that a call of the Python tool means."""

from __future__ import annotations

import json
import re

_FENCED = re.compile(r"\s*(```+|~~~+)[^\n`]*\n(.*?)\n?[ \t]*\1[ \t]*\s*", re.DOTALL)


def code_of(text: str) -> str:
    """The code of a call's content, which is the code itself.

    Models also write it as the arguments of a function, `{"code": "…"}`, or between the fences of Markdown.
    Both are taken off, in this order.
    """
    if text.lstrip()[:1] == "{":
        try:
            arguments = json.loads(text, strict=False)  # code in JSON may have bare line feeds
        except (ValueError, RecursionError):
            arguments = None
        if isinstance(arguments, dict) and isinstance(arguments.get("code"), str):
            text = arguments["code"]
    fenced = _FENCED.fullmatch(text)
    return fenced[2] if fenced else text
