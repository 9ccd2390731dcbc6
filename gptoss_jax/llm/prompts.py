"""Renders the prompts of callers, in all their forms, into tokens."""

from __future__ import annotations

import dataclasses
import numbers
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TypedDict, TypeVar

from gptoss_jax.engine.request import RequestError
from gptoss_jax.engine.values import refuse
from gptoss_jax.openai_api.answer_format import strict_schema_format
from gptoss_jax.openai_api.rendering import History, render_prompt
from harmony import (
    Conversation,
    DeveloperContent,
    HarmonyError,
    Message,
    Role,
    SystemContent,
    ToolNamespaceConfig,
)
from harmony.errors import shown
from harmony.openai_formats import conversation_from_chat

if TYPE_CHECKING:
    from pydantic import BaseModel

    from harmony import HarmonyEncoding, ToolDescription

Prompt = str | Conversation | Sequence[Message] | Sequence[Mapping[str, object]] | Sequence[int]
"""One prompt: the user's text, a conversation, its messages, chat messages as dictionaries, or token ids."""

ALLOWED = "a string, a Conversation, or a list of Messages, of chat messages (dictionaries) or of token ids"


class PromptOptions(TypedDict, total=False):
    """Options that set a prompt's system and developer messages. None is the same as leaving one out.

    instructions: the developer's instructions.
    effort: the reasoning effort: "low", "medium" or "high".
    tools: functions that the model may call, as in Chat Completions:
        ``{"type": "function", "function": {"name", "description", "parameters"}}``.
    date: the current date in the system message, ``YYYY-MM-DD``; by default today's.
    built_in_tools: built-in tools that the system message declares, such as
        ``ToolNamespaceConfig.python()``. The caller runs their calls.
    response_schema: a JSON Schema, or a pydantic model, for the answer. The model sees it, and a grammar
        enforces it.
    """

    instructions: str | None
    effort: str | None
    tools: Sequence[Mapping[str, object]] | None
    date: str | None
    built_in_tools: Sequence[ToolNamespaceConfig] | None
    response_schema: Mapping[str, object] | type[BaseModel] | None


@dataclasses.dataclass(frozen=True)
class RenderedPrompt:
    """A prompt's tokens, and the conversation that they render; None if the prompt was token ids."""

    tokens: list[int]
    conversation: Conversation | None


def split_prompts(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """Returns the prompts of an argument that is one prompt or a list of prompts.

    A list of Messages, of dictionaries or of integers is one prompt. Any other list is a list of prompts; an
    empty list has none.

    Raises:
        RequestError: it is neither a prompt nor a list of prompts.
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


def response_schema_of(options: PromptOptions) -> dict[str, object] | None:
    """Returns the option `response_schema` as a JSON Schema; None without one.

    Raises:
        RequestError: `response_schema` is neither a dictionary nor a pydantic model.
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


def check_options(options: Mapping[str, object]) -> None:
    """Raises TypeError for a name that is not in `PromptOptions`."""
    unknown = [name for name in options if name not in PromptOptions.__annotations__]
    if unknown:
        known = ", ".join(PromptOptions.__annotations__)
        raise TypeError(f"{unknown[0]} is no option of a prompt: there are {known}")


def rendered_prompt(
    prompt: Prompt,
    options: PromptOptions,
    encoding: HarmonyEncoding,
    name: str = "",
    *,
    history: History = "guide",
) -> RenderedPrompt:
    """Renders a prompt. Error messages begin with `name`, unless it is "".

    Raises:
        RequestError: it is no prompt, it cannot be rendered, or an option contradicts it.
    """
    try:
        if _is_list(prompt) and prompt and all(map(_is_token, prompt)):
            given = [option for option, value in options.items() if value is not None]
            if given:
                raise RequestError(f"{given[0]} is given with a prompt of token ids: leave it out")
            return RenderedPrompt([int(token) for token in prompt], None)  # type: ignore[arg-type]
        conversation = conversation_of(prompt, options)
        tokens = render_prompt(conversation, encoding, history)
    except (HarmonyError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise RequestError(f"{name}: {reason}" if name else reason) from None
    return RenderedPrompt(tokens, conversation)


def conversation_of(prompt: Prompt, options: PromptOptions) -> Conversation:
    """Returns a prompt as a conversation, with the options applied to its first messages.

    A conversation of harmony messages keeps its own system and developer messages: `effort` and `date`
    replace theirs, the other options are added. If it has no system message, one is inserted.

    Raises:
        RequestError, HarmonyFormatError: it is no prompt, it is token ids, or an option contradicts it.
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


def _from_chat(messages: list[Mapping[str, object]], options: PromptOptions) -> Conversation:
    instructions = options.get("instructions")
    if instructions is not None:
        messages = [{"role": "developer", "content": instructions}, *messages]
    schema = response_schema_of(options)
    conversation = conversation_from_chat(
        messages,
        tools=options.get("tools"),
        reasoning_effort=options.get("effort"),
        response_format=None if schema is None else strict_schema_format(schema, "chat"),
        current_date=options.get("date"),
    )
    system = _content(conversation.messages[0], SystemContent)
    for declaration in _declarations(options.get("built_in_tools")):
        if system is not None:
            system.with_tools(declaration)
    return conversation


def _declarations(given: object) -> Sequence[ToolNamespaceConfig]:
    """Raises RequestError for what is no list of declarations."""
    if given is None:
        return ()
    if not isinstance(given, list | tuple) or not all(isinstance(one, ToolNamespaceConfig) for one in given):
        refuse("built_in_tools", given, "a list of ToolNamespaceConfig")
    return given


def _with_options(messages: list[Message], options: PromptOptions) -> Conversation:
    if not messages:
        raise RequestError("the conversation is empty: it must have at least one message")
    made = _from_chat([{"role": "user", "content": ""}], options).messages
    if messages[0].author.role is not Role.SYSTEM:
        messages.insert(0, made[0])
    else:
        system = _content(made[0], SystemContent)
        fields = {"effort": "reasoning_effort", "date": "conversation_start_date", "built_in_tools": "tools"}
        given = [field for option, field in fields.items() if options.get(option) is not None]
        changes = {field: getattr(system, field) for field in given}
        own = _content(messages[0], SystemContent)
        if own is not None and "tools" in changes:
            changes["tools"] = {**(own.tools or {}), **changes["tools"]}
        if changes:
            messages[0] = _changed(messages[0], SystemContent, changes, "effort, date and built_in_tools")
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

_Content = TypeVar("_Content", SystemContent, DeveloperContent)


def _content(message: Message, kind: type[_Content]) -> _Content | None:
    return next((part for part in message.content if isinstance(part, kind)), None)


def _changed(message: Message, kind: type[_Content], changes: Mapping[str, object], names: str) -> Message:
    """Returns the message with fields of its content replaced.

    Raises RequestError if it has no such content, or if developer content has the fields already. `names` are
    the options' names in the error.
    """
    content = _content(message, kind)
    if content is None:
        raise RequestError(f"{names} cannot be set: the {message.author.role.value} message is plain text")
    if kind is DeveloperContent:
        changes = {field: _added(field, getattr(content, field), value) for field, value in changes.items()}
    parts = [part.model_copy(update=changes) if part is content else part for part in message.content]
    return message.model_copy(update={"content": parts})


def _added(field: str, own: object, value: object) -> object:
    """A field of developer content after `value` is added to it. Raises RequestError if it is set already."""
    if own is None:
        return value
    if isinstance(own, dict) and isinstance(value, dict) and not own.keys() & value.keys():
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
