"""Python functions as tools: their schemas from their signatures, and the model's calls of them."""

from __future__ import annotations

import asyncio
import functools
import inspect
import json
import re
import threading
import typing
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model
from pydantic.errors import PydanticSchemaGenerationError, PydanticUserError
from pydantic_core import to_jsonable_python

from harmony import Author, Message, Role
from harmony.api_fields import FUNCTION_NAME
from harmony.errors import shown
from harmony.numbers import json_value

if TYPE_CHECKING:
    from gptoss_jax.llm.results import ToolCall

MOST_ERROR_CHARACTERS = 1000
"""How much of an error goes back to the model."""

_ARGUMENTS = re.compile(r"^(?:Args|Arguments|Parameters):[ \t]*\n", re.MULTILINE)
_ARGUMENT = re.compile(r"^\*{0,2}(\w+)(?:\s*\([^)]*\))?:[ \t]*(.*)$")
_SECTION = re.compile(r"^[A-Z][A-Za-z ]*:[ \t]*$", re.MULTILINE)


class ToolError(ValueError):
    """A function that cannot be a tool; the message names it and says why."""


class Tool:
    """A function that the model may call, under a name.

    Its schema comes from the signature: type hints say what each argument is, a default that it may be left
    out, the docstring's ``Args:`` section or ``Annotated[..., pydantic.Field(description=...)]`` what it
    means; the docstring's text before its sections describes the function. Arguments are converted to the
    types of the hints before the function is called.

    Raises:
        ToolError: the signature has a positional-only parameter, or a type that JSON cannot hold.
    """

    def __init__(self, name: str, function: Callable[..., Any]) -> None:
        if not isinstance(name, str) or not FUNCTION_NAME.fullmatch(name):
            raise ToolError(f"the tool's name is {shown(name)}: it must be letters, digits, '_', '-' and '.'")
        if not callable(function):
            raise ToolError(f"the tool {name} is {shown(function)}: it must be callable")
        self.name = name
        self.function = function
        self.description, described = _read_docstring(function)
        self._arguments, self._parameters = _arguments_model(name, function, described)

    def schema(self) -> dict[str, Any]:
        """The tool as Chat Completions' requests declare it."""
        schema = _plain_schema(self._arguments.model_json_schema())
        function = {"name": self.name, "description": self.description, "parameters": schema}
        return {"type": "function", "function": function}

    def read(self, arguments: str) -> dict[str, Any]:
        """The keyword arguments of a call. Raises ValueError, in one line, for what does not fit."""
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
    """Functions by name; runs the calls that a model makes and never raises for what the model got wrong."""

    def __init__(self, functions: Mapping[str, Callable[..., Any]]) -> None:
        self._tools = {name: Tool(name, function) for name, function in functions.items()}

    def schemas(self) -> list[dict[str, Any]]:
        """The tools as Chat Completions' requests declare them."""
        return [tool.schema() for tool in self._tools.values()]

    def run(self, call: ToolCall) -> Message:
        """Calls the function and returns its result's message; a coroutine is run to its end."""
        try:
            tool, arguments = self._read(call)
            value = tool.function(**arguments)
            if inspect.isawaitable(value):
                value = _finish(value)
            return result_message(call, result_text(value))
        except Exception as error:  # the function is the user's, its arguments the model's: both may be wrong
            return result_message(call, error_text(error))

    async def arun(self, call: ToolCall) -> Message:
        """As `run`; a function that is not a coroutine function is called in a thread of its own."""
        try:
            tool, arguments = self._read(call)
            if _is_coroutine_function(tool.function):
                value = await tool.function(**arguments)
            else:
                value = await asyncio.to_thread(tool.function, **arguments)
                if inspect.isawaitable(value):
                    value = await value
            return result_message(call, result_text(value))
        except Exception as error:
            return result_message(call, error_text(error))

    def _read(self, call: ToolCall) -> tuple[Tool, dict[str, Any]]:
        tool = self._tools.get(call.name)
        if tool is None:
            known = ", ".join(self._tools) or "none"
            raise ValueError(f"there is no function {shown(call.name)}: the functions are {known}")
        try:
            return tool, tool.read(call.arguments)
        except ValueError as error:
            raise ValueError(f"invalid arguments of {call.name}: {error}") from None


def result_message(call: ToolCall, text: str) -> Message:
    """The message that tells the model what came of its call."""
    author = Author(role=Role.TOOL, name=call.message.recipient)
    result = Message.from_author_and_content(author, text).with_channel("commentary")
    return result.with_recipient("assistant")


def result_text(value: Any) -> str:
    """What a function returned, as the model reads it: text as it is, anything else as JSON."""
    if not isinstance(value, str):
        jsonable = to_jsonable_python(value, fallback=str)
        value = json.dumps(jsonable, ensure_ascii=False, separators=(",", ":"))
    return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def error_text(error: Exception) -> str:
    """What went wrong, as the model reads it: one line."""
    kind = "" if type(error) is ValueError else f"{type(error).__name__}: "
    text = f"error: {kind}{' '.join(str(error).split())}".rstrip(": ")
    return result_text(
        text if len(text) <= MOST_ERROR_CHARACTERS else text[: MOST_ERROR_CHARACTERS - 1] + "…"
    )


def _finish(value: Awaitable[Any]) -> Any:
    """Runs an awaitable from a thread that may have an event loop at work, as notebooks do."""

    async def wait() -> Any:
        return await value

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(wait())
    return _in_thread(wait())


def _in_thread(coroutine: Coroutine[Any, Any, Any]) -> Any:
    outcome: list[Any] = []
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


def _is_coroutine_function(function: Callable[..., Any]) -> bool:
    while isinstance(function, functools.partial):
        function = function.func
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004 - its kind is asked for, not whether there is one
    )


def _arguments_model(
    name: str, function: Callable[..., Any], described: Mapping[str, str]
) -> tuple[type[BaseModel], dict[str, str]]:
    """A pydantic model of a function's arguments, and which of its fields is which parameter.

    The fields have names of their own, since a parameter may be called as something that pydantic uses.
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
        if isinstance(parameter.default, str | int | float | bool):
            options["default"] = parameter.default
        else:  # optional, with a default that the function knows best
            options["default_factory"] = lambda: None
    return Field(**options)


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    while isinstance(function, functools.partial):
        function = function.func
    if not inspect.isroutine(function):
        function = function if inspect.isclass(function) else type(function).__call__
    if inspect.isclass(function):
        function = function.__init__  # type: ignore[misc]
    return typing.get_type_hints(function, include_extras=True)


def _read_docstring(function: Callable[..., Any]) -> tuple[str, dict[str, str]]:
    """What a docstring says about the function, and about each argument in its section ``Args:``."""
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


def _plain_schema(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema without pydantic's titles, and with definitions in the places that refer to them.

    Harmony's TypeScript has no references. A type that contains itself is "any" where it would repeat.
    """
    definitions = schema.pop("$defs", {})

    def plain(value: Any, inside: tuple[str, ...], *, names: bool = False) -> Any:
        if isinstance(value, list):
            return [plain(item, inside) for item in value]
        if not isinstance(value, dict):
            return value
        reference = value.get("$ref")
        if isinstance(reference, str) and not names:
            name = reference.removeprefix("#/$defs/")
            if name in inside:
                return {}
            rest = {key: item for key, item in value.items() if key != "$ref"}
            return {**plain(definitions[name], (*inside, name)), **plain(rest, inside)}
        return {
            key: plain(item, inside, names=key == "properties" and not names)
            for key, item in value.items()
            if names or key != "title"
        }

    result: dict[str, Any] = plain(schema, ())
    return result


def _complaint(problem: Any) -> str:
    place = ".".join(str(part) for part in problem["loc"])
    return f"{place}: {problem['msg']}" if place else str(problem["msg"])
