"""What the commands read: files and standard input, and conversations in any of their forms.

Every error is a HarmonyFormatError of one line that names the input, the field and what is allowed.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, NoReturn

from pydantic import ValidationError

from gptoss_jax.commands.harmony.terminal import printable
from harmony import (
    Author,
    Content,
    Conversation,
    DeveloperContent,
    HarmonyEncoding,
    HarmonyFormatError,
    Message,
    Role,
    SystemContent,
    TextContent,
    load_encoding,
    load_harmony_encoding,
)
from harmony.api_fields import require
from harmony.chatml import conversation_from_chatml
from harmony.errors import shown
from harmony.numbers import MOST_LEVELS, TOO_DEEP
from harmony.openai_formats import conversation_from_body

Form = Literal["harmony", "chat", "responses", "chatml"]

_URLS: Mapping[str, Form] = {"/v1/chat/completions": "chat", "/v1/responses": "responses"}
_OF_HARMONY_MESSAGES = {"channel", "recipient", "content_type", "recipient_place"}
_OF_CHAT_MESSAGES = {"tool_calls", "tool_call_id", "reasoning", "reasoning_content", "refusal"}
_OF_PARSED = {"messages", "complete", "end", "diagnostics"}
_CONTENTS: Mapping[str, type[Content]] = {
    "text": TextContent,
    "system_content": SystemContent,
    "developer_content": DeveloperContent,
}
_ROLES = [role.value for role in Role]


def source_name(file: str) -> str:
    """How errors call the input."""
    return "standard input" if file == "-" else printable(file)


def read_text(file: str) -> str:
    """The text of a file, or of standard input for `-`."""
    name = source_name(file)
    try:
        if file != "-":
            data = Path(file).read_bytes()
        elif sys.stdin is None:
            raise HarmonyFormatError("standard input is closed")
        else:
            data = sys.stdin.buffer.read()
    except OSError as error:
        raise HarmonyFormatError(f"cannot read {name}: {error.strerror}") from None
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise HarmonyFormatError(
            f"{name} is not UTF-8 text: {error.reason} at byte {error.start + 1}"
        ) from None


def load_vocabulary(choice: str | None) -> HarmonyEncoding:
    """The encoding that `--vocabulary` names: a path, tiny, or None for the one in the package."""
    if choice is None:
        return load_harmony_encoding()
    path = _tiny_vocabulary() if choice == "tiny" else Path(choice)
    try:
        return load_encoding(path)
    except HarmonyFormatError as error:
        raise HarmonyFormatError(printable(str(error))) from None


def _tiny_vocabulary() -> Path:
    # Importing `checkpoints` would load jax.
    package = find_spec("checkpoints")
    if package is None or package.origin is None:
        raise HarmonyFormatError("the embedded model's vocabulary is not installed")
    return Path(package.origin).parent / "tiny" / "vocabulary.tiktoken"


def read_conversation(file: str, form: str = "auto", date: str | None = None) -> Conversation:
    """The conversation in a file. `form` is a `Form` or auto; `date` as in `conversation_from_chat`."""
    name = source_name(file)
    text = read_text(file)
    try:
        if form == "chatml" or (form == "auto" and text.lstrip().startswith("<|im_start|>")):
            return conversation_from_chatml(text, current_date=date)
        document = read_json(text)
        _check_depth_and_strings(document)
        body = _body(document)
        match _form_of(body, document) if form == "auto" else form:
            case "harmony":
                return _harmony_conversation(body)
            case "responses":
                return conversation_from_body(body, "responses", current_date=date)
            case _:
                return conversation_from_body(_of_prompt(body), "chat", current_date=date)
    except HarmonyFormatError as error:
        raise HarmonyFormatError(f"{name}: {printable(str(error))}") from None
    except RecursionError:
        raise HarmonyFormatError(f"{name} is {TOO_DEEP}") from None


def read_json(text: str) -> Any:
    """The JSON value of a text."""
    if not text.strip():
        raise HarmonyFormatError("it is empty")
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        if error.msg == "Extra data":
            raise HarmonyFormatError(f"a second JSON value begins at {where}: give one at a time") from None
        hint = ""
        if text.lstrip().startswith("<|"):
            hint = "; `gptoss-jax harmony parse` reads text with special tokens"
        raise HarmonyFormatError(f"it is not JSON: {error.msg} at {where}{hint}") from None
    except HarmonyFormatError:
        raise
    except ValueError:
        raise HarmonyFormatError("it has a whole number of thousands of digits") from None


def _refuse_constant(name: str) -> NoReturn:
    raise HarmonyFormatError(f"it has {name}, which is no JSON number")


def _check_depth_and_strings(document: Any) -> None:
    """Refuses lone surrogates, which no encoding can express, and nesting that no conversation has."""
    waiting: list[tuple[Any, str, int]] = [(document, "", 0)]
    while waiting:
        value, where, level = waiting.pop()
        if isinstance(value, str):
            if not value.isascii() and any("\ud800" <= character <= "\udfff" for character in value):
                raise HarmonyFormatError(f"{where or 'it'} is {shown(value)}: it has a lone surrogate")
        elif isinstance(value, dict | list):
            if level == MOST_LEVELS:
                raise HarmonyFormatError(f"{where[:60]}… is {TOO_DEEP}")
            if isinstance(value, dict):
                waiting += [(key, f"a key of {where or 'it'}", level) for key in value]
                waiting += [
                    (item, f"{where}.{key}" if where else key, level + 1) for key, item in value.items()
                ]
            else:
                waiting += [(item, f"{where}[{index}]", level + 1) for index, item in enumerate(value)]


# Forms


def _body(document: Any) -> dict[str, Any]:
    """The object with the messages, the input or the prompt."""
    if isinstance(document, list):
        return {"messages": document}
    require(isinstance(document, dict), "it", document, "an object, or a list of messages")
    if "body" in document and not document.keys() & {"messages", "input", "prompt"}:
        require(isinstance(document["body"], dict), "body", document["body"], "an object")
        return document["body"]
    return document


def _form_of(body: Mapping[str, Any], document: Any) -> Form:
    if isinstance(document, dict) and body is not document:  # a line of a Batch file
        url = document.get("url")
        if isinstance(url, str) and url in _URLS:
            return _URLS[url]
    if "input" in body:
        return "responses"
    if "messages" in body:
        return "harmony" if _are_harmony_messages(body["messages"], body.keys()) else "chat"
    if "prompt" in body:
        return "chat"
    keys = ", ".join(shown(key) for key in list(body)[:5]) or "none"
    raise HarmonyFormatError(
        f"its keys are {keys}: it must have messages (a harmony conversation or a Chat Completions request) "
        "or input (a Responses request)"
    )


def _are_harmony_messages(messages: Any, keys: Any) -> bool:
    """Whether messages are harmony's: told by their fields, by typed contents, else by lists of parts.

    Harmony's own JSON always has lists of parts; a plain string is what people write for Chat Completions.
    """
    if not isinstance(messages, list):
        return keys <= {"messages"}
    objects = [message for message in messages if isinstance(message, dict)]
    if any(message.keys() & _OF_HARMONY_MESSAGES or _has_typed_content(message) for message in objects):
        return True
    if keys - _OF_PARSED or any(message.keys() & _OF_CHAT_MESSAGES for message in objects):
        return False
    return all(isinstance(message.get("content"), list) for message in objects)


def _has_typed_content(message: Mapping[str, Any]) -> bool:
    content = message.get("content")
    parts = content if isinstance(content, list) else []
    return any(
        isinstance(part, dict) and part.get("type") in ("system_content", "developer_content")
        for part in parts
    )


def _of_prompt(body: dict[str, Any]) -> dict[str, Any]:
    """A body whose only message is its `prompt`, if it has no messages."""
    if "messages" in body or "prompt" not in body:
        return body
    require(isinstance(body["prompt"], str), "prompt", body["prompt"], "a string")
    return {**body, "messages": [{"role": "user", "content": body["prompt"]}]}


# Harmony's own JSON


def _harmony_conversation(body: Mapping[str, Any]) -> Conversation:
    if "messages" not in body:
        raise HarmonyFormatError("it has no messages: a harmony conversation must")
    for key in ("tools", "tool_choice", "response_format", "reasoning_effort", "reasoning"):
        if body.get(key) is not None:
            raise HarmonyFormatError(
                f"{key} is a field of Chat Completions, but the messages are harmony's, "
                "whose system and developer contents say this"
            )
    messages = body["messages"]
    require(isinstance(messages, list), "messages", messages, "a list")
    return Conversation(
        messages=[_message(message, f"messages[{index}]") for index, message in enumerate(messages)]
    )


def _message(data: Any, where: str) -> Message:
    require(isinstance(data, dict), where, data, "an object")
    role, content = data.get("role"), data.get("content")
    require(role in _ROLES, f"{where}.role", role, f"{', '.join(_ROLES[:-1])} or {_ROLES[-1]}")
    require(isinstance(content, str | list), f"{where}.content", content, "a string or a list of parts")
    for key in ("name", "channel", "recipient", "content_type"):
        value = data.get(key)
        require(value is None or isinstance(value, str), f"{where}.{key}", value, "a string")
    place = data.get("recipient_place", "role")
    require(place in ("role", "channel"), f"{where}.recipient_place", place, "role or channel")
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
    return Message(
        author=Author(role=Role(role), name=data.get("name")),
        content=[_part(part, f"{where}.content[{index}]") for index, part in enumerate(parts)],
        channel=data.get("channel"),
        recipient=data.get("recipient"),
        content_type=data.get("content_type"),
        recipient_place=place,
    )


def _part(data: Any, where: str) -> Content:
    require(isinstance(data, dict), where, data, "an object")
    kind = data.get("type")
    allowed = "text, system_content or developer_content"
    require(isinstance(kind, str) and kind in _CONTENTS, f"{where}.type", kind, allowed)
    try:
        return _CONTENTS[kind].model_validate(data)
    except ValidationError as error:
        wrong = error.errors(include_url=False)[0]
        field = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in wrong["loc"])
        if wrong["type"] == "missing":
            raise HarmonyFormatError(f"{where}{field} is missing") from None
        expected = wrong["msg"].removeprefix("Input should be ")
        raise HarmonyFormatError(
            f"{where}{field} is {shown(wrong['input'])}: it must be {expected}"
        ) from None
