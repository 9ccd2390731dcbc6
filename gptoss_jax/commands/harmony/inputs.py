"""Reads the input of the commands: files and standard input, and conversations in any form.

Every error is a HarmonyFormatError: one line that names the input, the field and what is allowed.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Literal, NoReturn

from pydantic import ValidationError

from gptoss_jax.terminal import printable
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
from harmony.api_fields import as_list, as_object, require
from harmony.chatml import conversation_from_chatml
from harmony.errors import shown_json
from harmony.json_types import Json
from harmony.numbers import MAX_LEVELS, TOO_DEEP
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
    """The name of the input in errors."""
    return "standard input" if file == "-" else printable(file)


def read_text(file: str) -> str:
    """The text of a file, or of standard input if `file` is "-"."""
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
    """The encoding that `--vocabulary` names: a path, or "tiny". None: the encoding of gpt-oss."""
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
    """The conversation in a file, or in standard input if `file` is "-".

    `form` is a `Form`, or "auto": the content decides. `date` is `YYYY-MM-DD`; None: today.
    """
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
                return conversation_from_body(_with_messages(body), "chat", current_date=date)
    except HarmonyFormatError as error:
        raise HarmonyFormatError(f"{name}: {printable(str(error))}") from None
    except RecursionError:
        raise HarmonyFormatError(f"{name} is {TOO_DEEP}") from None


def read_json(text: str) -> Json:
    """The JSON value of a text. Raises HarmonyFormatError."""
    if not text.strip():
        raise HarmonyFormatError("it is empty")
    try:
        value: Json = json.loads(text, parse_constant=_refuse_constant)
        return value
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
    raise HarmonyFormatError(f"it has {name}, which is not a JSON number")


def _check_depth_and_strings(document: Json) -> None:
    """Refuses lone surrogates, which cannot be encoded, and more than `MAX_LEVELS` levels of nesting."""
    waiting: list[tuple[Json, str, int]] = [(document, "", 0)]
    while waiting:
        value, where, level = waiting.pop()
        if isinstance(value, str):
            if not value.isascii() and any("\ud800" <= character <= "\udfff" for character in value):
                raise HarmonyFormatError(f"{where or 'it'} is {shown_json(value)}: it has a lone surrogate")
        elif isinstance(value, dict | list):
            if level == MAX_LEVELS:
                raise HarmonyFormatError(f"{where[:60]}… is {TOO_DEEP}")
            if isinstance(value, dict):
                waiting += [(key, f"a key of {where or 'it'}", level) for key in value]
                waiting += [
                    (item, f"{where}.{key}" if where else key, level + 1) for key, item in value.items()
                ]
            else:
                waiting += [(item, f"{where}[{index}]", level + 1) for index, item in enumerate(value)]


# Forms


def _body(document: Json) -> Mapping[str, object]:
    """The object that has the messages, the input or the prompt: the document, or the body in it."""
    if isinstance(document, list):
        return {"messages": document}
    if not isinstance(document, dict):
        raise HarmonyFormatError(f"it is {shown_json(document)}: it must be an object, or a list of messages")
    if "body" in document and not document.keys() & {"messages", "input", "prompt"}:
        return as_object(document["body"], "body")
    return document


def _form_of(body: Mapping[str, object], document: Json) -> Form:
    """The form of a body, which its fields and messages show, or the URL beside it."""
    if isinstance(document, dict) and body is not document:  # a line of a Batch file
        url = document.get("url")
        if isinstance(url, str) and url in _URLS:
            return _URLS[url]
    if "input" in body:
        return "responses"
    if "messages" in body:
        return "harmony" if _are_harmony_messages(body["messages"], set(body)) else "chat"
    if "prompt" in body:
        return "chat"
    keys = ", ".join(shown_json(key) for key in list(body)[:5]) or "none"
    raise HarmonyFormatError(
        f"its keys are {keys}: it must have messages (a harmony conversation or a Chat Completions request) "
        "or input (a Responses request)"
    )


def _are_harmony_messages(messages: object, keys: set[str]) -> bool:
    """True if messages are harmony's, False if they are of Chat Completions; `keys` are those of the body.

    A field or a content that only one form has decides; otherwise, whether all contents are lists of parts.
    Harmony's own JSON always has such lists. A plain string is what people write for Chat Completions.
    """
    if not isinstance(messages, list):
        return keys <= {"messages"}
    objects = [message for message in messages if isinstance(message, dict)]
    if any(message.keys() & _OF_HARMONY_MESSAGES or _has_typed_content(message) for message in objects):
        return True
    if keys - _OF_PARSED or any(message.keys() & _OF_CHAT_MESSAGES for message in objects):
        return False
    return all(isinstance(message.get("content"), list) for message in objects)


def _has_typed_content(message: Mapping[str, object]) -> bool:
    """Whether a message has content of a type that only harmony's messages have."""
    content = message.get("content")
    parts = content if isinstance(content, list) else []
    return any(
        isinstance(part, dict) and part.get("type") in ("system_content", "developer_content")
        for part in parts
    )


def _with_messages(body: Mapping[str, object]) -> Mapping[str, object]:
    """The body; if it has a `prompt` and no messages, with the prompt as a user's message."""
    if "messages" in body or "prompt" not in body:
        return body
    require(isinstance(body["prompt"], str), "prompt", body["prompt"], "a string")
    return {**body, "messages": [{"role": "user", "content": body["prompt"]}]}


# Harmony's own JSON


def _harmony_conversation(body: Mapping[str, object]) -> Conversation:
    if "messages" not in body:
        raise HarmonyFormatError("it has no messages: a harmony conversation must")
    for key in ("tools", "tool_choice", "response_format", "reasoning_effort", "reasoning"):
        if body.get(key) is not None:
            raise HarmonyFormatError(
                f"{key} is a field of Chat Completions, but the messages are harmony's: their system and "
                "developer contents say this"
            )
    messages = as_list(body["messages"], "messages")
    return Conversation(
        messages=[_message(message, f"messages[{index}]") for index, message in enumerate(messages)]
    )


def _message(value: object, where: str) -> Message:
    data = as_object(value, where)
    role, content = data.get("role"), data.get("content")
    require(role in _ROLES, f"{where}.role", role, f"{', '.join(_ROLES[:-1])} or {_ROLES[-1]}")
    if isinstance(content, str):
        content = [{"type": "text", "text": content}]
    parts = as_list(content, f"{where}.content", "a string or a list of parts")
    name, channel, recipient, content_type = (
        _string_or_none(data, key, where) for key in ("name", "channel", "recipient", "content_type")
    )
    place = data.get("recipient_place", "role")
    require(place in ("role", "channel"), f"{where}.recipient_place", place, "role or channel")
    return Message(
        author=Author(role=Role(role), name=name),
        content=[_part(part, f"{where}.content[{index}]") for index, part in enumerate(parts)],
        channel=channel,
        recipient=recipient,
        content_type=content_type,
        recipient_place="channel" if place == "channel" else "role",
    )


def _string_or_none(data: Mapping[str, object], key: str, where: str) -> str | None:
    value = data.get(key)
    if value is None or isinstance(value, str):
        return value
    raise HarmonyFormatError(f"{where}.{key} is {shown_json(value)}: it must be a string or null")


def _part(value: object, where: str) -> Content:
    data = as_object(value, where)
    kind = data.get("type")
    if not isinstance(kind, str) or kind not in _CONTENTS:
        allowed = "text, system_content or developer_content"
        raise HarmonyFormatError(f"{where}.type is {shown_json(kind)}: it must be {allowed}")
    try:
        return _CONTENTS[kind].model_validate(data)
    except ValidationError as error:
        wrong = error.errors(include_url=False)[0]
        field = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in wrong["loc"])
        if wrong["type"] == "missing":
            raise HarmonyFormatError(f"{where}{field} is missing") from None
        expected = wrong["msg"].removeprefix("Input should be ")
        raise HarmonyFormatError(
            f"{where}{field} is {shown_json(wrong['input'])}: it must be {expected}"
        ) from None
