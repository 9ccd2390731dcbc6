"""The output of a terminal program, as text to read."""

from __future__ import annotations

import re

_ESCAPE = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # colours and moves
    r"|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)"  # titles and links
    r"|\x1b[ -/]*[0-~]?"
)
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")


def readable(text: str) -> str:
    """The text without escape sequences, each line as it stands after its last carriage return.

    Other control characters become U+FFFD.
    """
    text = _ESCAPE.sub("", text).replace("\r\n", "\n")
    lines = [line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n")]
    return _CONTROL.sub("\ufffd", "\n".join(lines)).replace("\r", "")
