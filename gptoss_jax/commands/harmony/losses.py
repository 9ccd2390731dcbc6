"""What a conversation loses on its way to ChatML, message by message."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from harmony import Conversation, DeveloperContent, Message, Role, SystemContent, TextContent
from harmony.openai_formats import FUNCTIONS, JSON_CONTENT_TYPE, called_function


def lost_in_chatml(conversation: Conversation) -> list[str]:
    """One line for each message that ChatML cannot carry whole, naming it and what is lost.

    What is not named here comes back from `conversation_from_chatml(chatml_from_conversation(…))`.
    """
    messages = conversation.messages
    waiting: list[str | None] = []  # the tools called in the assistant's last turn, less the results
    lines = []
    for number, message in enumerate(messages):
        role = message.author.role
        if role is Role.TOOL:
            called = waiting.pop(0) if waiting else None
            lost = [*_of_result(message, called), *_of_parts(message)]
        else:
            if role is Role.ASSISTANT and (not message.is_call or _follows_result(messages, number)):
                waiting = []
            if message.is_call:
                waiting.append(message.recipient)
            lost = [*_of_header(message), *_of_parts(message), *_of_neighbours(messages, number)]
        if lost:
            lines.append(f"messages[{number}]: {', '.join(lost)}")
    return lines


def _follows_result(messages: Sequence[Message], number: int) -> bool:
    return number > 0 and messages[number - 1].author.role is Role.TOOL


def _of_header(message: Message) -> Iterator[str]:
    if message.author.name is not None:
        yield f"the author's name {message.author.name}"
    if message.author.role is not Role.ASSISTANT:
        usual_channel = usual_type = usual_recipient = None
    elif message.is_call:
        usual_channel, usual_type, usual_recipient = "commentary", JSON_CONTENT_TYPE, message.recipient
        if not (message.recipient or "").startswith(FUNCTIONS):
            yield f"that {message.recipient} is not one of the functions"
    else:
        known = message.channel in ("analysis", "commentary", "final")
        usual_channel, usual_type, usual_recipient = message.channel if known else "final", None, None
    if message.channel != usual_channel:
        yield f"the channel {message.channel or '(none)'}"
    if message.content_type != usual_type:
        yield f"the content type {message.content_type or '(none)'}"
    if message.recipient != usual_recipient:
        yield f"the recipient {message.recipient}"


def _of_result(message: Message, called: str | None) -> Iterator[str]:
    if called is None:
        yield "which call it answers, for none waits for a result"
    elif message.author.name != called:
        yield f"the tool's name {message.author.name}"
    if message.channel != "commentary":
        yield f"the channel {message.channel or '(none)'}"
    if message.recipient != "assistant":
        yield f"the recipient {message.recipient or '(none)'}"
    if message.content_type is not None:
        yield f"the content type {message.content_type}"


def _of_parts(message: Message) -> Iterator[str]:
    if len(message.content) > 1:
        yield f"its division into {len(message.content)} parts"
    for part in message.content:
        if isinstance(part, SystemContent):
            yield from _of_system(part)
        elif isinstance(part, DeveloperContent):
            others = sorted(set(part.tools or {}) - {"functions"})
            if others:
                yield f"the tools {', '.join(others)}"
            if part.response_formats:
                yield f"the response formats {', '.join(form.name for form in part.response_formats)}"
        elif isinstance(part, TextContent) and message.is_call:
            yield from _of_arguments(part.text)


def _of_system(content: SystemContent) -> Iterator[str]:
    if content.model_identity is not None:
        yield "the model's identity"
    if content.knowledge_cutoff is not None:
        yield f"the knowledge cutoff {content.knowledge_cutoff}"
    if content.conversation_start_date is not None:
        yield f"the date {content.conversation_start_date}"
    if content.reasoning_effort is not None:
        yield f"the reasoning effort {content.reasoning_effort.value.lower()}"
    if content.channel_config is not None:
        yield "the list of channels"
    if content.tools:
        yield f"the built-in tools {', '.join(sorted(content.tools))}"


def _of_arguments(text: str) -> Iterator[str]:
    try:
        same = json.dumps(json.loads(text), ensure_ascii=False) == text
    except ValueError:
        yield "that its content is not JSON"
        return
    if not same:
        yield "how the JSON of its arguments is laid out"


def _of_neighbours(messages: Sequence[Message], number: int) -> Iterator[str]:
    """What the assistant's turn, which ChatML writes as one message, does to one of its parts."""
    message = messages[number]
    if message.author.role is not Role.ASSISTANT or message.is_call:
        return
    following = messages[number + 1] if number + 1 < len(messages) else None
    goes_on = following is not None and following.author.role is Role.ASSISTANT
    before_call = goes_on and following is not None and called_function(following) is not None
    if message.channel == "commentary" and not before_call:
        yield "that it is a preamble: it is read back as an answer"
    elif message.channel == "final" and before_call:
        yield "that it is an answer: before a call it is read back as a preamble"
    if goes_on and following is not None and not before_call and _merges(message, following):
        yield f"where it ends and messages[{number + 1}] begins"


def _merges(message: Message, following: Message) -> bool:
    is_thought, then_thought = message.channel == "analysis", following.channel == "analysis"
    return is_thought == then_thought
