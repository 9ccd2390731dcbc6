"""Renders conversations; the errors name the input and the message."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from harmony import (
    Conversation,
    DeveloperContent,
    HarmonyEncoding,
    HarmonyError,
    HarmonyFormatError,
    Message,
    RenderConversationConfig,
    RenderOptions,
    Role,
)
from harmony.sections import defines_functions


class RenderedMessage(NamedTuple):
    """One message and its tokens, from `<|start|>` to the token that ends it."""

    message: Message
    tokens: list[int]


def rendered_messages(
    encoding: HarmonyEncoding, conversation: Conversation, source: str
) -> list[RenderedMessage]:
    """Every message with its tokens.

    Raises HarmonyFormatError, which names the input `source` and the message.
    """
    options = _options(conversation)
    rendered = []
    for number, message in enumerate(conversation.messages):
        try:
            rendered.append(RenderedMessage(message, encoding.render(message, options)))
        except (HarmonyError, ValueError) as error:
            reason = f"messages[{number}] cannot be rendered: {error}"
            raise HarmonyFormatError(f"{source}: {reason}") from None
    return rendered


def rendered_conversation(
    encoding: HarmonyEncoding,
    conversation: Conversation,
    config: RenderConversationConfig,
    purpose: str,
    source: str,
) -> list[int]:
    """The tokens of a conversation; `purpose` is "conversation", "completion" or "training".

    Raises HarmonyFormatError, which names the input `source` and the message.
    """
    try:
        if purpose == "completion":
            return encoding.render_conversation_for_completion(conversation, Role.ASSISTANT, config)
        if purpose == "training":
            return encoding.render_conversation_for_training(conversation, config)
        return encoding.render_conversation(conversation, config)
    except (HarmonyError, ValueError):
        rendered_messages(encoding, conversation, source)  # raises an error that names the message
        raise


def _options(conversation: Conversation) -> RenderOptions:
    has_functions = any(
        isinstance(part, DeveloperContent) and defines_functions(part)
        for message in conversation.messages
        for part in message.content
    )
    return RenderOptions(conversation_has_function_tools=has_functions)


def runs(encoding: HarmonyEncoding, tokens: Sequence[int]) -> list[tuple[bool, list[int]]]:
    """The tokens, grouped: (False, consecutive ordinary tokens) or (True, one special token)."""
    found: list[tuple[bool, list[int]]] = []
    for token in tokens:
        is_special = encoding.is_special_token(token)
        if is_special or not found or found[-1][0]:
            found.append((is_special, [token]))
        else:
            found[-1][1].append(token)
    return found
