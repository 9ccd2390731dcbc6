"""What a caller may give as a prompt → tokens."""

from __future__ import annotations

import dataclasses
import numbers
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypedDict

from gptoss_jax.engine import RequestError
from harmony import Conversation, DeveloperContent, HarmonyError, Message, Role, SystemContent
from harmony.errors import shown
from harmony.openai_formats import conversation_from_chat

if TYPE_CHECKING:
    from pydantic import BaseModel

    from harmony import HarmonyEncoding, ToolDescription

Prompt = str | Conversation | Sequence[Message] | Sequence[Mapping[str, Any]] | Sequence[int]
"""One prompt: the user's text, a conversation, its messages, chat messages as dictionaries, or token ids."""

ALLOWED = "a string, a Conversation, or a list of Messages, of chat messages (dictionaries) or of token ids"


class PromptOptions(TypedDict, total=False):
    """What goes into the system and the developer message of a prompt.

    instructions: the developer's instructions.
    effort: "low", "medium" or "high".
    tools: functions that the model may call, as in Chat Completions:
        ``{"type": "function", "function": {"name", "description", "parameters"}}``.
    date: the current date that the model is told, ``YYYY-MM-DD``; today's by default.
    response_schema: a JSON Schema, or a pydantic model, that the answer must follow: it is shown to the model
        and enforced by a grammar.
    """

    instructions: str | None
    effort: str | None
    tools: Sequence[Mapping[str, Any]] | None
    date: str | None
    response_schema: Mapping[str, Any] | type[BaseModel] | None


@dataclasses.dataclass(frozen=True)
class Prepared:
    """A prompt's tokens, and the conversation that they render; None if the prompt was tokens."""

    tokens: list[int]
    conversation: Conversation | None


def split_prompts(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """The prompts of an argument that may be one of them or a list.

    A list of Messages, of dictionaries or of whole numbers is one prompt; any other list is one of prompts,
    so a list of strings is as many prompts. An empty list has none.

    Raises:
        RequestError: it is neither.
    """
    if isinstance(prompts, str | Conversation):
        return [prompts]
    if not _is_list(prompts):
        raise RequestError(f"prompts is {shown(prompts)}: it must be {ALLOWED}; or a list of such")
    if prompts and any(all(map(is_kind, prompts)) for is_kind in (_is_message, _is_dictionary, _is_token)):
        return [prompts]  # type: ignore[list-item]
    for index, prompt in enumerate(prompts):
        if not isinstance(prompt, str | Conversation) and not _is_list(prompt):
            raise RequestError(f"prompts[{index}] is {shown(prompt)}: it must be {ALLOWED}")
    return list(prompts)  # type: ignore[arg-type]


def response_schema_of(options: PromptOptions) -> dict[str, Any] | None:
    """The JSON Schema that the answer must follow, if one must.

    Raises:
        RequestError: `response_schema` is neither a schema nor a pydantic model.
    """
    from pydantic import BaseModel

    schema = options.get("response_schema")
    if schema is None:
        return None
    if isinstance(schema, type) and issubclass(schema, BaseModel):
        return schema.model_json_schema()
    if not isinstance(schema, Mapping):
        raise RequestError(f"response_schema is {shown(schema)}: it must be a dictionary or a pydantic model")
    return dict(schema)


def check_options(options: Mapping[str, Any]) -> None:
    """Raises TypeError for a name that is none of `PromptOptions`."""
    unknown = [name for name in options if name not in PromptOptions.__annotations__]
    if unknown:
        known = ", ".join(PromptOptions.__annotations__)
        raise TypeError(f"{unknown[0]} is no option of a prompt: there are {known}")


def prepare(prompt: Prompt, options: PromptOptions, encoding: HarmonyEncoding, name: str = "") -> Prepared:
    """Renders a prompt; errors begin with `name`, if it has one.

    Raises:
        RequestError: it is no prompt, cannot be rendered, or an option contradicts it.
    """
    try:
        if _is_list(prompt) and prompt and all(map(_is_token, prompt)):
            given = [option for option, value in options.items() if value is not None]
            if given:
                raise RequestError(f"{given[0]} cannot be put into a prompt of token ids")
            return Prepared([int(token) for token in prompt], None)  # type: ignore[arg-type]
        conversation = conversation_of(prompt, options)
        tokens = encoding.render_conversation_for_completion(conversation, Role.ASSISTANT)
    except (HarmonyError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise RequestError(f"{name}: {reason}" if name else reason) from None
    return Prepared(tokens, conversation)


def conversation_of(prompt: Prompt, options: PromptOptions) -> Conversation:
    """The conversation of a prompt that is no token ids, with the options in its first messages.

    One made of harmony messages keeps its own system and developer message: `effort` and `date` replace what
    it has, the other options add to it. Without a system message it is given one.

    Raises:
        RequestError, HarmonyFormatError: it is no prompt, or an option contradicts it.
    """
    if isinstance(prompt, str):
        return _from_chat([{"role": "user", "content": prompt}], options)
    if isinstance(prompt, Conversation):
        return _with_options(list(prompt.messages), options)
    if _is_list(prompt):
        if not prompt:
            raise RequestError("the prompt is empty: it must have at least one message or token")
        if all(map(_is_message, prompt)):
            return _with_options(list(prompt), options)  # type: ignore[arg-type]
        if all(map(_is_dictionary, prompt)):
            return _from_chat(list(prompt), options)  # type: ignore[arg-type]
    raise RequestError(f"the prompt is {shown(prompt)}: it must be {ALLOWED}")


def declared_functions(conversation: Conversation) -> list[ToolDescription]:
    """The functions that developer messages of a conversation declare."""
    return [
        function
        for message in conversation
        for part in message.content
        if isinstance(part, DeveloperContent) and (namespace := (part.tools or {}).get("functions"))
        for function in namespace.tools
    ]


def _from_chat(messages: list[Mapping[str, Any]], options: PromptOptions) -> Conversation:
    instructions = options.get("instructions")
    if instructions is not None:
        messages = [{"role": "developer", "content": instructions}, *messages]
    schema = response_schema_of(options)
    response_format = None
    if schema is not None:
        title = schema.get("title")
        named = isinstance(title, str) and title.isidentifier() and title.isascii()
        form = {"name": title if named else "response", "schema": schema}
        response_format = {"type": "json_schema", "json_schema": form}
    return conversation_from_chat(
        messages,
        tools=options.get("tools"),
        reasoning_effort=options.get("effort"),
        response_format=response_format,
        current_date=options.get("date"),
    )


def _with_options(messages: list[Message], options: PromptOptions) -> Conversation:
    if not messages:
        raise RequestError("the conversation is empty: it must have at least one message")
    made = _from_chat([{"role": "user", "content": ""}], options).messages
    if messages[0].author.role is not Role.SYSTEM:
        messages.insert(0, made[0])
    else:
        changes = {}
        if options.get("effort") is not None:
            changes["reasoning_effort"] = _content(made[0], SystemContent).reasoning_effort
        if options.get("date") is not None:
            changes["conversation_start_date"] = _content(made[0], SystemContent).conversation_start_date
        if changes:
            messages[0] = _changed(messages[0], SystemContent, changes, "effort and date")
    if len(made) == 3:
        added = _content(made[1], DeveloperContent)
        if len(messages) < 2 or messages[1].author.role is not Role.DEVELOPER:
            messages.insert(1, made[1])
        else:
            changes = {
                field: getattr(added, field) for field in _DEVELOPER if getattr(added, field) is not None
            }
            messages[1] = _changed(messages[1], DeveloperContent, changes, " and ".join(changes))
    return Conversation(messages=messages)


_DEVELOPER = ("instructions", "tools", "response_formats")


def _content(message: Message, kind: type[Any]) -> Any:
    return next((part for part in message.content if isinstance(part, kind)), None)


def _changed(message: Message, kind: type[Any], changes: Mapping[str, Any], names: str) -> Message:
    """The message with fields of its content replaced; developer content may not have them yet."""
    content = _content(message, kind)
    if content is None:
        raise RequestError(f"{names} cannot be set: the {message.author.role.value} message is plain text")
    if kind is DeveloperContent:
        changes = {field: _added(field, getattr(content, field), value) for field, value in changes.items()}
    parts = [part.model_copy(update=changes) if part is content else part for part in message.content]
    return message.model_copy(update={"content": parts})


def _added(field: str, own: Any, value: Any) -> Any:
    """A field of developer content with a value that it may not have yet."""
    if own is None:
        return value
    if field == "tools" and not own.keys() & value.keys():
        return {**own, **value}
    raise RequestError(f"{field} cannot be set: the conversation's developer message has its own")


def _is_list(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes | Mapping)


def _is_message(value: object) -> bool:
    return isinstance(value, Message)


def _is_dictionary(value: object) -> bool:
    return isinstance(value, Mapping)


def _is_token(value: object) -> bool:
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)
