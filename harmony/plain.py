"""Messages as they are after a round trip through JSON, which is how openai-harmony renders them.

openai-harmony writes a message as JSON and renders what it reads back. So a member of a `str` enum counts as
its string, a string as the role it names, and a subclass as what its `to_dict` returns. Pydantic does not
check fields that are assigned later, so a field of the wrong type is found only here.
"""

from __future__ import annotations

import re
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from .errors import HarmonyError, HarmonyFormatError, shown
from .json_data import NotJsonError, json_data, unicode_text
from .json_types import Json
from .messages import (
    Author,
    ChannelConfig,
    Content,
    DeveloperContent,
    Message,
    ReasoningEffort,
    ResponseFormat,
    Role,
    SystemContent,
    TextContent,
    ToolDescription,
    ToolNamespaceConfig,
    read_content,
)
from .numbers import MAX_LEVELS, TOO_DEEP, nests_too_deeply


def plain_message(message: Message) -> Message:
    """The message with fields of exactly the declared types; the same object if they are so already.

    Raises HarmonyFormatError for a field or a content of the wrong type, and whatever a subclass's `to_dict`
    raises.
    """
    if _is_plain(message):
        return message
    try:
        if type(message).to_dict is not Message.to_dict:
            data = json_data(message.to_dict())
            if not isinstance(data, dict):
                raise HarmonyFormatError(f"{type(message).__name__}.to_dict gives {shown(data)}: {_MUST_BE}")
            return Message.from_dict(data)
        author = message.author
        return Message.model_construct(
            author=Author(role=Role(author.role), name=_string_or_none(author.name, "author.name")),
            content=[_plain_content(part) for part in message.content],
            channel=_string_or_none(message.channel, "channel"),
            recipient=_string_or_none(message.recipient, "recipient"),
            content_type=_string_or_none(message.content_type, "content_type"),
            recipient_place=message.recipient_place,
        )
    except ValidationError as error:
        raise HarmonyFormatError(_one_line(error)) from None
    except NotJsonError as error:
        raise HarmonyFormatError(f"a message is not JSON: {error}") from None


Model = TypeVar("Model", bound=BaseModel)

_TEXT_OR_NONE = (str, type(None))
_SURROGATE = re.compile("[\ud800-\udfff]")
_LARGE = 2**53
_MUST_BE = "it must be a dictionary"


# Nearly all messages are plain. Finding that out takes far less time than making them anew.


def _is_plain(message: Message) -> bool:
    author = message.author
    if (
        type(message) is not Message
        or type(author.role) is not Role
        or type(author.name) not in _TEXT_OR_NONE
        or type(message.channel) not in _TEXT_OR_NONE
        or type(message.recipient) not in _TEXT_OR_NONE
        or type(message.content_type) not in _TEXT_OR_NONE
    ):
        return False
    for part in message.content:
        if type(part) is TextContent:
            if type(part.text) is not str:
                return False
        elif type(part) is SystemContent:
            if not _is_plain_system_content(part):
                return False
        elif type(part) is not DeveloperContent or not _is_plain_developer_content(part):
            return False
    return True


def _is_plain_system_content(content: SystemContent) -> bool:
    channels = content.channel_config
    return (
        content.type == "system_content"
        and _is_plain_json(content.model_identity, *_TEXT_OR_NONE)
        and _is_plain_json(content.conversation_start_date, *_TEXT_OR_NONE)
        and _is_plain_json(content.knowledge_cutoff, *_TEXT_OR_NONE)
        and (content.reasoning_effort is None or type(content.reasoning_effort) is ReasoningEffort)
        and (
            channels is None
            or (
                type(channels) is ChannelConfig
                and type(channels.channel_required) is bool
                and type(channels.valid_channels) is list
                and all(_is_plain_json(channel, str) for channel in channels.valid_channels)
            )
        )
        and _are_plain_tools(content.tools)
    )


def _is_plain_developer_content(content: DeveloperContent) -> bool:
    forms = content.response_formats
    return (
        content.type == "developer_content"
        and _is_plain_json(content.instructions, *_TEXT_OR_NONE)
        and _are_plain_tools(content.tools)
        and (
            forms is None
            or (
                type(forms) is list
                and all(
                    type(form) is ResponseFormat
                    and _is_plain_json(form.name, str)
                    and _is_plain_json(form.description, *_TEXT_OR_NONE)
                    and _is_plain_json(form.json_schema, dict)
                    for form in forms
                )
            )
        )
    )


def _are_plain_tools(tools: object) -> bool:
    if tools is None:
        return True
    return type(tools) is dict and all(
        _is_plain_json(key, str)
        and type(namespace) is ToolNamespaceConfig
        and _is_plain_json(namespace.name, str)
        and _is_plain_json(namespace.description, *_TEXT_OR_NONE)
        and type(namespace.tools) is list
        and all(
            type(tool) is ToolDescription
            and _is_plain_json(tool.name, str)
            and _is_plain_json(tool.description, str)
            and _is_plain_json(tool.parameters, dict, type(None))
            for tool in namespace.tools
        )
        for key, namespace in tools.items()
    )


def _is_plain_json(value: object, *types: type) -> bool:
    """Whether a value is of one of these types exactly, and as JSON data has it, with all that is in it."""
    if type(value) not in types:
        return False
    waiting: list[tuple[object, int]] = [(value, 0)]
    while waiting:
        value, level = waiting.pop()
        if value is None or type(value) is bool:
            continue
        if type(value) is str:
            if not value.isascii() and _SURROGATE.search(value):
                return False
        elif type(value) is int or type(value) is float:
            if not -_LARGE < value < _LARGE:
                return False
        elif level == MAX_LEVELS:
            return False
        elif type(value) is list:
            waiting += [(item, level + 1) for item in value]
        elif type(value) is dict:
            if not all(type(key) is str and key.isascii() for key in value):
                return False
            waiting += [(item, level + 1) for item in value.values()]
        else:
            return False
    return True


def _plain_content(part: Content) -> Content:
    kind = type(part)
    if kind is TextContent:
        text = part.text  # type: ignore[attr-defined]
        return part if type(text) is str else TextContent(text=_string(text, "text"))
    if kind is SystemContent or kind is DeveloperContent:
        return _validated(part)
    if not isinstance(part, Content):
        raise HarmonyError(f"{kind.__name__} cannot be rendered: use TextContent or another content")
    data = json_data(part.to_dict())
    if not isinstance(data, dict):
        raise HarmonyFormatError(f"{kind.__name__}.to_dict gives {shown(data)}: {_MUST_BE}")
    content: Content = read_content(data)
    return content


def _validated(model: Model) -> Model:
    """A validated copy of the model and of the models inside it: assigned fields have not been validated."""
    fields: dict[str, Any] = {
        name: _plain_schema(value, model) if name in _SCHEMAS else _plain_value(value)
        for name, value in model.__dict__.items()
    }
    return type(model)(**fields)


_SCHEMAS = ("parameters", "json_schema")


def _plain_schema(schema: object, owner: BaseModel) -> Json:
    """The schema of a function or a response format, as JSON data."""
    what = f"the schema of {shown(getattr(owner, 'name', None))}"
    if nests_too_deeply(schema):
        raise HarmonyFormatError(f"{what} is {TOO_DEEP}")
    try:
        return json_data(schema)
    except NotJsonError as error:
        raise HarmonyFormatError(f"{what} is not JSON: {error}") from None


def _plain_value(value: object) -> object:
    if isinstance(value, BaseModel):
        return _validated(value)
    if isinstance(value, list | tuple):
        return [_plain_value(item) for item in value]
    if isinstance(value, dict) and any(isinstance(item, BaseModel) for item in value.values()):
        return {unicode_text(key): _plain_value(item) for key, item in value.items()}
    return json_data(value)


def _string(value: object, field: str) -> str:
    """A string, or a member of a `str` enum, as a plain `str`.

    Raises HarmonyFormatError for anything else.
    """
    if type(value) is str:
        return value
    if not isinstance(value, str):
        raise HarmonyFormatError(f"{field} is {shown(value)}: it must be a string")
    return unicode_text(value)


def _string_or_none(value: object, field: str) -> str | None:
    return None if value is None else _string(value, field)


def _one_line(error: ValidationError) -> str:
    first = error.errors(include_url=False)[0]
    where = ".".join(map(str, first["loc"]))
    return f"{where} is {shown(first['input'])}: {first['msg'][:1].lower()}{first['msg'][1:]}"
