"""Reads headers as openai-harmony does: as text, by the position of each word.

`recovered_header` reads malformed headers too. Both use the rules here for the words that a header can have.
"""

from __future__ import annotations

import json
import re
from typing import NamedTuple

from .errors import HarmonyError
from .messages import Author, Message, Role, TextContent
from .splitting import WHITE_SPACE

CHANNEL = "<|channel|>"
CONSTRAIN = "<|constrain|>"

_FORBIDDEN = re.compile(r"\s|<\||\|>")
_TRIMMED = "".join(sorted(WHITE_SPACE))
_CHANNEL_END = re.compile(f"[{_TRIMMED}<]")
_ASCII_SPACES = re.compile(r"[ \t\n\f\r]+")


def is_word(value: str) -> bool:
    """True if a name, channel or recipient can stand in a header without changing the rest of it."""
    return bool(value) and not _FORBIDDEN.search(value) and not value.startswith("to=")


def is_content_type(value: str) -> bool:
    """True if a content type can stand in a header without changing the rest of it.

    It is words separated by spaces, or `<|constrain|>` followed by any number of such words, also none.
    """
    words = [word for word in value.removeprefix(CONSTRAIN).split(" ") if word]
    return all(map(is_word, words)) and (bool(words) or value.startswith(CONSTRAIN))


class Header(NamedTuple):
    """What a header says. A field that is None is absent from it."""

    author: Author
    recipient: str | None
    channel: str | None
    content_type: str | None

    def message(self, text: str) -> Message:
        """The message with this header and one text part."""
        return Message.model_construct(
            author=self.author.model_copy(),
            content=[TextContent(text=text)],
            channel=self.channel,
            recipient=self.recipient,
            content_type=self.content_type,
        )


def parse_header(text: str, role: Role | None) -> Header:
    """Reads a whole header. Raises HarmonyError if words are left over, and as `parse_leading_header`."""
    header, rest = parse_leading_header(text, role, reads_recipient=True)
    if rest is not None:
        raise HarmonyError(
            f"unexpected tokens remaining in message header: Some({json.dumps(rest, ensure_ascii=False)})"
        )
    return header


def parse_leading_header(text: str, role: Role | None, *, reads_recipient: bool) -> tuple[Header, str | None]:
    """Reads a header; returns it and the words that are left over, or None if there are none.

    With a `role`, the text starts after the role. With `reads_recipient=False` only the role and the channel
    are read, and all other words are left over. Raises HarmonyError if the header has no role or its channel
    is empty.
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
    """The author, and the words after it.

    If the first word is not a role and others follow, it is a tool's name.
    """
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
    """The author that a header writes as this word, such as `user:alice`.

    A word that is not a role is a tool's name.
    """
    head, colon, name = word.partition(":")
    if head in Role._value2member_map_ and head != Role.TOOL.value:
        if not colon:
            return Author(role=Role(head))
        if name:
            return Author(role=Role(head), name=name)
    return Author(role=Role.TOOL, name=word)
