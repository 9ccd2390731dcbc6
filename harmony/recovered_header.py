"""Reads headers as models really write them: in any order, and without ever raising.

A header is given as pieces: the text before any special token, the text after each `<|channel|>`, and the
text after each `<|constrain|>`. Because special tokens are not in the text, no word can be mistaken for one.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from .events import Problem
from .header import CONSTRAIN, author_of, is_word
from .messages import Author, RecipientPlace, Role

CHANNELS = ("analysis", "commentary", "final")
"""From the most guarded channel, which end users must not see, to the one that they read."""

CONTENT_TYPES = frozenset(
    ("json", "code", "text", "python", "markdown", "html", "xml", "yaml", "javascript", "typescript", "sql")
)
"""The words that count as a content type without `<|constrain|>` where users read the text.

Any other word there may be the beginning of the answer.
"""

Kind = Literal["role", "channel", "constrain"]
Piece = tuple[Kind, str]

# No real header has more words. With more, the model began its answer without `<|message|>`.
_MAX_WORDS = 8

_LEADING = {
    "role": re.compile(r"\s*(\S+)"),
    # `analysis` counts even where a word is glued to it: what follows may be chain of thought.
    "channel": re.compile(rf"\s*((?:{'|'.join(CHANNELS)})(?![a-z])|\S+(?=\s*$|\s+to=)|analysis)"),
    "constrain": re.compile(r"\s*([A-Za-z][\w.+/-]*)(?=\s*$|\s+to=|\s*[\[{\"])"),
    "recipient": re.compile(r"\s*to=([\w.:@/-]+)"),
}


@dataclass
class RecoveredHeader:
    """What a header says, and the text in it that is not part of a header. None: the header does not say it.

    Every field can be rendered and then reads the same. A word for which that is not so counts as text.
    """

    author: Author | None = None
    recipient: str | None = None
    channel: str | None = None
    content_type: str | None = None
    recipient_place: RecipientPlace = "role"
    text_before_channel: str = ""
    """Text before the channel. It must not become text of that channel, which users may read."""
    text: str = ""
    """Text after the channel; all text, if there is no channel."""
    problems: list[Problem] = field(default_factory=list)

    def take_recipient(self, value: str, kind: Kind) -> bool:
        """Takes what follows `to=`; the first one counts. Returns False if it cannot be a recipient."""
        if not value:
            self.problems.append("empty_recipient")
        elif not is_word(value):
            return False
        elif value == "all":
            pass  # the same as no recipient, and rendered so
        elif self.recipient is None:
            self.recipient = value
            self.recipient_place = "role" if kind == "role" else "channel"
        elif self.recipient != value:
            self.problems.append("two_recipients")
        return True

    def take_author(self, word: str) -> bool:
        """Takes the author; the first one counts. Returns False if the word cannot be an author."""
        author = author_of(word)
        if author.name is not None and not is_word(author.name):
            return False
        self.author = self.author or author
        return True

    def take_channel(self, value: str) -> bool:
        """Takes a channel; `analysis` counts most, else the first one.

        Returns False if it cannot be a channel.
        """
        if not is_word(value):
            return False
        if self.channel is None:
            self.channel = value
        elif self.channel != value:
            self.problems.append("two_channels")
            if value == "analysis":
                self.channel = value
        return True

    def take_constrained_type(self, piece: str, word: str) -> bool:
        """Takes a content type: `word`, the first one of the `piece` after `<|constrain|>`.

        The first type counts. A single space before the word is kept, so that the header is rendered as it
        was sampled. Returns False if the word cannot be a content type.
        """
        if word and not is_word(word):
            return False
        value = CONSTRAIN + (f" {word}" if word and piece.startswith(f" {word}") else word)
        if self.content_type is None:
            self.content_type = value
        elif self.content_type != value:
            self.problems.append("two_content_types")
        return True

    def take_bare_type(self, word: str, *, before_channel: bool) -> bool:
        """Takes the only word left over as the content type. Returns False if it may be text instead.

        Where users read the text, the word may be the beginning of the answer, and in the content type they
        would not see it. Before the channel, only a call has a content type.
        """
        is_call = self.recipient is not None and self.channel != "final"
        is_of_assistant = self.author is None or self.author.role is Role.ASSISTANT
        is_read_by_users = is_of_assistant and not is_call and self.channel in ("commentary", "final")
        may_be_text = (is_read_by_users and word not in CONTENT_TYPES) or (before_channel and not is_call)
        if may_be_text or self.content_type is not None or not is_word(word):
            return False
        self.content_type = word
        return True


def read_header(pieces: Sequence[Piece], role: Role | None, ended: bool) -> RecoveredHeader:
    """Reads a header. With a `role`, the pieces start after the author's role; with None, they include it.

    `ended` is True if `<|message|>` followed. If not, the model wrote its answer without `<|message|>`: only
    the words at the front of each piece are header, the rest is text.
    """
    header = RecoveredHeader()
    if role is not None and role is not Role.TOOL:
        header.author = Author(role=role)
    words = sum(len(text.split()) for _, text in pieces)
    if ended and words <= _MAX_WORDS:
        _read_any_order(header, pieces, role)
    else:
        _read_front(header, pieces, role)
    if header.channel is None:
        header.text, header.text_before_channel = header.text_before_channel, ""
    return header


def _read_any_order(header: RecoveredHeader, pieces: Sequence[Piece], role: Role | None) -> None:
    before: list[str] = []
    after: list[str] = []
    for kind, text in pieces:
        words = [
            word
            for word in text.split()
            if not word.startswith("to=") or not header.take_recipient(word.removeprefix("to="), kind)
        ]
        first = words[0] if words else ""
        taken = False
        if kind == "role":
            taken = bool(first) and (header.author is None or first == role) and header.take_author(first)
        elif kind == "channel":
            taken = bool(first) and header.take_channel(first)
            if not first:
                header.problems.append("empty_channel")
        else:
            taken = header.take_constrained_type(text, first)
        (before if header.channel is None else after).extend(words[1:] if taken else words)
    if len(before) + len(after) == 1:
        is_before = bool(before) and header.channel is not None
        if header.take_bare_type((before or after)[0], before_channel=is_before):
            return
    header.text_before_channel = " ".join(before)
    header.text = " ".join(after)


def _read_front(header: RecoveredHeader, pieces: Sequence[Piece], role: Role | None) -> None:
    before: list[str] = []
    after: list[str] = []
    for kind, text in pieces:
        found = _LEADING[kind].match(text)
        word = found.group(1) if found else ""
        taken = False
        if kind == "role":
            names_role = author_of(word).role is not Role.TOOL
            if word == role or (header.author is None and names_role):
                taken = header.take_author(word)
        elif kind == "channel":
            taken = header.take_channel(word)
            if not taken:
                header.problems.append("empty_channel")
        elif word:
            taken = header.take_constrained_type(text, word)
        position = found.end() if found and taken else 0
        while recipient := _LEADING["recipient"].match(text, position):
            if not header.take_recipient(recipient.group(1), kind):
                break
            position = recipient.end()
        rest = text[position:]
        if rest.strip():
            (before if header.channel is None else after).append(rest)
    header.text_before_channel = "".join(before).lstrip()
    header.text = "".join(after).lstrip()
