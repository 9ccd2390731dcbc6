"""Python functions as tools: makes their schemas from their signatures, and runs the model's calls."""

from __future__ import annotations

import asyncio
import functools
import inspect
import json
import math
import re
import threading
import typing
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model
from pydantic.errors import PydanticSchemaGenerationError, PydanticUserError
from pydantic_core import ErrorDetails, to_jsonable_python

from harmony import Author, Message, Role
from harmony.api_fields import FUNCTION_NAME
from harmony.errors import shown
from harmony.json_types import Json, JsonObject
from harmony.numbers import json_value

if TYPE_CHECKING:
    from gptoss_jax.answers import ToolCall

ToolFunction = Callable[..., object]
"""A function that the model may call. It takes keyword arguments, and may be a coroutine function."""

MAX_ERROR_CHARACTERS = 1000
"""The longest error text that the model gets."""

_ARGUMENTS = re.compile(r"^(?:Args|Arguments|Parameters):[ \t]*\n", re.MULTILINE)
_ARGUMENT = re.compile(r"^\*{0,2}(\w+)(?:\s*\([^)]*\))?:[ \t]*(.*)$")
_SECTION = re.compile(r"^[A-Z][A-Za-z ]*:[ \t]*$", re.MULTILINE)


class ToolError(ValueError):
    """A function cannot be a tool. The message names it and says why."""


class Tool:
    """A function that the model may call, under a name.

    Its schema comes from its signature and docstring:

    - a type hint gives an argument's type, and a default makes it optional;
    - the docstring's ``Args:`` section, or ``Annotated[..., pydantic.Field(description=...)]``, describes an
      argument;
    - the docstring's text before its sections describes the function.

    Before a call, arguments are converted to the types of the hints.

    Raises:
        ToolError: the signature has a positional-only parameter, or a type that JSON cannot represent.
    """

    def __init__(self, name: str, function: ToolFunction) -> None:
        if not isinstance(name, str) or not FUNCTION_NAME.fullmatch(name):
            raise ToolError(f"the tool's name is {shown(name)}: it must be letters, digits, '_', '-' and '.'")
        if not callable(function):
            raise ToolError(f"the tool {name} is {shown(function)}: it must be callable")
        self.name = name
        self.function = function
        self.description, described = _read_docstring(function)
        self._arguments, self._parameters = _arguments_model(name, function, described)

    def schema(self) -> JsonObject:
        """The tool as a request of Chat Completions declares it."""
        schema = _plain_schema(self._arguments.model_json_schema())
        function: JsonObject = {"name": self.name, "description": self.description, "parameters": schema}
        return {"type": "function", "function": function}

    def read(self, arguments: str) -> dict[str, object]:
        """Returns the keyword arguments of a call. Raises ValueError, in one line, for invalid arguments."""
        value = json_value(arguments) if arguments.strip() else {}
        if not isinstance(value, dict):
            raise ValueError(f"the arguments are {shown(value)}: they must be a JSON object")
        try:
            read = self._arguments.model_validate(value)
        except ValidationError as error:
            raise ValueError("; ".join(_complaint(problem) for problem in error.errors())) from None
        given = {name: getattr(read, field) for field, name in self._parameters.items() if name in value}
        return {**given, **(read.model_extra or {})}


class Toolbox:
    """Functions by name. Runs a model's calls; errors become results, so that the model can correct them."""

    def __init__(self, functions: Mapping[str, ToolFunction]) -> None:
        if not isinstance(functions, Mapping):
            raise ToolError(f"functions is {shown(functions)}: it must be a dictionary of functions by name")
        self._tools = {name: Tool(name, function) for name, function in functions.items()}

    def schemas(self) -> list[JsonObject]:
        """The tools as a request of Chat Completions declares them."""
        return [tool.schema() for tool in self._tools.values()]

    def run(self, call: ToolCall) -> Message:
        """Calls the function and returns the message with its result. Runs a coroutine to its end."""
        try:
            tool, arguments = self._read(call)
            value = tool.function(**arguments)
            if inspect.isawaitable(value):
                value = _finish(value)
            return result_message(call, result_text(value))
        except Exception as error:  # the caller's function or the model's arguments may be wrong
            return result_message(call, error_text(error))

    async def arun(self, call: ToolCall) -> Message:
        """Like `run`, but does not block the event loop: plain functions run in a thread."""
        try:
            tool, arguments = self._read(call)
            if _is_coroutine_function(tool.function):
                value = tool.function(**arguments)
            else:
                value = await asyncio.to_thread(tool.function, **arguments)
            if inspect.isawaitable(value):
                value = await value
            return result_message(call, result_text(value))
        except Exception as error:
            return result_message(call, error_text(error))

    def _read(self, call: ToolCall) -> tuple[Tool, dict[str, object]]:
        tool = self._tools.get(call.name)
        if tool is None:
            known = ", ".join(self._tools) or "none"
            raise ValueError(f"there is no function {shown(call.name)}: the functions are {known}")
        try:
            return tool, tool.read(call.arguments)
        except ValueError as error:
            raise ValueError(f"invalid arguments of {call.name}: {error}") from None


def result_message(call: ToolCall, text: str) -> Message:
    """The message with a call's result, for the model."""
    author = Author(role=Role.TOOL, name=call.message.recipient)
    result = Message.from_author_and_content(author, text).with_channel("commentary")
    return result.with_recipient("assistant")


def result_text(value: object) -> str:
    """Returns a function's result as the model reads it: text as it is, anything else as JSON.

    Arrays and scalars of numpy and jax become lists and numbers; sets, tuples and generators become lists;
    dataclasses and pydantic models become objects; bytes become text; other objects become their `str`. NaN
    and infinities, which JSON does not have, become null. Lone surrogates become U+FFFD.

    Raises:
        ValueError: the value contains itself, is nested too deeply, or has bytes that are not UTF-8.
    """
    if not isinstance(value, str):
        plain = _finite(to_jsonable_python(value, fallback=_plain_value))
        value = json.dumps(plain, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _plain_value(value: object) -> object:
    """Converts a value of a type that pydantic does not know."""
    tolist = getattr(value, "tolist", None)  # arrays and scalars
    return tolist() if callable(tolist) else str(value)


def _finite(value: Json) -> Json:
    """JSON data with null in place of NaN and infinities."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def error_text(error: Exception) -> str:
    """Returns an error as the model reads it: one line."""
    kind = "" if type(error) is ValueError else f"{type(error).__name__}: "
    text = f"error: {kind}{' '.join(str(error).split())}".rstrip(": ")
    return result_text(text if len(text) <= MAX_ERROR_CHARACTERS else text[: MAX_ERROR_CHARACTERS - 1] + "…")


def _finish(value: Awaitable[object]) -> object:
    """Runs an awaitable to its end, even in a thread with a running event loop, as in notebooks."""

    async def wait() -> object:
        return await value

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(wait())
    return _in_thread(wait())


def _in_thread(coroutine: Coroutine[object, None, object]) -> object:
    outcome: list[object] = []
    failure: list[Exception] = []

    def run() -> None:
        try:
            outcome.append(asyncio.run(coroutine))
        except Exception as error:
            failure.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if failure:
        raise failure[0]
    return outcome[0]


def _is_coroutine_function(function: ToolFunction) -> bool:
    while isinstance(function, functools.partial):
        function = function.func
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004 - an object may have a coroutine function here
    )


def _arguments_model(
    name: str, function: ToolFunction, described: Mapping[str, str]
) -> tuple[type[BaseModel], dict[str, str]]:
    """A pydantic model of a function's arguments, and a map from its fields to the parameters' names.

    The fields have other names, because a parameter's name may be one that pydantic reserves.
    """
    try:
        signature = inspect.signature(function)
        hints = _hints(function)
    except (TypeError, ValueError, NameError) as error:
        raise ToolError(f"the tool {name} has no readable signature: {error}") from None
    parameters: dict[str, str] = {}
    fields: dict[str, Any] = {}
    extra: typing.Literal["forbid", "allow"] = "forbid"
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD:
            extra = "allow"
        elif parameter.kind is parameter.POSITIONAL_ONLY:
            raise ToolError(
                f"the tool {name} has the positional-only parameter {parameter.name}: arguments are passed "
                "by name"
            )
        elif parameter.kind is not parameter.VAR_POSITIONAL:
            field = f"argument{len(fields)}"
            parameters[field] = parameter.name
            fields[field] = (
                hints.get(parameter.name, Any),
                _field(parameter, described.get(parameter.name)),
            )
    try:
        return create_model("Arguments", __config__=ConfigDict(extra=extra), **fields), parameters
    except (PydanticSchemaGenerationError, PydanticUserError) as error:
        reason = str(error).splitlines()[0]
        raise ToolError(f"the tool {name} has an argument that JSON cannot hold: {reason}") from None


def _field(parameter: inspect.Parameter, description: str | None) -> Any:
    options: dict[str, Any] = {"alias": parameter.name}
    if description is not None:
        options["description"] = description
    if parameter.default is not parameter.empty:
        default = parameter.default
        is_finite = not isinstance(default, float) or math.isfinite(default)
        if isinstance(default, str | int | float | bool) and is_finite:
            options["default"] = default
        else:  # optional; the function's own default applies
            options["default_factory"] = lambda: None
    return Field(**options)


def _hints(function: ToolFunction) -> dict[str, Any]:
    while isinstance(function, functools.partial):
        function = function.func
    if not inspect.isroutine(function):
        function = function if inspect.isclass(function) else type(function).__call__
    if inspect.isclass(function):
        function = function.__init__  # type: ignore[misc]
    return typing.get_type_hints(function, include_extras=True)


def _read_docstring(function: ToolFunction) -> tuple[str, dict[str, str]]:
    """A docstring's description of the function, and of each argument in its ``Args:`` section."""
    while isinstance(function, functools.partial):
        function = function.func
    text = inspect.getdoc(function) or ""
    section = _SECTION.search(text)
    description = " ".join(text[: section.start() if section else len(text)].split())
    arguments: dict[str, list[str]] = {}
    found = _ARGUMENTS.search(text)
    if found:
        indent: int | None = None
        current: list[str] | None = None
        for line in text[found.end() :].splitlines():
            if line.strip() and not line[0].isspace():
                break
            depth = len(line) - len(line.lstrip())
            indent = depth if indent is None and line.strip() else indent
            argument = _ARGUMENT.match(line.strip()) if depth == indent else None
            if argument:
                current = arguments.setdefault(argument[1], [])
                current.append(argument[2])
            elif current is not None:
                current.append(line.strip())
    return description, {name: " ".join(" ".join(lines).split()) for name, lines in arguments.items()}


def _plain_schema(schema: JsonObject) -> JsonObject:
    """The schema without pydantic's titles, and with each reference replaced by its definition.

    Harmony's TypeScript has no references. Where a type contains itself, the inner one becomes "any".
    """
    definitions = schema.pop("$defs", {})
    assert isinstance(definitions, dict)

    def plain(value: Json, inside: tuple[str, ...], *, names: bool = False) -> Json:
        if isinstance(value, list):
            return [plain(item, inside) for item in value]
        return plain_object(value, inside, names=names) if isinstance(value, dict) else value

    def plain_object(value: JsonObject, inside: tuple[str, ...], *, names: bool = False) -> JsonObject:
        reference = value.get("$ref")
        if isinstance(reference, str) and not names:
            name = reference.removeprefix("#/$defs/")
            definition = definitions[name]
            if name in inside or not isinstance(definition, dict):
                return {}
            rest = {key: item for key, item in value.items() if key != "$ref"}
            return {**plain_object(definition, (*inside, name)), **plain_object(rest, inside)}
        return {
            key: plain(item, inside, names=key == "properties" and not names)
            for key, item in value.items()
            if names or key != "title"
        }

    return plain_object(schema, ())


def _complaint(problem: ErrorDetails) -> str:
    place = ".".join(str(part) for part in problem["loc"])
    return f"{place}: {problem['msg']}" if place else str(problem["msg"])
