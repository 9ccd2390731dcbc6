"""Following the messages of a completion, token by token: whose content is this?"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from harmony import HarmonyEncoding


class Channels:
    """Where a completion stands among its messages, and how many content tokens each channel had.

    A message's content begins after `<|message|>` and ends at `<|start|>` or at a token that ends a message;
    between contents everything is header. Nothing is ever malformed here: what the header of a message
    does not say is None.

    in_content: whether the next token is content, unless it ends the message.
    channel: of the message whose content this is; the words for it are those of `harmony`'s parsers.
    is_call: whether that message is for a tool: its header has a recipient.
    counts: channel → its content tokens in the completion, those of all messages together.
    """

    __slots__ = ("_boundaries", "_encoding", "_header", "channel", "counts", "in_content", "is_call")

    def __init__(self, encoding: HarmonyEncoding, prompt: Sequence[int] = ()) -> None:
        """The completion follows `prompt`, or `<|start|>` and a role if that is empty.

        After a prompt without any `<|start|>`, plain text, everything is content until there is one.
        """
        self._encoding = encoding
        self._boundaries = frozenset((encoding.start, *encoding.stop_tokens()))
        self._header: list[bytearray] = [bytearray()]  # the role's part, then one for each `<|channel|>`
        self.in_content = False
        self.channel: str | None = None
        self.is_call = False
        self.counts: dict[str | None, int] = {}
        if prompt:
            begin = len(prompt) - 1
            while begin >= 0 and prompt[begin] != encoding.start:
                begin -= 1
            self.in_content = begin < 0
            for token in prompt[begin:] if begin >= 0 else ():
                self.take(token)
            self.counts.clear()

    @property
    def tokens_before_content(self) -> int:
        """The fewest tokens after which the content of another message than the current one can begin."""
        if self.in_content:
            return 4  # the end, then `<|channel|>`, a name, `<|message|>`
        return 3 if len(self._header) == 1 else 1

    def take(self, token: int) -> bool:
        """Takes the next token; whether it is content."""
        if token in self._boundaries:
            self.in_content, self.channel, self.is_call = False, None, False
            self._header = [bytearray()]
        elif self.in_content:
            self.counts[self.channel] = self.counts.get(self.channel, 0) + 1
            return True
        elif token == self._encoding.channel:
            self._header.append(bytearray())
        elif token == self._encoding.message:
            self._begin_content()
        elif token == self._encoding.constrain:
            self._header[-1] += b" "
        else:
            self._header[-1] += self._encoding.token_bytes(token) or b""
        return False

    def _begin_content(self) -> None:
        words = [part.split() for part in self._header]
        names = [
            next((word for word in part if not word.startswith(b"to=")), b"").decode(errors="replace")
            for part in words[1:]
        ]
        named = list(filter(None, names))
        self.channel = "analysis" if "analysis" in named else next(iter(named), None)
        recipients = [word for part in words for word in part if word.startswith(b"to=")]
        self.is_call = any(word not in (b"to=", b"to=all") for word in recipients)
        self.in_content = True


def count_content(encoding: HarmonyEncoding, completion: Iterable[int], channel: str) -> int:
    """How many tokens of a completion, which follows `<|start|>assistant`, are content of a channel."""
    channels = Channels(encoding)
    for token in completion:
        channels.take(token)
    return channels.counts.get(channel, 0)
