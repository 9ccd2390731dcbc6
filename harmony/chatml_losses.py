"""What is lost when a conversation is converted to ChatML, and when ChatML is converted to a conversation."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

from .api_fields import FUNCTION_NAME, function_tools
from .chatml import call_arguments, tool_entry
from .errors import HarmonyFormatError
from .messages import (
    Conversation,
    DeveloperContent,
    Message,
    Role,
    SystemContent,
    TextContent,
    ToolDescription,
    ToolNamespaceConfig,
)
from .openai_formats import FUNCTIONS, JSON_CONTENT_TYPE

Loss = Literal[
    "settings",
    "instructions",
    "tools",
    "formats",
    "header",
    "result",
    "phase",
    "borders",
    "silence",
    "layout",
]

LOST_IN_CHATML: Mapping[Loss, str] = {
    "settings": "the system message: the model's identity, the dates, the reasoning effort, the list of "
    "channels, the built-in tools",
    "instructions": "whether a text is in a system or a developer message, and whether it is there as "
    "instructions or as text",
    "tools": "namespaces other than `functions` and the description of that one, functions that no request "
    "can define because of their names or schemas, and the place of function definitions other than the "
    "first developer message",
    "formats": "response formats",
    "header": "authors' names; content types; channels other than `analysis`, `commentary` and `final`, and "
    "in calls and results any but `commentary`; recipients other than functions in calls and `assistant` in "
    "results; and whether `to=` is after the role or the channel",
    "result": "which call a result belongs to, if not to the earliest call after the last user message that "
    "has no result yet",
    "phase": "that a text is a preamble, if no call follows it, or an answer, if a call does",
    "borders": "the borders between messages of one turn (two thoughts, two texts or two messages of "
    "instructions become one) and between the parts of a message",
    "silence": "empty messages beside others in one turn, and empty developer messages",
    "layout": "the layout of the JSON of a call's arguments, and white space between a text and the call "
    "after it",
}
"""What ChatML cannot express.

A text with one of ChatML's tags is refused instead: ChatML cannot escape it.
"""

LOST_IN_HARMONY = (
    "the layout of the JSON of tools and calls",
    "white space around `<think>`, `<tool_call>` and `<tool_response>`",
    "a `<think>` with nothing in it, which some models write when they do not think",
    "the place of a text that follows a call: it is read as if it came before the call",
    "the wording around `<tools>`",
    "whether results are in `user` or in `tool` messages",
)
"""What harmony cannot express of a ChatML transcript."""


class Lost(NamedTuple):
    """Something that one message of a conversation loses."""

    message: int
    """Index of the message."""
    what: Loss
    """The kind of loss: a key of `LOST_IN_CHATML`."""
    detail: str
    """What this message loses, such as "the channel x"."""


def lost_in_chatml(conversation: Conversation) -> list[Lost]:
    """Everything that a conversation loses in ChatML, in the order of its messages.

    If only settings of the first system message are lost, then
    `conversation_from_chatml(chatml_from_conversation(…))` gives all other messages back as they are.
    """
    messages = conversation.messages
    waiting: list[str | None] = []  # the recipients of the calls that have no result yet
    is_front = True  # before the first turn: ChatML puts all instructions and functions there together
    developers = 0  # how many developer messages have come
    found = []
    for number, message in enumerate(messages):
        losses: list[tuple[Loss, str]] = []
        match message.author.role:
            case Role.SYSTEM:
                losses += _of_system_message(message)
            case Role.DEVELOPER:
                losses += _of_developer_message(message, is_front, developers)
                developers += 1
            case Role.TOOL:
                losses += _of_result(message, waiting.pop(0) if waiting else None)
            case Role.USER:
                waiting = []
            case Role.ASSISTANT:
                if message.is_call:
                    waiting.append(message.recipient)
                    losses += _of_call(message)
                else:
                    losses += _of_text(messages, number)
        if message.author.role in (Role.USER, Role.ASSISTANT, Role.TOOL):
            is_front = False
            losses += _of_parts(message)
        losses += _of_header(message)
        found += [Lost(number, what, detail) for what, detail in losses]
    return found


_Losses = Iterator[tuple[Loss, str]]


def _text(message: Message) -> str:
    return "".join(part.text for part in message.content if isinstance(part, TextContent))


def _of_header(message: Message) -> _Losses:
    is_result = message.author.role is Role.TOOL
    usual_channel = usual_recipient = usual_type = None
    if is_result:
        usual_channel, usual_recipient = "commentary", "assistant"
    elif message.is_call:
        usual_channel, usual_recipient, usual_type = "commentary", message.recipient, JSON_CONTENT_TYPE
    elif message.author.role is Role.ASSISTANT:
        is_known = message.channel in ("analysis", "commentary", "final")
        usual_channel = message.channel if is_known else "final"
    if message.author.name is not None and not is_result:
        yield "header", f"the author's name {message.author.name}"
    if message.channel != usual_channel:
        yield "header", f"the channel {message.channel or '(none)'}"
    if message.recipient != usual_recipient:
        yield "header", f"the recipient {message.recipient or '(none)'}"
    if message.content_type != usual_type:
        yield "header", f"the content type {message.content_type or '(none)'}"
    if message.recipient is not None and message.recipient_place != "role":
        yield "header", "that to= is after the channel"


def _of_parts(message: Message) -> _Losses:
    if len(message.content) != 1:
        yield "borders", f"its division into {len(message.content)} parts"
    if not all(isinstance(part, TextContent) for part in message.content):
        yield "settings", "its parts that are not text"


# System and developer messages


def _of_system_message(message: Message) -> _Losses:
    if not message.content:
        yield "settings", "that it is there"
    for part in message.content:
        if isinstance(part, SystemContent):
            for detail in _settings(part):
                yield "settings", detail
        else:
            yield "instructions", "that its text is in a system message"


def _settings(content: SystemContent) -> Iterator[str]:
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
    if content == SystemContent(
        model_identity=None, reasoning_effort=None, knowledge_cutoff=None, channel_config=None
    ):
        yield "that it sets nothing"


def _of_developer_message(message: Message, is_front: bool, earlier: int) -> _Losses:
    if len(message.content) != 1:
        yield "borders", f"its division into {len(message.content)} parts"
    for part in message.content:
        if not isinstance(part, DeveloperContent):
            yield "instructions", "that its text is not instructions"
            continue
        if part.tools is not None:
            yield from _of_tools(part.tools)
            if not is_front:
                yield "tools", "where its functions are defined"
        if part.response_formats is not None:
            names = ", ".join(form.name for form in part.response_formats) or "(none)"
            yield "formats", f"the response formats {names}"
        if part.instructions is None and not (is_front and part.tools):
            yield "silence", "that it is there"
    if is_front and earlier:
        yield "borders", "where it begins"


def _of_tools(tools: Mapping[str, ToolNamespaceConfig]) -> _Losses:
    others = sorted(set(tools) - {"functions"})
    if others or not tools:
        yield "tools", f"the tools {', '.join(others) or '(none)'}"
    namespace = tools.get("functions")
    if namespace is None:
        return
    if namespace != ToolNamespaceConfig(name="functions", tools=namespace.tools):
        yield "tools", "the name or the description of the functions"
    if not namespace.tools:
        yield "tools", "that there are no functions"
    names: set[str] = set()
    for tool in namespace.tools:
        if tool.name in names or not _can_be_defined(tool):
            yield "tools", f"the function {tool.name} as it is"
        names.add(tool.name)


def _can_be_defined(tool: ToolDescription) -> bool:
    try:
        return function_tools([tool_entry(tool)], nested=True) == [tool]
    except HarmonyFormatError:
        return False


# Calls, results, and texts of the assistant


def _of_call(message: Message) -> _Losses:
    name = (message.recipient or "").removeprefix(FUNCTIONS)
    if not (message.recipient or "").startswith(FUNCTIONS) or not FUNCTION_NAME.fullmatch(name):
        yield "header", f"that {message.recipient} is not one of the functions"
    arguments = call_arguments(_text(message))
    if isinstance(arguments, dict) and json.dumps(arguments, ensure_ascii=False) != _text(message):
        yield "layout", "how the JSON of its arguments is laid out"


def _of_result(message: Message, called: str | None) -> _Losses:
    if called is None:
        yield "result", "which call it belongs to (no call lacks a result)"
    elif message.author.name != called:
        yield "result", f"that it comes from {message.author.name}"


def _of_text(messages: Sequence[Message], number: int) -> _Losses:
    """What a thought or a text of the assistant loses because ChatML writes the whole turn as one message."""
    message = messages[number]
    before = messages[number - 1] if number else None
    following = messages[number + 1] if number + 1 < len(messages) else None
    if following is not None and following.author.role is not Role.ASSISTANT:
        following = None
    is_thought = message.channel == "analysis"
    calls = following is not None and following.is_call
    if following is not None and not calls and is_thought == (following.channel == "analysis"):
        yield "borders", f"where it ends and messages[{number + 1}] begins"
    elif message.channel == "commentary" and not calls:
        yield "phase", "that it is a preamble: it is read back as an answer"
    elif message.channel == "final" and calls:
        yield "phase", "that it is an answer: before a call it is read back as a preamble"
    is_after_thought = before is not None and before.channel == "analysis" and not before.is_call
    text = _text(message)
    if calls and not is_thought and text != text.rstrip():
        if text.isspace():
            yield "silence", "that it is there"
        else:
            yield "layout", "the white space at its end"
    if not text and (is_thought or calls or is_after_thought):
        yield "silence", "that it is there"
