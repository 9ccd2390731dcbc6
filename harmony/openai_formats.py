"""OpenAI's API bodies ↔ harmony conversations.

`conversation_from_body` turns request bodies into conversations whose first message is always a system
message with a current date, through `conversation_from_chat` or `conversation_from_responses`, which take
what they need field by field; `chat_message_from` and
`responses_output_from` turn the messages that a model produced into what the APIs answer.

What each raw chain of thought becomes: an `analysis` message ↔ `reasoning` of a chat message, or a
`reasoning` item. An assistant's text becomes `final`, or `commentary` (a preamble) when calls follow it in
the same turn. Text without a channel, which a malformed header leaves behind, may be chain of thought, so
it is answered as reasoning and never as content.

Fields and types of tools that these functions do not know are ignored, as the APIs' clients expect;
everything that would change the meaning raises HarmonyFormatError naming the field.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

from .api_fields import chosen_tools, function_name, function_tools, require, schema_format, string, text_of
from .errors import HarmonyFormatError, shown
from .messages import (
    EFFORT_WORDS,
    Author,
    Conversation,
    DeveloperContent,
    Message,
    ReasoningEffort,
    Role,
    SystemContent,
    TextContent,
    ToolDescription,
)

BodyForm = Literal["chat", "responses"]
"""Of which API a request body is: Chat Completions or Responses."""

JSON_CONTENT_TYPE = "<|constrain|>json"
FUNCTIONS = "functions."


def conversation_from_body(
    body: Mapping[str, Any],
    form: BodyForm,
    *,
    reasoning_effort: str | None = None,
    current_date: str | None = None,
) -> Conversation:
    """The conversation of a request body, from whichever of its fields say something about it.

    `reasoning_effort` is for a body that names none; in either form it may do so as `reasoning.effort` or as
    `reasoning_effort`, of which the first wins. The rest is as in `conversation_from_chat` and
    `conversation_from_responses`.
    """
    name, api = ("input", "Responses") if form == "responses" else ("messages", "Chat Completions")
    if name not in body:
        raise HarmonyFormatError(f"it has no {name}: a {api} request must")
    effort = _optional_object(body, "reasoning").get("effort")
    if effort is None:
        effort = body.get("reasoning_effort")
    if effort is None:
        effort = reasoning_effort
    if form == "responses":
        return conversation_from_responses(
            body["input"],
            instructions=body.get("instructions"),
            tools=body.get("tools"),
            tool_choice=body.get("tool_choice"),
            reasoning_effort=effort,
            text_format=_optional_object(body, "text").get("format"),
            current_date=current_date,
        )
    return conversation_from_chat(
        body["messages"],
        tools=body.get("tools"),
        tool_choice=body.get("tool_choice"),
        reasoning_effort=effort,
        response_format=body.get("response_format"),
        current_date=current_date,
    )


def _optional_object(body: Mapping[str, Any], field: str) -> Mapping[str, Any]:
    value = body.get(field)
    if value is None:
        return {}
    require(isinstance(value, Mapping), field, value, "an object")
    return value


def conversation_from_chat(
    messages: Sequence[Mapping[str, Any]],
    *,
    tools: Sequence[Mapping[str, Any]] | None = None,
    tool_choice: str | Mapping[str, Any] | None = None,
    reasoning_effort: str | None = None,
    response_format: Mapping[str, Any] | None = None,
    current_date: str | None = None,
) -> Conversation:
    """The conversation of a Chat Completions request.

    `system` and `developer` messages at the start become the developer message's instructions, joined by
    blank lines; later ones become developer messages where they stand. `reasoning` of an assistant message
    becomes an `analysis` message. `tool_choice` "none" leaves the tools out and a named function leaves out
    the others; a prompt cannot enforce a call, so "required" changes nothing here. `current_date` is
    `YYYY-MM-DD`, by default today's.
    """
    require(isinstance(messages, Sequence) and not isinstance(messages, str), "messages", messages, "a list")
    if not messages:
        raise HarmonyFormatError("messages is []: it must hold at least one message")
    functions = chosen_tools(function_tools(tools, nested=True), tool_choice)
    instructions: list[str] = []
    turns: list[Message] = []
    names: dict[str, str] = {}
    for index, message in enumerate(messages):
        field = f"messages[{index}]"
        require(isinstance(message, Mapping), field, message, "an object")
        role = message.get("role")
        if role in ("system", "developer"):
            _add_instructions(text_of(message.get("content"), f"{field}.content"), instructions, turns)
        elif role == "user":
            text = text_of(message.get("content"), f"{field}.content")
            turns.append(Message.from_role_and_content(Role.USER, text))
        elif role == "assistant":
            turns += _assistant_turn(message, field, names)
        elif role == "tool":
            call_id = string(message.get("tool_call_id"), f"{field}.tool_call_id")
            name = _called(names, call_id, f"{field}.tool_call_id")
            turns.append(_tool_result(name, text_of(message.get("content"), f"{field}.content")))
        else:
            allowed = "system, developer, user, assistant or tool"
            raise HarmonyFormatError(f"{field}.role is {shown(role)}: it must be {allowed}")
    return _conversation(
        turns,
        instructions=instructions,
        functions=functions,
        effort=_effort(reasoning_effort, "reasoning_effort"),
        response_format=schema_format(response_format, "response_format", nested=True),
        current_date=current_date,
    )


def conversation_from_responses(
    input: str | Sequence[Mapping[str, Any]],
    *,
    instructions: str | None = None,
    tools: Sequence[Mapping[str, Any]] | None = None,
    tool_choice: str | Mapping[str, Any] | None = None,
    reasoning_effort: str | None = None,
    text_format: Mapping[str, Any] | None = None,
    current_date: str | None = None,
) -> Conversation:
    """The conversation of a Responses request.

    `reasoning_effort` is the body's `reasoning.effort`, `text_format` its `text.format`. An assistant
    message is a preamble when its `phase` says so or a call follows it in the same turn. Items of type
    `message`, `reasoning`, `function_call` and `function_call_output` are read; of `reasoning` the raw text,
    not the summary. The rest is as in `conversation_from_chat`.
    """
    if isinstance(input, str):
        input = [{"role": "user", "content": input}]
    require(isinstance(input, Sequence), "input", input, "a string or a list of items")
    if not input:
        raise HarmonyFormatError("input is []: it must hold at least one item")
    functions = chosen_tools(function_tools(tools, nested=False), tool_choice)
    system_instructions = [] if instructions is None else [string(instructions, "instructions")]
    turns: list[Message] = []
    names: dict[str, str] = {}
    for index, item in enumerate(input):
        field = f"input[{index}]"
        require(isinstance(item, Mapping), field, item, "an object")
        kind = item.get("type", "message")
        if kind == "message":
            _add_item_message(item, field, _calls_follow(input, index), system_instructions, turns)
        elif kind == "reasoning":
            text = _reasoning_item_text(item, field)
            if text:
                turns.append(_assistant(text, "analysis"))
        elif kind == "function_call":
            name = function_name(item.get("name"), f"{field}.name")
            names[string(item.get("call_id"), f"{field}.call_id")] = name
            turns.append(_call(name, string(item.get("arguments"), f"{field}.arguments")))
        elif kind == "function_call_output":
            call_id = string(item.get("call_id"), f"{field}.call_id")
            name = _called(names, call_id, f"{field}.call_id")
            turns.append(_tool_result(name, text_of(item.get("output"), f"{field}.output")))
        else:
            allowed = "message, reasoning, function_call or function_call_output"
            raise HarmonyFormatError(f"{field}.type is {shown(kind)}: it must be {allowed}")
    return _conversation(
        turns,
        instructions=system_instructions,
        functions=functions,
        effort=_effort(reasoning_effort, "reasoning.effort"),
        response_format=schema_format(text_format, "text.format", nested=False),
        current_date=current_date,
    )


def chat_message_from(messages: Iterable[Message], *, call_id: Callable[[int], str]) -> dict[str, Any]:
    """The `message` of a Chat Completions choice, from the messages of one completion.

    `content` is preambles and final text joined by blank lines, or None; `reasoning` is the raw chain of
    thought; `tool_calls` are the calls in order, the i-th with id `call_id(i)`. The last two are left out
    when empty. A call is told by its recipient, whatever its channel; `functions.` is cut off its name.
    Messages of other roles, which a model can only have made up, are left out.
    """
    reasoning: list[str] = []
    content: list[str] = []
    calls: list[dict[str, Any]] = []
    for message in messages:
        if message.author.role is not Role.ASSISTANT:
            continue
        text = _message_text(message)
        name = called_function(message)
        if name is not None:
            function = {"name": name, "arguments": text}
            calls.append({"id": call_id(len(calls)), "type": "function", "function": function})
        elif text:
            (content if message.channel in ("final", "commentary") else reasoning).append(text)
    out: dict[str, Any] = {"role": "assistant", "content": "\n\n".join(content) if content else None}
    if reasoning:
        out["reasoning"] = "\n\n".join(reasoning)
    if calls:
        out["tool_calls"] = calls
    return out


def responses_output_from(
    messages: Iterable[Message], *, item_id: Callable[[str, int], str], complete: bool = True
) -> list[dict[str, Any]]:
    """The `output` items of a response, from the messages of one completion.

    The i-th item's id is `item_id(prefix, i)` with the prefix "rs" (reasoning), "msg" (message) or "fc"
    (call); a call's `call_id` is `item_id("call", i)`. With `complete=False` the last item's status is
    "incomplete". Otherwise as `chat_message_from`.
    """
    items: list[dict[str, Any]] = []
    for message in messages:
        text = _message_text(message)
        if message.author.role is not Role.ASSISTANT:
            continue
        index = len(items)
        name = called_function(message)
        if name is not None:
            items.append(
                {
                    "type": "function_call",
                    "id": item_id("fc", index),
                    "call_id": item_id("call", index),
                    "name": name,
                    "arguments": text,
                    "status": "completed",
                }
            )
        elif message.channel in ("final", "commentary"):
            part = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
            items.append(
                {
                    "type": "message",
                    "id": item_id("msg", index),
                    "role": "assistant",
                    "content": [part],
                    "status": "completed",
                }
            )
        else:
            items.append(
                {
                    "type": "reasoning",
                    "id": item_id("rs", index),
                    "summary": [],
                    "content": [{"type": "reasoning_text", "text": text}],
                    "status": "completed",
                }
            )
    if items and not complete:
        items[-1]["status"] = "incomplete"
    return items


def called_function(message: Message) -> str | None:
    """The name of the function or tool that an assistant message calls; None if it calls none."""
    if not message.is_call or message.recipient is None:
        return None
    return message.recipient.removeprefix(FUNCTIONS)


def _conversation(
    turns: list[Message],
    *,
    instructions: list[str],
    functions: list[ToolDescription],
    effort: ReasoningEffort,
    response_format: tuple[str, dict[str, Any], str | None] | None,
    current_date: str | None,
) -> Conversation:
    system = SystemContent(conversation_start_date=_date(current_date), reasoning_effort=effort)
    messages = [Message.from_role_and_content(Role.SYSTEM, system)]
    developer = DeveloperContent()
    if instructions:
        developer.with_instructions("\n\n".join(instructions))
    if functions:
        developer.with_function_tools(functions)
    if response_format is not None:
        developer.with_response_format(*response_format)
    if developer != DeveloperContent():
        messages.append(Message.from_role_and_content(Role.DEVELOPER, developer))
    return Conversation(messages=messages + turns)


def _date(current_date: str | None) -> str:
    if current_date is None:
        return datetime.date.today().isoformat()
    if not isinstance(current_date, str) or not re.fullmatch(r"\d{4}-\d\d-\d\d", current_date):
        raise HarmonyFormatError(f"current_date is {shown(current_date)}: it must be like '2025-06-28'")
    return current_date


def _effort(word: Any, field: str) -> ReasoningEffort:
    if word is None:
        return ReasoningEffort.MEDIUM
    if not isinstance(word, str) or word not in EFFORT_WORDS:
        raise HarmonyFormatError(f"{field} is {shown(word)}: it must be one of {', '.join(EFFORT_WORDS)}")
    return EFFORT_WORDS[word]


# Messages


def _assistant(text: str, channel: str) -> Message:
    return Message.from_role_and_content(Role.ASSISTANT, text).with_channel(channel)


def _call(name: str, arguments: str) -> Message:
    call = _assistant(arguments, "commentary").with_recipient(FUNCTIONS + name)
    return call.with_content_type(JSON_CONTENT_TYPE)


def _tool_result(name: str, output: str) -> Message:
    author = Author(role=Role.TOOL, name=FUNCTIONS + name)
    result = Message.from_author_and_content(author, output).with_channel("commentary")
    return result.with_recipient("assistant")


def _add_instructions(text: str, instructions: list[str], turns: list[Message]) -> None:
    """Adds to the leading instructions, or as a developer message once the conversation has begun."""
    if turns:
        content = DeveloperContent(instructions=text)
        turns.append(Message.from_role_and_content(Role.DEVELOPER, content))
    else:
        instructions.append(text)


def _assistant_turn(message: Mapping[str, Any], field: str, names: dict[str, str]) -> list[Message]:
    """Chain of thought, then preamble or answer, then calls. Notes each call's function by its id."""
    turn = []
    reasoning = message.get("reasoning", message.get("reasoning_content"))
    if reasoning:
        turn.append(_assistant(string(reasoning, f"{field}.reasoning"), "analysis"))
    calls = message.get("tool_calls") or []
    require(
        isinstance(calls, Sequence) and not isinstance(calls, str), f"{field}.tool_calls", calls, "a list"
    )
    if message.get("content") is not None:
        text = text_of(message["content"], f"{field}.content")
        if text or not calls:
            turn.append(_assistant(text, "commentary" if calls else "final"))
    elif message.get("refusal") is not None:
        turn.append(_assistant(string(message["refusal"], f"{field}.refusal"), "final"))
    elif not calls and not reasoning:
        raise HarmonyFormatError(f"{field}.content is None: it must be text when there are no tool_calls")
    for index, call in enumerate(calls):
        where = f"{field}.tool_calls[{index}]"
        require(isinstance(call, Mapping), where, call, "an object")
        function = call.get("function")
        require(isinstance(function, Mapping), f"{where}.function", function, "an object")
        name = function_name(function.get("name"), f"{where}.function.name")
        names[string(call.get("id"), f"{where}.id")] = name
        turn.append(_call(name, string(function.get("arguments"), f"{where}.function.arguments")))
    return turn


def _add_item_message(
    item: Mapping[str, Any], field: str, calls_follow: bool, instructions: list[str], turns: list[Message]
) -> None:
    role = item.get("role")
    text = text_of(item.get("content"), f"{field}.content")
    if role in ("system", "developer"):
        _add_instructions(text, instructions, turns)
    elif role == "user":
        turns.append(Message.from_role_and_content(Role.USER, text))
    elif role == "assistant":
        phase = item.get("phase") or ("commentary" if calls_follow else "final_answer")
        turns.append(_assistant(text, "commentary" if phase == "commentary" else "final"))
    else:
        allowed = "system, developer, user or assistant"
        raise HarmonyFormatError(f"{field}.role is {shown(role)}: it must be {allowed}")


def _calls_follow(items: Sequence[Mapping[str, Any]], index: int) -> bool:
    """Whether the model goes on to a call in the turn of the item at `index`."""
    for item in items[index + 1 :]:
        if isinstance(item, Mapping):
            if item.get("type") == "function_call":
                return True
            if item.get("type", "message") == "message":
                return False
    return False


def _reasoning_item_text(item: Mapping[str, Any], field: str) -> str:
    parts = item.get("content") or []
    require(isinstance(parts, Sequence) and not isinstance(parts, str), f"{field}.content", parts, "a list")
    texts = []
    for index, part in enumerate(parts):
        require(isinstance(part, Mapping), f"{field}.content[{index}]", part, "an object")
        texts.append(string(part.get("text"), f"{field}.content[{index}].text"))
    return "\n\n".join(texts)


def _called(names: Mapping[str, str], call_id: str, field: str) -> str:
    if call_id not in names:
        raise HarmonyFormatError(f"{field} is {shown(call_id)}: no earlier call has this id")
    return names[call_id]


def _message_text(message: Message) -> str:
    return "".join(part.text for part in message.content if isinstance(part, TextContent))
