"""Headers as models really write them, read in any order and without ever failing.

A header is given as pieces: what stands before any special token, what follows each `<|channel|>` and what
follows each `<|constrain|>`. Reading by pieces, not by text, means that no word can pass for a special
token.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Literal

from .events import Problem
from .header import CONSTRAIN, author_of
from .messages import Author, RecipientPlace, Role

CHANNELS = ("analysis", "commentary", "final")
"""From the most guarded to what everybody reads."""

Kind = Literal["role", "channel", "constrain"]
Piece = tuple[Kind, str]

# Longer than any real header; more words are an answer that the model began without `<|message|>`.
_MOST_WORDS = 8

_RECIPIENT_WORD = re.compile(r"(?<!\S)to=(\S*)")
_LEADING = {
    "role": re.compile(r"\s*(\S+)"),
    "channel": re.compile(rf"\s*((?:{'|'.join(CHANNELS)})(?![a-z])|\S+(?=\s*$|\s+to=))"),
    "constrain": re.compile(r"\s*([A-Za-z][\w.+/-]*)(?=\s*$|\s+to=|\s*[\[{\"])"),
    "recipient": re.compile(r"\s*to=([\w.:@/-]+)"),
}


@dataclass
class RecoveredHeader:
    """What a header says, and the text in it that is none of its parts."""

    author: Author | None = None
    recipient: str | None = None
    channel: str | None = None
    content_type: str | None = None
    recipient_place: RecipientPlace = "role"
    text_before_channel: str = ""
    """Text from before the channel was named: it must not be taken for text of that channel."""
    text: str = ""
    """Text from after the channel."""
    problems: list[Problem] = field(default_factory=list)

    def take_recipient(self, value: str, kind: Kind) -> None:
        """Notes what followed `to=` in a piece; the first counts."""
        if not value:
            self.problems.append("empty_recipient")
        elif self.recipient is None:
            self.recipient = value
            self.recipient_place = "role" if kind == "role" else "channel"
        elif self.recipient != value:
            self.problems.append("two_recipients")

    def take_channel(self, value: str) -> None:
        """Notes a channel; the first counts, but `analysis` before any other."""
        if self.channel is None:
            self.channel = value
        elif self.channel != value:
            self.problems.append("two_channels")
            if value == "analysis":
                self.channel = value

    def take_content_type(self, value: str) -> None:
        """Notes a content type; the first counts."""
        if self.content_type is None:
            self.content_type = value
        elif self.content_type != value:
            self.problems.append("two_content_types")


def read_header(pieces: list[Piece], role: Role | None, *, ended: bool) -> RecoveredHeader:
    """Reads a header; `role` is the author's where the pieces start after it.

    `ended` says that `<|message|>` followed. If not, only what stands in its place at the front is header
    and the rest is text: an answer that the model wrote without `<|message|>`.
    """
    header = RecoveredHeader()
    if role is not None and role is not Role.TOOL:
        header.author = Author(role=role)
    words = sum(len(text.split()) for _, text in pieces)
    if ended and words <= _MOST_WORDS:
        _read_any_order(header, pieces, role)
    else:
        _read_front(header, pieces, role)
    if header.channel is None:
        header.text, header.text_before_channel = header.text_before_channel, ""
    return header


def _read_any_order(header: RecoveredHeader, pieces: list[Piece], role: Role | None) -> None:
    before: list[str] = []
    after: list[str] = []
    for kind, text in pieces:
        for recipient in _RECIPIENT_WORD.findall(text):
            header.take_recipient(recipient, kind)
        words = _RECIPIENT_WORD.sub("", text).split()
        if kind == "role" and words and (header.author is None or words[0] == role):
            word = words.pop(0)
            header.author = header.author or author_of(word)
        elif kind == "channel":
            if words:
                header.take_channel(words.pop(0))
            else:
                header.problems.append("empty_channel")
        elif kind == "constrain":
            header.take_content_type(CONSTRAIN + (words.pop(0) if words else ""))
        (before if header.channel is None else after).extend(words)
    if len(before) + len(after) == 1 and header.content_type is None:
        header.content_type = (before or after)[0]
    else:
        header.text_before_channel = " ".join(before)
        header.text = " ".join(after)


def _read_front(header: RecoveredHeader, pieces: list[Piece], role: Role | None) -> None:
    before: list[str] = []
    after: list[str] = []
    for kind, text in pieces:
        position = 0
        found = _LEADING[kind].match(text)
        if kind == "role":
            word = found.group(1) if found else ""
            names_role = author_of(word).role is not Role.TOOL
            if found and (word == role or (header.author is None and names_role)):
                header.author = header.author or author_of(word)
                position = found.end()
        elif kind == "channel":
            if found and not found.group(1).startswith("to="):
                header.take_channel(found.group(1))
                position = found.end()
            else:
                header.problems.append("empty_channel")
        elif found and not found.group(1).startswith("to="):
            header.take_content_type(CONSTRAIN + found.group(1))
            position = found.end()
        while recipient := _LEADING["recipient"].match(text, position):
            header.take_recipient(recipient.group(1), kind)
            position = recipient.end()
        rest = text[position:]
        if rest.strip():
            (before if header.channel is None else after).append(rest)
    header.text_before_channel = "".join(before).lstrip()
    header.text = "".join(after).lstrip()
