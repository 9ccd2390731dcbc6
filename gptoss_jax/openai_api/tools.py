"""The tools of a request body, and which of them its `tool_choice` leaves to the model."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from gptoss_jax.openai_api.built_in import built_in_name, listed_tool
from gptoss_jax.openai_api.errors import ApiError, bad_value, json_kind
from harmony.openai_formats import BodyForm

MODES = ("auto", "required")


@dataclasses.dataclass(frozen=True)
class BodyTools:
    """What a body says about tools.

    given: the functions that it declares, as it declares them. None if it has no `tools`.
    allowed: those of them that the model is shown and may call.
    choice: `tool_choice` of these: none, auto, required, or an object that names a function.
    built_in: the names of the built-in tools that it asks for, and that the model may call.
    listed: all of its tools as an answer repeats them.
    """

    given: list[Any] | None
    allowed: list[Any] | None
    choice: Any
    built_in: tuple[str, ...] = ()
    listed: tuple[Any, ...] = ()


def tools_from_body(
    body: Mapping[str, Any], form: BodyForm, *, ignore_unknown: bool, built_in: Collection[str] = ()
) -> BodyTools:
    """The tools of a body. The functions themselves are checked where they are rendered.

    Functions can be called, which their callers run, and the tools named in `built_in`. A tool of another
    type is refused; with `ignore_unknown` it is left out, as if it were not there.

    Raises:
        ApiError: a tool or a choice is of a type that nobody here runs, or names what is not there.
    """
    tools = body.get("tools")
    given = _functions(tools, "tools", ignore_unknown, built_in)
    asked = _built_in(tools, built_in)
    listed = tuple(_listed(tools, built_in))
    choice = body.get("tool_choice")
    if not isinstance(choice, Mapping) or choice.get("type") == "function":
        by_mode = choice in (None, "auto", "required")
        return BodyTools(given, given, choice, asked if by_mode else (), listed)
    named = built_in_name(choice)
    if named is not None and named in asked:
        return BodyTools(given, [], "required", (named,), listed)
    if choice.get("type") != "allowed_tools":
        raise ApiError(
            "unsupported_field",
            f"tool_choice of type {json_kind(choice.get('type'))} is not supported: it must be none, auto, "
            "required, a function or allowed_tools",
            "tool_choice",
        )
    place = "tool_choice.allowed_tools" if form == "chat" else "tool_choice"
    holder = choice.get("allowed_tools") if form == "chat" else choice
    if not isinstance(holder, Mapping):
        raise bad_value(place, holder, "an object")
    mode, entries = holder.get("mode"), holder.get("tools")
    if mode not in MODES:
        raise bad_value(f"{place}.mode", mode, " or ".join(f'"{name}"' for name in MODES))
    allowed = tuple(name for name in _built_in(entries, built_in) if name in asked)
    where = f"{place}.tools"
    entries = _functions(entries, where, ignore_unknown, built_in) if isinstance(entries, list) else None
    if not entries and not allowed:
        raise bad_value(where, holder.get("tools"), "an array of functions of `tools`")
    known = {_name(tool, form): tool for tool in given or () if isinstance(tool, Mapping)}
    names = [_name(entry, form) for entry in entries or ()]
    for name in names:
        if not isinstance(name, str) or name not in known:
            message = f"{place}.tools names {json_kind(name)}: no function in tools has this name"
            raise ApiError("invalid_request", message, "tool_choice")
    functions = [tool for name, tool in known.items() if name in names]
    return BodyTools(given, functions, mode, allowed, listed)


def _built_in(tools: object, built_in: Collection[str]) -> tuple[str, ...]:
    """The built-in tools among tools, each once."""
    if not isinstance(tools, list):
        return ()
    names = (built_in_name(tool) for tool in tools)
    return tuple(dict.fromkeys(name for name in names if name in built_in and name is not None))


def _listed(tools: object, built_in: Collection[str]) -> Iterator[Any]:
    for tool in tools if isinstance(tools, list) else ():
        if built_in_name(tool) in built_in:
            yield listed_tool(tool)
        elif not isinstance(tool, Mapping) or tool.get("type") == "function":
            yield tool


def _functions(
    tools: object, place: str, ignore_unknown: bool, built_in: Collection[str]
) -> list[Any] | None:
    """The functions among tools; what is no array of objects is left to those who read them."""
    if not isinstance(tools, Sequence) or isinstance(tools, str):
        return tools  # type: ignore[return-value]
    functions = []
    for index, tool in enumerate(tools):
        if not isinstance(tool, Mapping) or tool.get("type") == "function":
            functions.append(tool)
        elif not ignore_unknown and built_in_name(tool) not in built_in:
            raise ApiError(
                "unsupported_tool",
                f'{place}[{index}].type is {json_kind(tool.get("type"))}: it must be "function", as nothing '
                "here runs other tools",
                place,
            )
    return functions


def _name(tool: Mapping[str, Any], form: BodyForm) -> Any:
    """The name of a function; hashable only if it is one."""
    holder = tool.get("function") if form == "chat" else tool
    name = holder.get("name") if isinstance(holder, Mapping) else None
    return name if isinstance(name, str) else None
