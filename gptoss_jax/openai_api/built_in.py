"""The built-in tools in OpenAI's bodies: by which types requests ask for them, and their calls as items."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from gptoss_jax.answers import kind_of, text_of
from harmony.openai_formats import call_header, turn_extras

if TYPE_CHECKING:
    from gptoss_jax.answers import BuiltInCall, Sample
    from harmony import Message

_NAMES = {
    "python": "python",
    "code_interpreter": "python",
    "browser": "browser",
    "browser_search": "browser",
    "web_search": "browser",
    "web_search_2025_08_26": "browser",
    "web_search_preview": "browser",
    "web_search_preview_2025_03_11": "browser",
}
"""The type of a tool in a body → the tool's name in harmony."""

_PUBLISHED = {"python": "code_interpreter", "browser": "web_search", "browser_search": "web_search"}
"""Types that OpenAI's API does not have → the type that it has."""

CODE, SEARCH = "code_interpreter_call", "web_search_call"
ITEM_TYPES = (CODE, SEARCH)
"""The types of items that are calls of built-in tools."""

_HIDDEN_ACTIONS: Mapping[str, dict[str, Any]] = {
    "open": {"type": "open_page", "url": None},
    "find": {"type": "find_in_page", "pattern": "", "url": ""},
}


def built_in_name(tool: object) -> str | None:
    """The built-in tool that a tool of a body, or its `tool_choice`, asks for; None for others."""
    kind = tool.get("type") if isinstance(tool, Mapping) else None
    return _NAMES.get(kind) if isinstance(kind, str) else None


def listed_tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    """A built-in tool as a response repeats it, with a type that OpenAI's API has."""
    kind = _PUBLISHED.get(tool["type"], tool["type"])
    listed = {**tool, "type": kind}
    if kind == "code_interpreter":
        listed.setdefault("container", {"type": "auto"})
    return listed


def item_type(call: Message) -> str:
    """The type of the item that a call becomes."""
    return CODE if call.recipient == "python" else SEARCH


def call_item(
    call: BuiltInCall, number: int, unique: str, *, is_shown: bool, with_outputs: bool
) -> dict[str, Any]:
    """The item of a call, the `number`-th message of a response.

    `is_shown`: whether what the tool was told and what it answered may be seen. `with_outputs`: whether the
    request asks for the outputs of code.
    """
    status = "incomplete" if call.result is None else "failed" if call.failed else "completed"
    if item_type(call.message) == CODE:
        logs = None
        if is_shown and with_outputs and call.result is not None:
            logs = [{"type": "logs", "logs": text_of(call.result)}]
        return {
            "type": CODE,
            "id": f"ci_{unique}{number:02d}",
            "code": text_of(call.message) if is_shown else None,
            "container_id": f"cntr_{unique}",
            "outputs": logs,
            "status": status,
        }
    return {
        "type": SEARCH,
        "id": f"ws_{unique}{number:02d}",
        "action": _action(call.message, is_shown),
        "status": status,
    }


def begin_events(item: Mapping[str, Any], index: int) -> Iterator[dict[str, Any]]:
    """The events with which a call's item begins, until its tool is at work; without numbers."""
    kind, code = f"response.{item['type']}", item.get("code")
    place = {"output_index": index, "item_id": item["id"]}
    hidden = ("encrypted_content", "extra_content")  # they are told when they are whole
    begun = {name: value for name, value in item.items() if name not in hidden}
    begun["status"] = "in_progress"
    if item["type"] == CODE:
        begun |= {"code": None if code is None else "", "outputs": None}
    yield {"type": "response.output_item.added", "output_index": index, "item": begun}
    yield {"type": f"{kind}.in_progress", **place}
    if code is not None:
        yield {"type": f"{kind}_code.delta", **place, "delta": code}
        yield {"type": f"{kind}_code.done", **place, "code": code}
    yield {"type": f"{kind}.{'interpreting' if item['type'] == CODE else 'searching'}", **place}


def end_events(item: Mapping[str, Any], index: int) -> Iterator[dict[str, Any]]:
    """The events with which a call's item ends; without numbers."""
    if item["status"] == "completed":
        kind = f"response.{item['type']}.completed"
        yield {"type": kind, "output_index": index, "item_id": item["id"]}
    yield {"type": "response.output_item.done", "output_index": index, "item": item}


def carried(call: BuiltInCall) -> dict[str, Any] | None:
    """What the next prompt needs of a call, for its item's `extra_content`; None for one that was not run."""
    if call.result is None:
        return None
    return {**call_header(call.message), "input": text_of(call.message), "output": text_of(call.result)}


def turn_with_calls(sample: Sample) -> dict[str, Any]:
    """The field `extra_content` of a chat message, with the calls of built-in tools and their results.

    Nothing if there was no such call.
    """
    turn: list[Message] = []
    for number, message in enumerate(sample.messages):
        call = sample.built_in_calls.get(number)
        if call is not None and call.result is not None:
            turn += [call.message, call.result]
        elif call is None and kind_of(message) in ("reasoning", "preamble", "text") and text_of(message):
            turn.append(message.model_copy(update={"channel": message.channel or "analysis"}))
    has_calls = any(call.result is not None for call in sample.built_in_calls.values())
    return turn_extras(turn) if has_calls else {}


def _action(call: Message, is_shown: bool) -> dict[str, Any]:
    """What the browser is to do."""
    function = (call.recipient or "").partition(".")[2]
    if not is_shown:
        return _HIDDEN_ACTIONS.get(function, {"type": "search", "query": ""})
    text = text_of(call)
    try:
        arguments = json.loads(text)
    except ValueError:
        arguments = None
    if not isinstance(arguments, dict):
        arguments = {}
    if function == "open":
        id = arguments.get("id")
        return {"type": "open_page", "url": id if isinstance(id, str) else None}
    if function == "find":
        return {"type": "find_in_page", "pattern": str(arguments.get("pattern", text)), "url": ""}
    query = str(arguments.get("query", text))
    return {"type": "search", "query": query, "queries": [query]}
