"""`HeaderGuard`: what the headers of a completion may say, as a plain value."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from gptoss_jax.engine.grammar.spec import GrammarError
from gptoss_jax.engine.values import as_items
from harmony.errors import shown

if TYPE_CHECKING:  # it needs pydantic, which this value does without
    from harmony import Conversation

CHANNELS = ("analysis", "commentary", "final")
CALL_CHANNELS = ("analysis", "commentary")
CONTENT_TYPES = ("json", "code")


@dataclasses.dataclass(frozen=True)
class HeaderGuard:
    """What may stand between `<|start|>` and `<|message|>` in a completion, and which token ends a message.

    Each message is the assistant's and names a channel. `<|return|>` ends a `final` message, `<|call|>` a
    call, `<|end|>` any other message. A call is an `analysis` or `commentary` message to one of the
    recipients, which stands after the role or after the channel. Calls and `final` messages may name a
    content type, with or without `<|constrain|>`. Content is free text.

    recipients: the tools that may be called, as headers name them: `functions.NAME`, `browser.search`,
        `python`. Empty: no call is possible.
    channels: the channels that a message may have; `final` must be one of them.
    content_types: the content types that a header may name; empty for none.

    Raises:
        GrammarError: a field is not what it must be.
    """

    recipients: tuple[str, ...] = ()
    channels: tuple[str, ...] = CHANNELS
    content_types: tuple[str, ...] = CONTENT_TYPES

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            object.__setattr__(self, field.name, _words(field.name, getattr(self, field.name)))
        if "final" not in self.channels:
            raise GrammarError(f"channels is {shown(self.channels)}: 'final' must be one of them")
        if self.recipients and not self.call_channels:
            raise GrammarError(
                f"channels is {shown(self.channels)}: calls of the recipients need 'analysis' or 'commentary'"
            )

    @property
    def call_channels(self) -> tuple[str, ...]:
        """The channels on which a call may stand."""
        return tuple(channel for channel in self.channels if channel in CALL_CHANNELS)

    @classmethod
    def for_conversation(cls, conversation: Conversation) -> HeaderGuard | None:
        """The guard that allows the tools and channels that a conversation declares.

        The channels are those of the system message, and `final`, and `commentary` if there are tools. A tool
        whose name cannot stand in a header is left out. Returns None if a system or developer message is
        plain text, because the tools that it declares are not known.
        """
        from harmony import DeveloperContent, Role, SystemContent
        from harmony.header import is_word

        channels: list[str] = []
        recipients: list[str] = []
        for message in conversation:
            for part in message.content:
                if isinstance(part, SystemContent):
                    declared = part.channel_config
                    channels += declared.valid_channels if declared is not None else []
                if isinstance(part, SystemContent | DeveloperContent):
                    for namespace in (part.tools or {}).values():
                        names = [f"{namespace.name}.{tool.name}" for tool in namespace.tools]
                        recipients += names or [namespace.name]
                elif message.author.role in (Role.SYSTEM, Role.DEVELOPER):
                    return None
        recipients = [name for name in recipients if is_word(name)]
        channels = [name for name in channels if is_word(name)] or list(CHANNELS)
        added = ["commentary"] * bool(recipients) + ["final"]
        return cls(tuple(recipients), (*channels, *added))


def _words(field: str, value: object) -> tuple[str, ...]:
    """The words of a field without repetitions. Raises GrammarError for anything that is no word."""
    from harmony.header import is_word

    words = None if isinstance(value, str) else as_items(value)
    if words is None:
        raise GrammarError(f"{field} is {shown(value)}: it must be a tuple of words")
    for word in words:
        if not isinstance(word, str) or not is_word(word) or not _is_unicode(word):
            raise GrammarError(f"{field} holds {shown(word)}: it must be one word without special tokens")
    return tuple(dict.fromkeys(words))


def _is_unicode(word: str) -> bool:
    try:
        word.encode()
    except UnicodeEncodeError:
        return False
    return True
