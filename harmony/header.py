"""Headers as the known library reads them: as text, by a few positional rules."""

from __future__ import annotations

import json
import re
from typing import NamedTuple

from .errors import HarmonyError
from .messages import Author, Message, Role, TextContent

CHANNEL = "<|channel|>"
CONSTRAIN = "<|constrain|>"

WHITE_SPACE = frozenset(
    "\t\n\v\f\r \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a"
    "\u2028\u2029\u202f\u205f\u3000"
)
"""Unicode's White_Space. Python's own idea of space has the separators U+001C to U+001F besides."""

_TRIMMED = "".join(sorted(WHITE_SPACE))
_CHANNEL_END = re.compile(f"[{_TRIMMED}<]")
_ASCII_SPACES = re.compile(r"[ \t\n\f\r]+")


class Header(NamedTuple):
    """What stands before `<|message|>`."""

    author: Author
    recipient: str | None
    channel: str | None
    content_type: str | None

    def message(self, text: str) -> Message:
        """The message with this header and one part of text."""
        return Message.model_construct(
            author=self.author.model_copy(),
            content=[TextContent(text=text)],
            channel=self.channel,
            recipient=self.recipient,
            content_type=self.content_type,
        )


def parse_header(text: str, role: Role | None) -> Header:
    """Reads a whole header. Raises HarmonyError when words are left over."""
    header, rest = parse_leading_header(text, role, reads_recipient=True)
    if rest is not None:
        raise HarmonyError(
            f"unexpected tokens remaining in message header: Some({json.dumps(rest, ensure_ascii=False)})"
        )
    return header


def parse_leading_header(text: str, role: Role | None, *, reads_recipient: bool) -> tuple[Header, str | None]:
    """Reads a header and returns what is left over.

    With `role` given, the text starts after the role. Without `reads_recipient` only the role and the
    channel are read and the rest is left over. Raises HarmonyError without a role, or when the channel is
    empty.
    """
    text, channel = _take_channel(text)
    text = text.strip(_TRIMMED).replace(CONSTRAIN, f" {CONSTRAIN}")
    words = [word for word in _ASCII_SPACES.split(text) if word]
    author, words = _author(words, role)
    recipient = content_type = None
    if reads_recipient and words:
        is_alone = len(words) == 1
        last = words.pop()
        if last.startswith("to="):
            recipient = last[3:]
        elif is_alone:
            recipient = last
        else:
            content_type = last
            recipient = words.pop().removeprefix("to=")
    return Header(author, recipient, channel, content_type), " ".join(words) if words else None


def _take_channel(text: str) -> tuple[str, str | None]:
    before, marker, after = text.partition(CHANNEL)
    if not marker:
        return text, None
    end = _CHANNEL_END.search(after)
    stop = end.start() if end else len(after)
    if stop == 0:
        raise HarmonyError("channel marker present but no channel value found in header")
    return before + after[stop:], after[:stop]


def _author(words: list[str], role: Role | None) -> tuple[Author, list[str]]:
    """The author and the words after it. An unknown first word with more behind it is a tool's name."""
    name = None
    if role is None:
        if not words:
            raise HarmonyError("message header did not contain a role")
        name = words[0]
        if name in Role._value2member_map_:
            role = Role(name)
        elif len(words) > 1 or name.startswith("to="):
            role, words = Role.TOOL, words[1:]
        else:
            raise HarmonyError(f"Unknown role: {name}")
    if words and words[0] == role.value:
        words = words[1:]
    return Author(role=role, name=name if role is Role.TOOL else None), words


def author_of(word: str) -> Author:
    """The author whose rendered form is this word; a word that names no role is a tool's name."""
    head, colon, name = word.partition(":")
    if head in Role._value2member_map_ and head != Role.TOOL.value:
        if not colon:
            return Author(role=Role(head))
        if name:
            return Author(role=Role(head), name=name)
    return Author(role=Role.TOOL, name=word)
