"""ChatML, the conversation format of many other models ↔ harmony conversations.

A ChatML transcript is a series of messages `<|im_start|>role\\n…<|im_end|>`. An assistant's message has its
chain of thought in `<think>` and its calls as JSON in `<tool_call>`. The results of calls are in
`<tool_response>`. The system message has the functions as JSON Schema in `<tools>`.

Results have no ids in ChatML. A result belongs to the earliest call that has none yet; after a user's message
the calls before it get no results any more. `chatml_losses` lists what a conversion loses in each direction.
All else survives the way there and back.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import NamedTuple

from .errors import HarmonyFormatError, shown
from .json_types import Json, JsonObject
from .messages import Conversation, DeveloperContent, Message, Role, TextContent, ToolDescription
from .numbers import json_value
from .openai_formats import called_function, conversation_from_chat

_BLOCK = re.compile(r"\s*<\|im_start\|>(\w+)\n(.*?)(?:<\|im_end\|>|\Z)", re.DOTALL)
# With nothing between them, the tags are not a call: the text is about the tags.
_CALL = re.compile(r"\s*<tool_call>\s*((?!</tool_call>)\S.*?)\s*</tool_call>", re.DOTALL)
_TAGS = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)
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
    """The conversation of a ChatML transcript.

    `reasoning_effort` is one of `messages.EFFORT_WORDS`; None: medium. `current_date` is `YYYY-MM-DD`; None:
    today. Raises HarmonyFormatError, which names the message, counted from 0.
    """
    messages: list[JsonObject] = []
    tools: list[JsonObject] = []
    waiting: list[str] = []  # ids of the calls that have no result yet
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
            read = _read_turn(content, where, f"call_{number}_")
            waiting += read.call_ids
            messages.append(read.message)
        else:
            raise HarmonyFormatError(
                f"{where} has the role {role}: it must be system, user, assistant or tool"
            )
    if text[position:].strip():
        raise HarmonyFormatError(f"{shown(text[position:].strip())} is outside of any message")
    return conversation_from_chat(
        messages, tools=tools, reasoning_effort=reasoning_effort, current_date=current_date
    )


def chatml_from_conversation(conversation: Conversation) -> str:
    """The ChatML transcript of a conversation.

    Raises HarmonyFormatError if a text contains one of ChatML's tags: ChatML cannot escape them.
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
            texts = [text] if text else []
            for part in message.content:
                if isinstance(part, DeveloperContent):
                    texts += [] if part.instructions is None else [part.instructions]
                    namespace = (part.tools or {}).get("functions")
                    functions += namespace.tools if namespace is not None else []
            for one in texts:
                _refuse(one, ("<|im_start|>", "<|im_end|>", "<tools>"), where)
            if blocks:
                blocks += [_block("system", one) for one in texts]
            else:
                instructions += texts
    flush()
    if functions:
        instructions.append(
            _TOOLS_HEAD + "\n".join(_json(tool_entry(tool)) for tool in functions) + _TOOLS_TAIL
        )
    head = [_block("system", "\n\n".join(instructions))] if instructions else []
    return "".join(head + blocks)


@dataclass
class _Turn:
    """Consecutive messages of the assistant, which ChatML writes as one."""

    thoughts: list[str] = field(default_factory=list)
    content: list[str] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)

    @property
    def is_begun(self) -> bool:
        return bool(self.thoughts or self.content or self.calls)

    def is_over_before(self, message: Message) -> bool:
        """Whether a message needs a new turn: in one turn, thoughts come first, then text, then calls."""
        is_thought = message.channel == "analysis" and not message.is_call
        return bool(self.calls and not message.is_call) or bool(is_thought and self.content)

    def add(self, message: Message, text: str, where: str) -> None:
        name = called_function(message)
        if name is not None:
            call: JsonObject = {"name": name, "arguments": call_arguments(text)}
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
    """Role, content and end position of each message, as far as messages follow one another."""
    blocks = []
    position = 0
    while found := _BLOCK.match(text, position):
        position = found.end()
        blocks.append((found.group(1), found.group(2), position))
    return blocks


def _split_tools(content: str, where: str) -> tuple[str | None, list[JsonObject]]:
    """A system message's instructions (None: it has none), and its tools in the form of Chat Completions."""
    head, opened, rest = content.rpartition("<tools>\n")
    listed, closed, tail = rest.partition("</tools>")
    if not opened or not closed:
        return content, []
    tools: list[JsonObject] = []
    for line in filter(None, map(str.strip, listed.split("\n"))):
        tool = _json_object(line, f"{where}, a tool in <tools>,")
        tools.append(tool if "function" in tool else {"type": "function", "function": tool})
    if (head + opened).endswith(_TOOLS_HEAD) and "\n" + closed + tail == _TOOLS_TAIL:
        before = (head + opened).removesuffix(_TOOLS_HEAD)
        return before.removesuffix("\n\n") if before else None, tools
    before = _before_wording(head).strip()
    after = _after_wording(tail).strip()
    return "\n\n".join(filter(None, (before, after))) or None, tools


def _before_wording(head: str) -> str:
    """The text before the heading that introduces `<tools>`, or else before the sentence that does."""
    start = head.rfind("# Tools")
    if start < 0:
        tags = head.find("<tools></tools>")
        if tags < 0:
            return head
        start = 1 + max(head.rfind(end, 0, tags) for end in (". ", "! ", "? ", "\n"))
    return head[:start]


def _after_wording(tail: str) -> str:
    """The text after the last mention of `<tool_call>`, which is an example or a line that names the tags."""
    mentions = list(_TAGS.finditer(tail))
    if not mentions:
        return tail
    after = tail[mentions[-1].end() :]
    is_example = bool(mentions[-1].group(1).strip())
    return after if is_example else after.partition("\n")[2]


class _ReadTurn(NamedTuple):
    """An assistant's message in the form of Chat Completions, and the ids of its calls."""

    message: JsonObject
    call_ids: list[str]


def _read_turn(content: str, where: str, ids: str) -> _ReadTurn:
    """Reads an assistant's message; `ids` begins the ids of its calls."""
    turn: JsonObject = {"role": "assistant"}
    opening = re.match(r"\s*<think>\n?", content)
    if opening:
        thoughts, _, content = content[opening.end() :].partition("</think>")
        turn["reasoning"] = thoughts.removesuffix("\n")
        content = content.removeprefix("\n").removeprefix("\n")
    calls: list[Json] = []
    call_ids = []
    for number, call in enumerate(_CALL.findall(content)):
        data = _json_object(call, f"{where}, call {number},")
        arguments = data.get("arguments", {})
        if not isinstance(arguments, str):
            arguments = json.dumps(arguments, ensure_ascii=False)
        call_ids.append(f"{ids}{number}")
        function: JsonObject = {"name": data.get("name"), "arguments": arguments}
        calls.append({"id": call_ids[-1], "function": function})
    turn["tool_calls"] = calls
    before, *others = _CALL.split(content)
    after = filter(None, map(str.strip, others[1::2]))  # the other half are the calls
    turn["content"] = "\n\n".join([*([before] if before or not calls else []), *after])
    if not turn["content"] and turn.get("reasoning"):
        turn["content"] = None
    return _ReadTurn(turn, call_ids)


def _json_object(text: str, where: str) -> JsonObject:
    try:
        value = json_value(text)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise HarmonyFormatError(f"{where} is {shown(text)}: it must be a JSON object")
    return value


def call_arguments(text: str) -> Json:
    """The arguments of a call as its JSON has them: an object if the text is one, else the text itself."""
    try:
        value = json_value(text)
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except ValueError:
        return text
    return value if isinstance(value, dict) else text


def tool_entry(tool: ToolDescription) -> JsonObject:
    """A function as `<tools>` lists it, which is its form in Chat Completions."""
    function: JsonObject = {
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.parameters or {"type": "object", "properties": {}},
    }
    return {"type": "function", "function": function}


def _json(value: Json) -> str:
    """JSON on one line, with ChatML's tags escaped."""
    return re.sub(r"<(?=\|im_|/?tool)", r"\\u003c", json.dumps(value, ensure_ascii=False))


def _block(role: str, content: str) -> str:
    return f"<|im_start|>{role}\n{content}<|im_end|>\n"


def _refuse(text: str, tags: tuple[str, ...], where: str) -> None:
    for tag in tags:
        if tag in text:
            raise HarmonyFormatError(f"{where} has {tag} in its text: ChatML cannot escape it")
