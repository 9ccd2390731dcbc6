"""Counts the content tokens of each channel of a completion, and tells which content is for the user."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from harmony import Cursor, Role

if TYPE_CHECKING:
    from harmony import HarmonyEncoding

USER_CHANNELS = ("final", "commentary")
"""The channels whose messages are text for the user, unless they have a recipient."""


class Channels(Cursor):
    """A `harmony.Cursor` over a completion that also counts its content tokens.

    is_plain: True while neither the prompt nor the completion has a `<|start|>`: all of it is plain text.
    counts: channel → content tokens of the completion, summed over the channel's messages.
    """

    def __init__(self, encoding: HarmonyEncoding, prompt: Sequence[int] = ()) -> None:
        """`prompt`: the tokens before the completion; empty means that `<|start|>assistant` precedes it.

        After a prompt without any `<|start|>`, everything is content until a message begins.
        """
        begin = len(prompt) - 1
        while begin >= 0 and prompt[begin] != encoding.start:
            begin -= 1
        open_message = prompt[begin:] if begin >= 0 else ()
        is_at_header = not prompt or encoding.decode(open_message) == "<|start|>assistant"
        super().__init__(encoding, Role.ASSISTANT if is_at_header else None)
        self.counts: dict[str | None, int] = {}
        self.is_plain = bool(prompt) and begin < 0
        if self.is_plain:
            self.in_content = True
        elif not is_at_header:
            for token in open_message:
                self.take(token)
            self.counts.clear()

    @property
    def is_for_user(self) -> bool:
        """True in content for the user: a `final` message, a preamble, or plain text.

        A preamble is a `commentary` message without a recipient. False in analysis, in calls, in messages
        that the model writes for another role, and in messages with no channel or an unknown one.
        """
        if not self.in_content or self.is_call:
            return False
        if self.message is None:
            return self.is_plain
        return self.channel in USER_CHANNELS and self.message.author.role is Role.ASSISTANT

    def take(self, token: int) -> bool:
        """Takes the next token. Returns True if it is content."""
        if token < self._ordinary and self.in_content:  # the common case, kept cheap
            self.counts[self.channel] = self.counts.get(self.channel, 0) + 1
            return True
        is_content = self._take_other(token)
        if is_content:
            self.counts[self.channel] = self.counts.get(self.channel, 0) + 1
        return is_content

    def _take_other(self, token: int) -> bool:
        if not self.is_plain:
            return self._take_special(token)
        if token != self._tokenizer.start and token not in self._ends:
            return True
        self.is_plain = self.in_content = False
        return self._take_special(token)
