"""ChatML, the older format of other models ↔ harmony conversations.

A transcript is messages `<|im_start|>role\\n…<|im_end|>`; an assistant's thoughts stand in `<think>`, its
calls as JSON in `<tool_call>`, their results in `<tool_response>`, and the functions as JSON Schema in
`<tools>` inside the system message.

A result has no id in ChatML: it answers the earliest call that waits for one, and a user's message ends the
waiting. What ChatML and harmony cannot carry is stated in `chatml_losses`; the rest survives the way there
and back.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .errors import HarmonyFormatError, shown
from .messages import Conversation, DeveloperContent, Message, Role, TextContent, ToolDescription
from .numbers import json_value
from .openai_formats import called_function, conversation_from_chat

_BLOCK = re.compile(r"\s*<\|im_start\|>(\w+)\n(.*?)(?:<\|im_end\|>|\Z)", re.DOTALL)
_CALL = re.compile(r"\n?<tool_call>\s*(.*?)\s*</tool_call>", re.DOTALL)
_RESPONSE = re.compile(r"\s*<tool_response>\n?(.*?)\n?</tool_response>", re.DOTALL)
_TOOLS_HEAD = (
    "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
    "You are provided with function signatures within <tools></tools> XML tags:\n<tools>\n"
)
_TOOLS_TAIL = (
    "\n</tools>\n\nFor each function call, return a json object with function name and arguments within "
    '<tool_call></tool_call> XML tags:\n<tool_call>\n{"name": <function-name>, "arguments": '
    "<args-json-object>}\n</tool_call>"
)


def conversation_from_chatml(
    text: str, *, reasoning_effort: str | None = None, current_date: str | None = None
) -> Conversation:
    """The conversation of a ChatML transcript; `current_date` is `YYYY-MM-DD`, by default today's.

    Raises HarmonyFormatError naming the message, counted from 0.
    """
    messages: list[dict[str, Any]] = []
    tools: list[Any] = []
    waiting: list[str] = []  # ids of the calls without a result
    position = 0
    for number, (role, content, end) in enumerate(_blocks(text)):
        position = end
        where = f"message {number}"
        if role == "system":
            instructions, found = _split_tools(content, where)
            tools += found
            if instructions is not None:
                messages.append({"role": "system", "content": instructions})
        elif role == "tool" or (role == "user" and _RESPONSE.match(content)):
            outputs = _RESPONSE.findall(content) or [content]
            if len(outputs) > len(waiting):
                raise HarmonyFormatError(f"{where} has {len(outputs)} results for {len(waiting)} calls")
            for output in outputs:
                messages.append({"role": "tool", "tool_call_id": waiting.pop(0), "content": output})
            words = _RESPONSE.sub("", content).strip() if role == "user" else ""
            if words:
                messages.append({"role": "user", "content": words})
        elif role == "user":
            waiting = []
            messages.append({"role": "user", "content": content})
        elif role == "assistant":
            turn = _read_turn(content, where, f"call_{number}_")
            waiting += [call["id"] for call in turn["tool_calls"]]
            messages.append(turn)
        else:
            raise HarmonyFormatError(
                f"{where} has the role {shown(role)}: it must be system, user, assistant or tool"
            )
    if text[position:].strip():
        raise HarmonyFormatError(f"{shown(text[position:].strip())} stands outside of any message")
    return conversation_from_chat(
        messages, tools=tools, reasoning_effort=reasoning_effort, current_date=current_date
    )


def chatml_from_conversation(conversation: Conversation) -> str:
    """The ChatML transcript of a conversation.

    Raises HarmonyFormatError where text holds a tag that would change the transcript: ChatML cannot escape.
    """
    instructions: list[str] = []
    functions: list[ToolDescription] = []
    blocks: list[str] = []
    turn = _Turn()
    results: list[str] = []

    def flush() -> None:
        if turn.is_begun:
            blocks.append(_block("assistant", turn.text()))
            turn.clear()
        if results:
            blocks.append(_block("user", "\n".join(results)))
            results.clear()

    for number, message in enumerate(conversation.messages):
        text = "".join(part.text for part in message.content if isinstance(part, TextContent))
        where = f"message {number}"
        if not message.is_call:
            _refuse(text, ("<|im_start|>", "<|im_end|>"), where)
        role = message.author.role
        if role is Role.ASSISTANT:
            if results or turn.is_over_before(message):
                flush()
            turn.add(message, text, where)
        elif role is Role.TOOL:
            _refuse(text, ("</tool_response>",), where)
            if turn.is_begun:
                flush()
            results.append(f"<tool_response>\n{text}\n</tool_response>")
        elif role is Role.USER:
            flush()
            if _RESPONSE.match(text):
                _refuse(text, ("<tool_response>",), where)
            blocks.append(_block("user", text))
        else:
            flush()
            said = [text] if text else []
            for part in message.content:
                if isinstance(part, DeveloperContent):
                    said += [] if part.instructions is None else [part.instructions]
                    namespace = (part.tools or {}).get("functions")
                    functions += namespace.tools if namespace is not None else []
            for one in said:
                _refuse(one, ("<|im_start|>", "<|im_end|>", "<tools>"), where)
            if blocks:
                blocks += [_block("system", one) for one in said]
            else:
                instructions += said
    flush()
    if functions:
        instructions.append(
            _TOOLS_HEAD + "\n".join(_json(tool_entry(tool)) for tool in functions) + _TOOLS_TAIL
        )
    head = [_block("system", "\n\n".join(instructions))] if instructions else []
    return "".join(head + blocks)


@dataclass
class _Turn:
    """Consecutive messages of the assistant that ChatML writes as one."""

    thoughts: list[str] = field(default_factory=list)
    content: list[str] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)

    @property
    def is_begun(self) -> bool:
        return bool(self.thoughts or self.content or self.calls)

    def is_over_before(self, message: Message) -> bool:
        """Whether the message cannot follow in one turn: thoughts, text and calls come in this order."""
        is_thought = message.channel == "analysis" and not message.is_call
        return bool(self.calls and not message.is_call) or bool(is_thought and self.content)

    def add(self, message: Message, text: str, where: str) -> None:
        name = called_function(message)
        if name is not None:
            call = {"name": name, "arguments": call_arguments(text)}
            self.calls.append(f"<tool_call>\n{_json(call)}\n</tool_call>")
        elif message.channel == "analysis":
            _refuse(text, ("</think>",), where)
            self.thoughts.append(text)
        else:
            _refuse(text, ("<tool_call>", "<think>"), where)
            self.content.append(text)

    def text(self) -> str:
        thoughts = "\n\n".join(self.thoughts)
        head = f"<think>\n{thoughts}\n</think>\n\n" if self.thoughts else ""
        body = "\n\n".join(self.content)
        return head + "\n".join([*([body] if body or not self.calls else []), *self.calls])

    def clear(self) -> None:
        self.thoughts, self.content, self.calls = [], [], []


def _blocks(text: str) -> list[tuple[str, str, int]]:
    """Role, content and end of each message, up to where no message follows."""
    blocks = []
    position = 0
    while found := _BLOCK.match(text, position):
        position = found.end()
        blocks.append((found.group(1), found.group(2), position))
    return blocks


def _split_tools(content: str, where: str) -> tuple[str | None, list[dict[str, Any]]]:
    """A system message's instructions, if it has any, and its tools, as Chat Completions has them."""
    head, opened, rest = content.rpartition("<tools>\n")
    listed, closed, tail = rest.partition("</tools>")
    if not opened or not closed:
        return content, []
    tools = []
    for line in filter(None, map(str.strip, listed.split("\n"))):
        tool = _json_object(line, f"{where}, a tool in <tools>,")
        tools.append(tool if "function" in tool else {"type": "function", "function": tool})
    if (head + opened).endswith(_TOOLS_HEAD) and "\n" + closed + tail == _TOOLS_TAIL:
        before = (head + opened).removesuffix(_TOOLS_HEAD)
        return before.removesuffix("\n\n") if before else None, tools
    before = head[: head.rfind("# Tools")] if "# Tools" in head else head
    after = tail.rpartition("</tool_call>")[2]
    return "\n\n".join(filter(None, (before.strip(), after.strip()))) or None, tools


def _read_turn(content: str, where: str, ids: str) -> dict[str, Any]:
    """An assistant's message as Chat Completions has it."""
    turn: dict[str, Any] = {"role": "assistant"}
    opening = re.match(r"\s*<think>\n?", content)
    if opening:
        thoughts, _, content = content[opening.end() :].partition("</think>")
        turn["reasoning"] = thoughts.removesuffix("\n")
        content = content.removeprefix("\n").removeprefix("\n")
    calls = []
    for number, call in enumerate(_CALL.findall(content)):
        data = _json_object(call, f"{where}, call {number},")
        arguments = data.get("arguments", {})
        if not isinstance(arguments, str):
            arguments = json.dumps(arguments, ensure_ascii=False)
        calls.append({"id": f"{ids}{number}", "function": {"name": data.get("name"), "arguments": arguments}})
    turn["tool_calls"] = calls
    before, *others = _CALL.split(content)
    after = filter(None, map(str.strip, others[1::2]))  # between them stand the calls
    turn["content"] = "\n\n".join([*([before] if before or not calls else []), *after])
    if not turn["content"] and turn.get("reasoning"):
        turn["content"] = None
    return turn


def _json_object(text: str, where: str) -> dict[str, Any]:
    try:
        value = json_value(text)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise HarmonyFormatError(f"{where} is {shown(text)}: it must be a JSON object")
    return value


def call_arguments(text: str) -> Any:
    """How a call's JSON has its arguments: as an object if they are one, else as their text."""
    try:
        value = json_value(text)
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except ValueError:
        return text
    return value if isinstance(value, dict) else text


def tool_entry(tool: ToolDescription) -> dict[str, Any]:
    """A function as `<tools>` lists it, which is as Chat Completions does."""
    function: Mapping[str, Any] = {
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.parameters or {"type": "object", "properties": {}},
    }
    return {"type": "function", "function": function}


def _json(value: Any) -> str:
    """JSON on one line, in which no tag can be read: JSON can escape."""
    return re.sub(r"<(?=\|im_|/?tool)", r"\\u003c", json.dumps(value, ensure_ascii=False))


def _block(role: str, content: str) -> str:
    return f"<|im_start|>{role}\n{content}<|im_end|>\n"


def _refuse(text: str, tags: tuple[str, ...], where: str) -> None:
    for tag in tags:
        if tag in text:
            raise HarmonyFormatError(f"{where} has {tag} in its text: ChatML cannot escape it")
