"""A value of any type for any argument of an `LLM` is taken, or refused in one line before anything runs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from gptoss_jax.engine.options import EngineKeywords, EngineOptions
from gptoss_jax.engine.request import RequestError
from gptoss_jax.llm import LLM, PromptOptions, ToolError

VALUES: list[Any] = [None, True, False, 0, -1, 7, 2**2000, 1.5, float("nan"), float("inf"), "", "x", b"x"]
VALUES += ["\ud800", [], [None], [[]], [7], ["x"], [{}], {}, {"x": 7}, {7: "x"}, {"role": "user"}, (), {1}]
VALUES += [object(), int, print, lambda: None, [{"role": "user", "content": 7}], [{"type": "function"}]]
REFUSED = (RequestError, ToolError)
ANSWER = "<|channel|>final<|message|>It is 5.<|return|>"


def calls(llm: LLM) -> dict[str, Callable[[Any], Any]]:
    """Every argument of every method, as what is done with a value for it."""

    async def agenerate(value: Any) -> Any:
        return await llm.agenerate("Hi", value)

    async def astream(value: Any) -> Any:
        return [event async for event in llm.astream("Hi", value)]

    functions = {"f": lambda: 1}
    made: dict[str, Callable[[Any], Any]] = {
        "generate prompts": lambda value: llm.generate(value),
        "generate sampling": lambda value: llm.generate("Hi", value),
        "generate samplings": lambda value: llm.generate(["Hi"], [value]),
        "agenerate sampling": lambda value: asyncio.run(agenerate(value)),
        "stream prompt": lambda value: list(llm.stream(value)),
        "stream sampling": lambda value: list(llm.stream("Hi", value)),
        "astream sampling": lambda value: asyncio.run(astream(value)),
        "run_tools conversation": lambda value: llm.run_tools(value, functions),
        "run_tools functions": lambda value: llm.run_tools("Hi", value),
        "run_tools function": lambda value: llm.run_tools("Hi", {"f": value}),
        "run_tools sampling": lambda value: llm.run_tools("Hi", functions, value),
        "run_tools max_rounds": lambda value: llm.run_tools("Hi", functions, max_rounds=value),
    }
    for name in PromptOptions.__annotations__:
        made[f"generate {name}"] = lambda value, name=name: llm.generate("Hi", **{name: value})
        made[f"run_tools {name}"] = lambda value, name=name: llm.run_tools("Hi", functions, **{name: value})
    return made


def test_any_value_is_taken_or_refused_in_one_line(answering) -> None:
    llm = answering(ANSWER)
    refused = 0
    for place, call in calls(llm).items():
        for value in VALUES:
            try:
                call(value)
            except REFUSED as error:
                refused += 1
                assert str(error) and "\n" not in str(error), (place, value)
                assert len(str(error)) < 500, (place, value)
    assert refused > 200
    assert llm.generate("Hi")[0].text == "It is 5.", "the engine still answers"


def test_functions_must_be_a_dictionary(answering) -> None:
    llm = answering(ANSWER)
    for value in (None, [print], print):
        with pytest.raises(
            ToolError, match=r"^functions is .*: it must be a dictionary of functions by name$"
        ):
            llm.run_tools("Hi", value)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"slot": 4}, r"^'slot' is no option of the engine: there are slots, .*; did you mean slots\?$"),
        ({"slots": "many"}, r"^slots is 'many': it must be a whole number from 1 "),
        ({"slots": True}, "^slots is True: "),
        ({"max_length": 1.5}, r"^max_length is 1\.5: "),
        ({"seed": "x"}, "^seed is 'x': it must be a whole number$"),
        ({"seed": None}, "^seed is None: it must be a whole number$"),
        ({"dtype": "int8"}, "^dtype is 'int8': it must be float32 or bfloat16$"),
        ({"dtype": 7}, "^dtype is 7: "),
        ({"mesh": "2"}, "^mesh is '2': it must be a mesh, or sizes of the axes data, expert, tensor$"),
        ({"mesh": 2}, "^mesh is 2: "),
        ({"mesh": {"date": 1}}, "^mesh is {'date': 1}: "),
        ({"mesh": [True]}, r"^mesh is \[True\]: "),
        ({"checkpoint": None}, "^checkpoint is None: it must be a folder's path, or 'tiny'$"),
        ({"checkpoint": 7}, "^checkpoint is 7: "),
    ],
)
def test_an_option_that_is_none_is_refused_when_an_llm_is_made(options: dict[str, Any], says: str) -> None:
    with pytest.raises(RequestError, match=says):
        LLM(**options)


def test_the_keywords_of_an_llm_are_the_options_of_the_engine() -> None:
    assert list(EngineKeywords.__annotations__) == list(EngineOptions.__dataclass_fields__)
