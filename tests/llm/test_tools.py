"""Python functions as the model's tools."""

from __future__ import annotations

import asyncio
import dataclasses
import datetime
import decimal
import enum
import functools
import json
from typing import Annotated, Any, Literal

import jax.numpy as jnp
import numpy as np
import pydantic
import pytest
from pydantic import BaseModel, Field

from gptoss_jax.llm import ToolCall
from gptoss_jax.llm.tools import Tool, Toolbox, ToolError
from harmony import Message, Role
from harmony.openai_formats import conversation_from_chat


class Place(BaseModel):
    """A place."""

    city: str
    zip: int | None = None


class Tree(BaseModel):
    title: str
    children: list[Tree] = []


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


def weather(
    place: Place,
    unit: Literal["C", "F"] = "C",
    days: Annotated[int, Field(description="How many days", ge=1)] = 1,
    hours: list[int] | None = None,
) -> str:
    """Tells the weather.

    It is a guess.

    Args:
        place: Where, which may
            take two lines.
        unit (str): Of the temperature.

    Returns:
        The weather.
    """
    return f"{place.city} {unit} {days} {hours}"


def parameters(function: Any) -> dict[str, Any]:
    return Tool("f", function).schema()["function"]["parameters"]


def call(name: str, arguments: str, recipient: str | None = None) -> ToolCall:
    message = Message.from_role_and_content(Role.ASSISTANT, arguments).with_channel("commentary")
    return ToolCall("1", name, arguments, message.with_recipient(recipient or f"functions.{name}"))


def answer(function: Any, arguments: str, name: str = "f") -> str:
    result = Toolbox({"f": function}).run(call(name, arguments))
    assert asyncio.run(Toolbox({"f": function}).arun(call(name, arguments))) == result
    return result.content[0].text


def test_a_signature_and_its_docstring_become_a_schema() -> None:
    assert Tool("weather", weather).schema() == {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "Tells the weather. It is a guess.",
            "parameters": {
                "type": "object",
                "properties": {
                    "place": {
                        "type": "object",
                        "description": "Where, which may take two lines.",
                        "properties": {
                            "city": {"type": "string"},
                            "zip": {"anyOf": [{"type": "integer"}, {"type": "null"}], "default": None},
                        },
                        "required": ["city"],
                    },
                    "unit": {
                        "type": "string",
                        "enum": ["C", "F"],
                        "default": "C",
                        "description": "Of the temperature.",
                    },
                    "days": {
                        "type": "integer",
                        "minimum": 1,
                        "default": 1,
                        "description": "How many days",
                    },
                    "hours": {"anyOf": [{"type": "array", "items": {"type": "integer"}}, {"type": "null"}]},
                },
                "required": ["place"],
                "additionalProperties": False,
            },
        },
    }


def test_a_schema_stands_in_a_prompt() -> None:
    schemas = [Tool("weather", weather).schema(), Tool("now", lambda: 0).schema()]
    conversation = conversation_from_chat([{"role": "user", "content": "Hi"}], tools=schemas)
    functions = conversation.messages[1].content[0].tools["functions"].tools
    assert [(function.name, function.parameters is None) for function in functions] == [
        ("weather", False),
        ("now", True),
    ]


def test_parameters_may_be_called_as_anything() -> None:
    def f(
        schema: int, model_config: int, _private: int, title: int, json: int = 0, argument0: int = 1
    ) -> list:
        return [schema, model_config, _private, title, json, argument0]

    assert list(parameters(f)["properties"]) == [
        "schema",
        "model_config",
        "_private",
        "title",
        "json",
        "argument0",
    ]
    assert answer(f, '{"schema":1,"model_config":2,"_private":3,"title":4,"argument0":5}') == "[1,2,3,4,0,5]"


def test_a_type_within_itself_has_an_end() -> None:
    def f(tree: Tree) -> str:
        return tree.children[0].title

    assert parameters(f)["properties"]["tree"]["properties"] == {
        "title": {"type": "string"},
        "children": {"type": "array", "items": {}, "default": []},
    }
    assert answer(f, '{"tree":{"title":"a","children":[{"title":"b"}]}}') == "b"


def test_parameters_without_hints_take_anything() -> None:
    assert parameters(lambda a, b=2: 0)["properties"] == {"a": {}, "b": {"default": 2}}


@pytest.mark.parametrize(
    ("function", "names"),
    [
        (functools.partial(weather, unit="F"), ["place", "unit", "days", "hours"]),
        (Place(city="Bern").model_copy, ["update", "deep"]),
        (lambda *args, a: 0, ["a"]),
        (lambda **rest: 0, []),
        (type("Callable", (), {"__call__": lambda self, a: 0})(), ["a"]),
    ],
)
def test_many_things_can_be_called(function, names) -> None:
    assert list(parameters(function).get("properties", {})) == names


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (3, "^the tool f is 3: it must be callable$"),
        (lambda a, /: 0, "^the tool f has the positional-only parameter a: arguments are passed by name$"),
        ({}.get, "^the tool f has the positional-only parameter"),
    ],
)
def test_what_cannot_be_a_tool_is_refused(function, says) -> None:
    with pytest.raises(ToolError, match=says):
        Tool("f", function)


def test_a_type_that_json_cannot_hold_is_refused() -> None:
    def f(file: asyncio.Event) -> None:
        pass

    def g(file: missing) -> None:  # type: ignore[name-defined]  # noqa: F821
        pass

    with pytest.raises(
        ToolError, match=r"^the tool f has an argument that JSON cannot hold: [^\n]*Event[^\n]*$"
    ):
        Tool("f", f)
    with pytest.raises(
        ToolError, match=r"^the tool g has no readable signature: name 'missing' is not defined$"
    ):
        Tool("g", g)
    with pytest.raises(ToolError, match=r"^the tool's name is 'two words': it must be letters"):
        Tool("two words", f)


def test_arguments_are_converted_to_the_types_of_the_hints() -> None:
    def f(place: Place, day: datetime.date, color: Color, number: float = 0, **rest: Any) -> list[Any]:
        assert isinstance(place, Place) and isinstance(day, datetime.date) and color is Color.BLUE
        return [place.city, day.year, number, rest]

    arguments = '{"place":{"city":"Bern"},"day":"2025-06-28","color":"blue","number":"1.5","more":[1]}'
    assert answer(f, arguments) == '["Bern",2025,1.5,{"more":[1]}]'


def test_a_default_is_the_functions_own() -> None:
    unset = object()
    assert answer(lambda a=unset: str(a is unset), "{}") == "True"
    assert answer(lambda a=None: a, '{"a":null}') == "null"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("as it is\n", "as it is\n"),
        ("", ""),
        (None, "null"),
        ({"é": [1, 2.5, True]}, '{"é":[1,2.5,true]}'),
        (Place(city="Bern"), '{"city":"Bern","zip":null}'),
        (datetime.date(2025, 6, 28), '"2025-06-28"'),
        ({1}, "[1]"),
        ("lone \ud800", "lone �"),
    ],
)
def test_results_are_text_or_json(value, text) -> None:
    assert answer(lambda: value, "{}") == text


def fail(text: str) -> None:
    raise KeyError(text)


@pytest.mark.parametrize(
    ("function", "arguments", "name", "says"),
    [
        (weather, "{", "f", "error: invalid arguments of f: Expecting property name"),
        (
            weather,
            "[1]",
            "f",
            "error: invalid arguments of f: the arguments are [1]: they must be a JSON object",
        ),
        (weather, "{}", "f", "error: invalid arguments of f: place: Field required"),
        (weather, '{"place":{"city":"B"},"x":1}', "f", "error: invalid arguments of f: x: Extra inputs are"),
        (
            weather,
            '{"place":{"city":1}}',
            "f",
            "error: invalid arguments of f: place.city: Input should be a v",
        ),
        (weather, "[" * 9999, "f", "error: invalid arguments of f: "),
        (weather, "{}", "g", "error: there is no function 'g': the functions are f"),
        (fail, '{"text":"two\\nlines"}', "f", "error: KeyError: 'two\\nlines'"),
        (lambda: {}[3], "", "f", "error: KeyError: 3"),
        (lambda: 1 / 0, "{}", "f", "error: ZeroDivisionError: division by zero"),
        (lambda: [].pop(9, 9), "{}", "f", "error: TypeError: pop expected at most 1 argument, got 2"),
        (lambda: float("x" * 5000), "{}", "f", "error: could not convert string to float: 'xxx"),
    ],
)
def test_what_goes_wrong_is_told_in_one_line(function, arguments, name, says) -> None:
    text = answer(function, arguments, name)
    assert text.startswith(says)
    assert "\n" not in text
    assert len(text) <= 1000


def test_a_call_without_arguments_may_say_nothing() -> None:
    assert answer(lambda: "ok", "") == "ok"


def test_coroutine_functions_are_awaited_wherever_the_call_is_made() -> None:
    async def f(a: int) -> int:
        await asyncio.sleep(0)
        return a + 1

    async def inside() -> str:
        return Toolbox({"f": f}).run(call("f", '{"a":1}')).content[0].text

    assert answer(f, '{"a":1}') == "2"
    assert answer(functools.partial(f, a=4), "{}") == "5"
    assert asyncio.run(inside()) == "2"

    async def failing() -> None:
        raise ValueError("no")

    async def failing_inside() -> str:
        return Toolbox({"f": failing}).run(call("f", "{}")).content[0].text

    assert answer(failing, "{}") == "error: no"
    assert asyncio.run(failing_inside()) == "error: no"


def test_a_result_is_said_by_whom_the_model_called() -> None:
    result = Toolbox({"f": lambda: "ok"}).run(call("f", "{}", recipient="f"))
    assert (result.author.role, result.author.name) == (Role.TOOL, "f")
    assert (result.channel, result.recipient) == ("commentary", "assistant")


def test_interrupts_are_not_told_to_the_model() -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Toolbox({"f": interrupt}).run(call("f", "{}"))


# What JSON cannot hold


@dataclasses.dataclass
class Reading:
    value: float
    unit: str = "K"


class Row(pydantic.BaseModel):
    values: list[float]


class Named:
    def __str__(self) -> str:
        return "a thing"


NAN, INFINITY = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (NAN, "null"),
        (INFINITY, "null"),
        ([1, NAN, {"a": {"b": (-INFINITY, 2.5)}}], '[1,null,{"a":{"b":[null,2.5]}}]'),
        (Reading(NAN), '{"value":null,"unit":"K"}'),
        (Row(values=[NAN, 1]), '{"values":[null,1.0]}'),
        ({NAN}, "[null]"),
        (filter(None, []), "[]"),
        (np.float32("nan"), "null"),
        (np.float32(0.5), "0.5"),
        (np.int64(3), "3"),
        (np.bool_(True), "true"),
        (np.array([[1.0, NAN], [2.0, INFINITY]]), "[[1.0,null],[2.0,null]]"),
        (jnp.arange(3), "[0,1,2]"),
        (jnp.float32("nan"), "null"),
        (decimal.Decimal("NaN"), '"NaN"'),
        (b"text", '"text"'),
        (bytearray(b"\xc3\xa9"), '"é"'),
        (Named(), '"a thing"'),
        ({Named(): [Named()]}, '{"a thing":["a thing"]}'),
        ({"half": "\ud800"}, '{"half":"\ufffd"}'),
        (None, "null"),
    ],
)
def test_a_result_is_valid_json_whatever_the_function_returns(value: Any, text: str) -> None:
    told = answer(lambda: value, "{}")
    assert told == text
    json.loads(told, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))


def recursive() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


def deep() -> list[Any]:
    value: list[Any] = []
    for _ in range(100_000):
        value = [value]
    return value


class Unspeakable:
    def __str__(self) -> str:
        raise RuntimeError("I have no name")


@pytest.mark.parametrize("make", [recursive, deep, lambda: b"\xff", Unspeakable, lambda: 10**5000])
def test_a_result_that_cannot_be_told_is_an_error_that_the_model_is_told(make: Any) -> None:
    text = answer(make, "{}")
    assert text.startswith("error: ")
    assert "\n" not in text


def test_a_default_that_json_cannot_hold_stays_with_the_function() -> None:
    def f(limit: float = INFINITY) -> float:
        return limit

    schema = Tool("f", f).schema()
    assert "Infinity" not in json.dumps(schema)
    assert answer(f, "{}") == "null"
    assert answer(f, '{"limit":2}') == "2.0"
