"""The tools of a request body, and which of them its `tool_choice` leaves to the model."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from gptoss_jax.openai_api.errors import ApiError, bad_value, json_kind
from harmony.openai_formats import BodyForm

MODES = ("auto", "required")


@dataclasses.dataclass(frozen=True)
class BodyTools:
    """What a body says about tools.

    given: the functions that it declares, as it declares them. None if it has no `tools`.
    allowed: those of them that the model is shown and may call.
    choice: `tool_choice` of these: none, auto, required, or an object that names a function.
    """

    given: list[Any] | None
    allowed: list[Any] | None
    choice: Any


def tools_from_body(body: Mapping[str, Any], form: BodyForm, *, ignore_unknown: bool) -> BodyTools:
    """The tools of a body. The functions themselves are checked where they are rendered.

    Only functions can be called: their callers run them. A tool of another type is refused; with
    `ignore_unknown` it is left out, as if it were not there.

    Raises:
        ApiError: a tool or a choice is of a type that nobody here runs, or names what is not there.
    """
    given = _functions(body.get("tools"), "tools", ignore_unknown)
    choice = body.get("tool_choice")
    if not isinstance(choice, Mapping) or choice.get("type") == "function":
        return BodyTools(given, given, choice)
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
    entries = _functions(entries, f"{place}.tools", ignore_unknown) if isinstance(entries, list) else None
    if not entries:
        raise bad_value(f"{place}.tools", holder.get("tools"), "an array of functions of `tools`")
    known = {_name(tool, form): tool for tool in given or () if isinstance(tool, Mapping)}
    names = [_name(entry, form) for entry in entries]
    for name in names:
        if not isinstance(name, str) or name not in known:
            message = f"{place}.tools names {json_kind(name)}: no function in tools has this name"
            raise ApiError("invalid_request", message, "tool_choice")
    return BodyTools(given, [tool for name, tool in known.items() if name in names], mode)


def _functions(tools: object, place: str, ignore_unknown: bool) -> list[Any] | None:
    """The functions among tools; what is no array of objects is left to those who read them."""
    if not isinstance(tools, Sequence) or isinstance(tools, str):
        return tools  # type: ignore[return-value]
    functions = []
    for index, tool in enumerate(tools):
        if not isinstance(tool, Mapping) or tool.get("type") == "function":
            functions.append(tool)
        elif not ignore_unknown:
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
