"""Shows one conversation in harmony and in ChatML side by side, aligned turn by turn."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import takewhile, zip_longest
from typing import NamedTuple

from gptoss_jax.commands.harmony.convert import chatml_of, losses_by_message
from gptoss_jax.commands.harmony.rendering import RenderedMessage
from gptoss_jax.terminal import Paint, display_width, printable, wrapped
from harmony import Conversation, HarmonyEncoding, Role

_CONTROL_TOKENS = re.compile(r"<\|im_start\|>|<\|im_end\|>")
_BAR = " │ "


class _Row(NamedTuple):
    """Consecutive messages, and the same ones as ChatML; `first` is the index of the first message."""

    first: int
    messages: list[RenderedMessage]
    chatml: str


def side_by_side(
    encoding: HarmonyEncoding, rendered: list[RenderedMessage], source: str, width: int, paint: Paint
) -> Iterator[str]:
    """The lines of the view, at most `width` columns wide.

    The last ones have the totals and what ChatML loses.
    """
    conversation = Conversation(messages=[message for message, _ in rendered])
    whole = chatml_of(conversation, source)
    half = max(10, (width - len(_BAR)) // 2)

    def line(left: str, right: str, *style: str) -> str:
        padded = left + " " * (half - display_width(left))
        return f"{paint(padded, *style)}{paint(_BAR, 'dim')}{paint(right, *style)}".rstrip()

    yield line("harmony", "ChatML", "bold")
    for row in _rows(rendered, whole):
        tokens = [token for _, tokens in row.messages for token in tokens]
        last = row.first + len(row.messages) - 1
        which = f"{row.first}" if last == row.first else f"{row.first}–{last}"
        yield line(
            f"── {which}: {len(tokens)} tokens", f"── {chatml_size(encoding, row.chatml)} tokens", "cyan"
        )
        # Each message begins a new line here; in the rendered text there are no such line breaks.
        harmony = [text for _, one in row.messages for text in wrapped(printable(encoding.decode(one)), half)]
        chatml = wrapped(printable(row.chatml.removesuffix("\n")), half) if row.chatml else iter(())
        for left, right in zip_longest(harmony, chatml, fillvalue=""):
            yield line(left, right)
    total = sum(len(tokens) for _, tokens in rendered)
    yield line(f"── in all: {total} tokens", f"── in all: {chatml_size(encoding, whole)} tokens", "bold")
    yield ""
    yield from wrapped(
        "Both are counted with the same vocabulary, <|im_start|> and <|im_end|> as one token each.", width
    )
    lost = losses_by_message(conversation)
    yield paint("Lost in ChatML:" if lost else "Nothing is lost in ChatML.", "bold")
    for one in lost:
        yield from wrapped(f"  {one}", width)


def chatml_size(encoding: HarmonyEncoding, text: str) -> int:
    """The number of tokens of a ChatML text; its two control tokens count as one token each."""
    parts = _CONTROL_TOKENS.split(text)
    return len(parts) - 1 + sum(len(encoding.encode_ordinary(part)) for part in parts)


def _rows(rendered: Sequence[RenderedMessage], whole: str) -> list[_Row]:
    """The messages in groups that can be converted to ChatML one by one; if that fails, one group of all.

    ChatML puts instructions and functions together at the front. It also joins what the assistant writes in
    one turn, and the results that follow each other.
    """
    roles = [message.author.role for message, _ in rendered]
    front = sum(1 for _ in takewhile(lambda role: role in (Role.SYSTEM, Role.DEVELOPER), roles))
    rows: list[_Row] = []
    start = 0
    for end in range(1, len(rendered) + 1):
        is_joined = end < front or (
            end < len(rendered) and roles[end] is roles[end - 1] and roles[end] in (Role.ASSISTANT, Role.TOOL)
        )
        if not is_joined:
            part = list(rendered[start:end])
            chatml = chatml_of(Conversation(messages=[message for message, _ in part]), "")
            rows.append(_Row(start, part, chatml))
            start = end
    return rows if "".join(row.chatml for row in rows) == whole else [_Row(0, list(rendered), whole)]
