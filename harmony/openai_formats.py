"""OpenAI's API bodies ↔ harmony conversations.

`conversation_from_body` makes a conversation of a request body. It calls `conversation_from_chat` or
`conversation_from_responses`, which take the fields one by one. The first message of the conversation is
always a system message with the current date. `chat_message_from` and `responses_output_from` make the API's
answer of the messages that a model produced.

An `analysis` message ↔ `reasoning` of a chat message, or a `reasoning` item. The assistant's text becomes a
`final` message; if calls follow it in the same turn, it is a preamble and becomes a `commentary` message.
Text without a channel comes from a malformed header and may be chain of thought, so it is answered as
reasoning and never as content.

A call ↔ a function call, whose name is the recipient without `functions.`. A call of a built-in tool
(`python`, `browser.…`) has the rest of its header in the field `extra_content`: `{"harmony": {"recipient":
"python", "channel": "analysis", "content_type": "code"}}`. If a client sends that back, the same message is
made of it again. If a client leaves it out, a call of such a name is a call of the built-in tool on
`analysis`, unless the request defines a function with that name.

A chat message may have in the same field `{"harmony": {"messages": […]}}`: the turn as it was, where calls
of built-in tools were run in its midst. It is read instead of reasoning and content, unless the content was
changed.

Unknown fields and unknown types of tools are ignored, as clients of the APIs expect. What cannot be expressed
in harmony raises HarmonyFormatError, which names the field.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Literal

from .api_fields import (
    as_list,
    as_object,
    chosen_tools,
    function_name,
    function_tools,
    require,
    schema_format,
    string,
    text_of,
)
from .errors import HarmonyFormatError, shown_json
from .header import is_content_type, is_word
from .json_types import Json, JsonObject
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
"""Which API a request body belongs to: Chat Completions or Responses."""

JSON_CONTENT_TYPE = "<|constrain|>json"
FUNCTIONS = "functions."
_BUILT_IN = re.compile(r"python|browser(\..+)?")


def conversation_from_body(
    body: Mapping[str, Any],
    form: BodyForm,
    *,
    reasoning_effort: str | None = None,
    current_date: str | None = None,
) -> Conversation:
    """The conversation of a request body: reads all fields that say something about it.

    The effort is the body's `reasoning.effort`, else its `reasoning_effort`, in either form; the argument
    `reasoning_effort` is used if it has neither. All else is as in `conversation_from_chat` and
    `conversation_from_responses`. Raises HarmonyFormatError.
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


def _optional_object(body: Mapping[str, Any], name: str, path: str = "") -> Mapping[str, Any]:
    value = body.get(name)
    return {} if value is None else as_object(value, f"{path}.{name}" if path else name)


def conversation_from_chat(
    messages: Sequence[Mapping[str, object]],
    *,
    tools: Sequence[Mapping[str, object]] | None = None,
    tool_choice: str | Mapping[str, object] | None = None,
    reasoning_effort: str | None = None,
    response_format: Mapping[str, object] | None = None,
    current_date: str | None = None,
) -> Conversation:
    """The conversation of a Chat Completions request.

    `system` and `developer` messages at the start become the instructions of one developer message, joined by
    blank lines; later ones become developer messages of their own. `reasoning` of an assistant message
    becomes an `analysis` message. With `tool_choice` "none" no function is in the prompt; with a named
    function only that one; a prompt cannot force a call, so "required" changes nothing. `reasoning_effort` is
    one of `messages.EFFORT_WORDS`; None: medium. `current_date` is `YYYY-MM-DD`; None: today. Raises
    HarmonyFormatError.
    """
    listed = as_list(messages, "messages")
    if not listed:
        raise HarmonyFormatError("messages is []: it must hold at least one message")
    declared = function_tools(tools, nested=True)
    functions = chosen_tools(declared, tool_choice)
    instructions: list[str] = []
    turns: list[Message] = []
    calls = _Calls({function.name for function in declared})
    for index, item in enumerate(listed):
        field = f"messages[{index}]"
        message = as_object(item, field)
        role = message.get("role")
        if role in ("system", "developer"):
            _add_instructions(text_of(message.get("content"), f"{field}.content"), instructions, turns)
        elif role == "user":
            text = text_of(message.get("content"), f"{field}.content")
            turns.append(Message.from_role_and_content(Role.USER, text))
        elif role == "assistant":
            turns += _assistant_turn(message, field, calls)
        elif role == "tool":
            call = calls.of_result(message.get("tool_call_id"), f"{field}.tool_call_id")
            turns.append(_tool_result(call, text_of(message.get("content"), f"{field}.content")))
        else:
            allowed = "system, developer, user, assistant or tool"
            raise HarmonyFormatError(f"{field}.role is {shown_json(role)}: it must be {allowed}")
    return _conversation(
        turns,
        instructions=instructions,
        functions=functions,
        effort=_effort(reasoning_effort, "reasoning_effort"),
        response_format=schema_format(response_format, "response_format", nested=True),
        current_date=current_date,
    )


def conversation_from_responses(
    input: str | Sequence[Mapping[str, object]],
    *,
    instructions: object = None,
    tools: Sequence[Mapping[str, object]] | None = None,
    tool_choice: str | Mapping[str, object] | None = None,
    reasoning_effort: str | None = None,
    text_format: Mapping[str, object] | None = None,
    current_date: str | None = None,
) -> Conversation:
    """The conversation of a Responses request.

    `input` is a string or a list of items of the types `message`, `reasoning`, `function_call` and
    `function_call_output`. Of a `reasoning` item the raw text is read, not the summary. An assistant's
    message is a preamble if its `phase` says so, or if a call follows it in the same turn. `reasoning_effort`
    is the body's `reasoning.effort`, `text_format` its `text.format`. All else is as in
    `conversation_from_chat`. Raises HarmonyFormatError.
    """
    if isinstance(input, str):
        input = [{"role": "user", "content": input}]
    items = as_list(input, "input", "a string or a list of items")
    if not items:
        raise HarmonyFormatError("input is []: it must hold at least one item")
    declared = function_tools(tools, nested=False)
    functions = chosen_tools(declared, tool_choice)
    system_instructions = [] if instructions is None else [string(instructions, "instructions")]
    turns: list[Message] = []
    calls = _Calls({function.name for function in declared})
    for index, one in enumerate(items):
        field = f"input[{index}]"
        item = as_object(one, field)
        kind = item.get("type", "message")
        if kind == "message":
            _add_item_message(item, field, _calls_follow(items, index), system_instructions, turns)
        elif kind == "reasoning":
            text = _reasoning_item_text(item, field)
            if text:
                turns.append(_assistant(text, "analysis"))
        elif kind == "function_call":
            turns.append(calls.call(item, field, item, field, "call_id"))
        elif kind == "function_call_output":
            call = calls.of_result(item.get("call_id"), f"{field}.call_id")
            turns.append(_tool_result(call, text_of(item.get("output"), f"{field}.output")))
        else:
            allowed = "message, reasoning, function_call or function_call_output"
            raise HarmonyFormatError(f"{field}.type is {shown_json(kind)}: it must be {allowed}")
    return _conversation(
        turns,
        instructions=system_instructions,
        functions=functions,
        effort=_effort(reasoning_effort, "reasoning.effort"),
        response_format=schema_format(text_format, "text.format", nested=False),
        current_date=current_date,
    )


def chat_message_from(messages: Iterable[Message], *, call_id: Callable[[int], str]) -> JsonObject:
    """The `message` of a Chat Completions choice, from the messages of one completion.

    `content` is the preambles and the final text, joined by blank lines; None if there are none. `reasoning`
    is the raw chain of thought, and `tool_calls` are the calls, the i-th with the id `call_id(i)`; they are
    absent if there are none. A message to a tool is a call on any channel; its name is the recipient without
    `functions.`. Messages of other roles are left out: a model can only have made them up.
    """
    reasoning: list[str] = []
    content: list[str] = []
    calls: list[Json] = []
    for message in messages:
        if message.author.role is not Role.ASSISTANT:
            continue
        text = _message_text(message)
        name = called_function(message)
        if name is not None:
            function: JsonObject = {"name": name, "arguments": text}
            calls.append(
                {"id": call_id(len(calls)), "type": "function", "function": function, **call_extras(message)}
            )
        elif text:
            (content if message.channel in ("final", "commentary") else reasoning).append(text)
    out: JsonObject = {"role": "assistant", "content": "\n\n".join(content) if content else None}
    if reasoning:
        out["reasoning"] = "\n\n".join(reasoning)
    if calls:
        out["tool_calls"] = calls
    return out


def responses_output_from(
    messages: Iterable[Message], *, item_id: Callable[[str, int], str], complete: bool = True
) -> list[dict[str, Any]]:
    """The `output` items of a response, from the messages of one completion.

    The id of the i-th item is `item_id(prefix, i)`, with the prefix "rs" (reasoning), "msg" (message) or "fc"
    (call); the `call_id` of a call is `item_id("call", i)`. With `complete=False` the status of the last item
    is "incomplete". Channels and calls are read as in `chat_message_from`.
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
                    **call_extras(message),
                }
            )
        elif message.channel in ("final", "commentary"):
            part: JsonObject = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
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
    """The name of the function or tool that an assistant message calls; None if it is not a call."""
    if not message.is_call or message.recipient is None:
        return None
    return message.recipient.removeprefix(FUNCTIONS)


def call_extras(message: Message) -> JsonObject:
    """The field `extra_content` of a call, as an object with this one field; empty for most calls.

    A call has it if its name is that of a built-in tool, whether it calls that tool or a function of that
    name.
    """
    name = called_function(message)
    if name is None or not _BUILT_IN.fullmatch(name):
        return {}
    return {"extra_content": {"harmony": call_header(message)}}


def turn_extras(messages: Iterable[Message]) -> JsonObject:
    """The field `extra_content` of a chat message, as an object with this one field.

    It has what the message itself cannot say: which calls of built-in tools were run, and with what result.
    `messages` are those of the turn, without calls of functions. Sent back, they are read instead of the
    message's reasoning and content.
    """
    return {"extra_content": {"harmony": {"messages": [message.to_dict() for message in messages]}}}


def call_header(message: Message) -> JsonObject:
    """The header of a call, as `extra_content` has it."""
    header: JsonObject = {
        "recipient": message.recipient,
        "channel": message.channel,
        "content_type": message.content_type,
    }
    if message.recipient_place != "role":
        header["recipient_place"] = message.recipient_place
    return header


def _conversation(
    turns: list[Message],
    *,
    instructions: list[str],
    functions: list[ToolDescription],
    effort: ReasoningEffort,
    response_format: tuple[str, JsonObject, str | None] | None,
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
        raise HarmonyFormatError(f"current_date is {shown_json(current_date)}: it must be like 2025-06-28")
    return current_date


def _effort(word: object, field: str) -> ReasoningEffort:
    if word is None:
        return ReasoningEffort.MEDIUM
    if not isinstance(word, str) or word not in EFFORT_WORDS:
        raise HarmonyFormatError(
            f"{field} is {shown_json(word)}: it must be one of {', '.join(EFFORT_WORDS)}"
        )
    return EFFORT_WORDS[word]


# Messages


def _assistant(text: str, channel: str) -> Message:
    return Message.from_role_and_content(Role.ASSISTANT, text).with_channel(channel)


class _Calls:
    """The calls of a request so far, by id: a result names its call's."""

    def __init__(self, declared: Collection[str]) -> None:
        """`declared` are the names of the functions that the request defines."""
        self._declared = declared
        self._messages: dict[str, Message] = {}

    def call(
        self,
        item: Mapping[str, object],
        field: str,
        function: Mapping[str, object],
        function_field: str,
        id_name: str,
    ) -> Message:
        """The message of a call.

        `function` is the part of the item that has the name and the arguments; `id_name` is the field of the
        item that has its id.
        """
        name = function_name(function.get("name"), f"{function_field}.name")
        call_id = string(item.get(id_name), f"{field}.{id_name}")
        message = _assistant(string(function.get("arguments"), f"{function_field}.arguments"), "commentary")
        extras = _optional_object(item, "extra_content", field)
        header = _optional_object(extras, "harmony", f"{field}.extra_content")
        if header:
            _set_header(message, name, header, f"{field}.extra_content.harmony")
        elif _BUILT_IN.fullmatch(name) and name not in self._declared:
            message.with_recipient(name).with_channel("analysis")
        else:
            message.with_recipient(FUNCTIONS + name).with_content_type(JSON_CONTENT_TYPE)
        self._messages[call_id] = message
        return message

    def of_result(self, call_id: object, field: str) -> Message:
        """The earlier call with the id that a result names."""
        call = self._messages.get(string(call_id, field))
        if call is None:
            raise HarmonyFormatError(f"{field} is {shown_json(call_id)}: no earlier call has this id")
        return call


def _tool_result(call: Message, output: str) -> Message:
    """The result of a call: a function's is on `commentary`, a built-in tool's on the channel of the call."""
    result = Message.from_author_and_content(Author(role=Role.TOOL, name=call.recipient), output)
    is_function = (call.recipient or "").startswith(FUNCTIONS)
    result.channel = "commentary" if is_function else call.channel
    return result.with_recipient("assistant")


def _set_header(message: Message, name: str, header: Mapping[str, object], field: str) -> None:
    """Sets the fields that `call_extras` wrote. Raises HarmonyFormatError for what it cannot have written."""
    recipients = (name, FUNCTIONS + name)
    recipient = header.get("recipient", name)
    require(recipient in recipients, f"{field}.recipient", recipient, " or ".join(recipients))
    message.recipient = str(recipient)
    place = header.get("recipient_place", "role")
    require(place in ("role", "channel"), f"{field}.recipient_place", place, "role or channel")
    message.recipient_place = "channel" if place == "channel" else "role"
    message.channel = _header_word(header.get("channel"), is_word, f"{field}.channel")
    message.content_type = _header_word(header.get("content_type"), is_content_type, f"{field}.content_type")


def _header_word(value: object, is_allowed: Callable[[str], bool], field: str) -> str | None:
    """The value, if it is None or a string that a header can have."""
    if value is None or (isinstance(value, str) and is_allowed(value)):
        return value
    allowed = "a string that a header can have, or null"
    raise HarmonyFormatError(f"{field} is {shown_json(value)}: it must be {allowed}")


def _add_instructions(text: str, instructions: list[str], turns: list[Message]) -> None:
    """Adds to the instructions at the start, or, once there are turns, a developer message to these."""
    if turns:
        content = DeveloperContent(instructions=text)
        turns.append(Message.from_role_and_content(Role.DEVELOPER, content))
    else:
        instructions.append(text)


def _assistant_turn(message: Mapping[str, object], field: str, earlier: _Calls) -> list[Message]:
    """The messages of an assistant's chat message: chain of thought, then preamble or answer, then calls."""
    calls = as_list(message.get("tool_calls") or [], f"{field}.tool_calls")
    turn = _kept_turn(message, field)
    if turn is None:
        turn = _assistant_texts(message, field, bool(calls))
    for index, item in enumerate(calls):
        where = f"{field}.tool_calls[{index}]"
        call = as_object(item, where)
        function = as_object(call.get("function"), f"{where}.function")
        turn.append(earlier.call(call, where, function, f"{where}.function", "id"))
    return turn


def _assistant_texts(message: Mapping[str, object], field: str, has_calls: bool) -> list[Message]:
    """The thought and the text of an assistant's chat message. An answer that came empty has neither."""
    turn = []
    reasoning = message.get("reasoning", message.get("reasoning_content"))
    if reasoning:
        turn.append(_assistant(string(reasoning, f"{field}.reasoning"), "analysis"))
    if message.get("content") is not None:
        text = text_of(message["content"], f"{field}.content")
        if text or not has_calls:
            turn.append(_assistant(text, "commentary" if has_calls else "final"))
    elif message.get("refusal") is not None:
        turn.append(_assistant(string(message["refusal"], f"{field}.refusal"), "final"))
    elif not has_calls and not reasoning and "content" not in message:
        raise HarmonyFormatError(f"{field} has no content: it must when there are no tool_calls")
    return turn


def _kept_turn(message: Mapping[str, object], field: str) -> list[Message] | None:
    """The messages that `turn_extras` put into a chat message.

    None if there are none, or if they are not what the message says: its content was changed.
    """
    extras = _optional_object(message, "extra_content", field)
    holder = _optional_object(extras, "harmony", f"{field}.extra_content")
    if holder.get("messages") is None:
        return None
    place = f"{field}.extra_content.harmony.messages"
    kept = []
    for index, item in enumerate(as_list(holder["messages"], place)):
        data = as_object(item, f"{place}[{index}]")
        try:
            one = Message.from_dict(dict(data))
        except (KeyError, TypeError, ValueError):
            raise HarmonyFormatError(f"{place}[{index}] is no message of an answer") from None
        is_text = all(isinstance(part, TextContent) for part in one.content)
        if one.author.role not in (Role.ASSISTANT, Role.TOOL) or not is_text:
            raise HarmonyFormatError(f"{place}[{index}] is no message of an answer")
        string(_message_text(one), f"{place}[{index}].content")
        kept.append(one)
    said = chat_message_from(kept, call_id=str).get("content")
    content = message.get("content")
    is_same = (said or "") == ("" if content is None else text_of(content, f"{field}.content"))
    return kept if is_same else None


def _add_item_message(
    item: Mapping[str, object], field: str, calls_follow: bool, instructions: list[str], turns: list[Message]
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
        raise HarmonyFormatError(f"{field}.role is {shown_json(role)}: it must be {allowed}")


def _calls_follow(items: Sequence[object], index: int) -> bool:
    """Whether a call follows the item at `index` in the same turn, before any other message."""
    for item in items[index + 1 :]:
        if isinstance(item, Mapping):
            if item.get("type") == "function_call":
                return True
            if item.get("type", "message") == "message":
                return False
    return False


def _reasoning_item_text(item: Mapping[str, object], field: str) -> str:
    texts = []
    for index, part in enumerate(as_list(item.get("content") or [], f"{field}.content")):
        where = f"{field}.content[{index}]"
        texts.append(string(as_object(part, where).get("text"), f"{where}.text"))
    return "\n\n".join(texts)


def _message_text(message: Message) -> str:
    return "".join(part.text for part in message.content if isinstance(part, TextContent))
