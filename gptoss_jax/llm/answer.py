"""A completion's tokens → what the model said."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import TYPE_CHECKING, Literal

from harmony import ContentDelta, MessageStarted, RecoveringParser, Role, TextContent

if TYPE_CHECKING:
    from gptoss_jax.engine import Completion
    from harmony import Diagnostic, HarmonyEncoding, Message

AnswerReason = Literal["stop", "length", "tool_calls", "cancelled"]
"""Why an answer ended: the engine's reasons, and "tool_calls" for one that stopped to call a function."""

Kind = Literal["reasoning", "preamble", "text", "call"]
"""What a message is to those who read it."""


@dataclasses.dataclass(frozen=True)
class Answer:
    """A completion, parsed.

    `messages` are what the tokens say, with the text cut off from a stop string on; `calls` are those of them
    that call a function and are whole. `diagnostics` is what was wrong with the model's harmony (being cut
    short is not). `generated_tokens` counts the completion's tokens, `reasoning_tokens` the content tokens of
    its analysis messages, `cached_tokens` those of the prompt that were not computed anew.
    """

    messages: list[Message]
    calls: list[Message]
    diagnostics: list[Diagnostic]
    finish_reason: AnswerReason
    prompt_tokens: int
    cached_tokens: int
    generated_tokens: int
    reasoning_tokens: int


def read_answer(completion: Completion, encoding: HarmonyEncoding) -> Answer:
    """Parses a completion; malformed harmony is recovered and never raises."""
    parser = RecoveringParser(encoding)
    tokens = said_tokens(completion, encoding)
    events = parser.feed(tokens[:-1])
    length = 0  # of the open message's text before the last token
    for event in events:
        if isinstance(event, MessageStarted):
            length = 0
        elif isinstance(event, ContentDelta):
            length += len(event.text)
    parser.feed(tokens[-1:])
    before_end = parser.completion
    parser.finish()
    parsed = parser.completion
    messages = parsed.messages
    if completion.stop is not None and messages:
        messages[-1] = _cut(messages[-1], completion.stop, length)
    calls = [message for message in messages[: len(before_end.messages)] if message.is_call]
    finish_reason: AnswerReason = completion.finish_reason
    if finish_reason == "stop" and calls:
        finish_reason = "tool_calls"
    by_model = completion.finish_reason == "stop" and completion.stop is None
    ended = by_model and len(tokens) == len(completion.tokens)
    return Answer(
        messages=messages,
        calls=calls,
        diagnostics=(parsed if ended else before_end).diagnostics,
        finish_reason=finish_reason,
        prompt_tokens=completion.prompt_tokens,
        cached_tokens=completion.cached_tokens,
        generated_tokens=len(completion.tokens),
        reasoning_tokens=count_reasoning(completion.tokens, encoding),
    )


def said_tokens(completion: Completion, encoding: HarmonyEncoding) -> list[int]:
    """The completion's tokens without one of `stop_token_ids` that ended it: that is no part of the text."""
    tokens = completion.tokens
    if completion.finish_reason != "stop" or completion.stop is not None or not tokens:
        return tokens
    is_harmony = tokens[-1] in (*encoding.stop_tokens(), encoding.end_of_text)
    return tokens if is_harmony else tokens[:-1]


def _cut(message: Message, stop: str, before: int) -> Message:
    """The message up to the stop string, which ends in or after the text beyond `before` characters."""
    text = text_of(message)
    at = text.find(stop, max(0, before - len(stop) + 1))
    if at < 0:
        at = text.find(stop)
    return message if at < 0 else message.model_copy(update={"content": [TextContent(text=text[:at])]})


def text_of(message: Message) -> str:
    """The text of a message."""
    return "".join(part.text for part in message.content if isinstance(part, TextContent))


def kind_of(message: Message) -> Kind | None:
    """What a message is; None for one of another role than the assistant's, which a model can only make up.

    Text without a channel, which a malformed header leaves behind, may be chain of thought, so it is
    reasoning.
    """
    if message.author.role is not Role.ASSISTANT:
        return None
    if message.is_call:
        return "call"
    if message.channel == "final":
        return "text"
    return "preamble" if message.channel == "commentary" else "reasoning"


def joined(messages: Iterable[Message], kind: Kind) -> str:
    """The texts of one kind, those that are not empty, with blank lines between them."""
    return "\n\n".join(
        text for message in messages if kind_of(message) == kind and (text := text_of(message))
    )


def count_reasoning(tokens: Iterable[int], encoding: HarmonyEncoding) -> int:
    """How many of a completion's tokens are the content of messages on the analysis channel."""
    boundaries = {encoding.start, *encoding.stop_tokens()}
    count, reasoning, in_content = 0, False, False
    name: bytes | None = None
    for token in tokens:
        if token in boundaries:
            reasoning, in_content, name = False, False, None
        elif in_content:
            count += reasoning
        elif token == encoding.channel:
            name = b""
        elif token == encoding.message:
            reasoning = name is not None and name.split()[:1] == [b"analysis"]
            in_content = True
        elif name is not None:
            name += encoding.token_bytes(token) or b""
    return count
