"""The Python API on the engine and the checkpoint that is in the package."""

from __future__ import annotations

import asyncio
import json
import runpy
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Literal

import pytest

import gptoss_jax
from checkpoints import CheckpointError
from gptoss_jax import LLM, RequestError, SamplingParams
from gptoss_jax.llm import Finished, ReasoningDelta, TextDelta
from gptoss_jax.sizes import ShardingError
from tests import tiny_engine

GREEDY = SamplingParams(temperature=0)
QUESTION, ANSWER = "What is 214 + 387?", "214 + 387 = 601."


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM("tiny", dtype=tiny_engine.DTYPE, **tiny_engine.OPTIONS) as made:
        yield made


def test_prompts_of_all_forms_are_answered_together(llm: LLM) -> None:
    (one,) = llm.generate(QUESTION, GREEDY)
    assert one.text == ANSWER
    assert one.reasoning
    assert one.finish_reason == "stop"
    chat = [{"role": "user", "content": QUESTION}]
    many = llm.generate([one.prompt_tokens, QUESTION, chat, "Calculate 905 minus 467.", chat], GREEDY)
    assert [output.tokens for output in many[:3]] == [one.tokens] * 3
    assert many[3].text == "905 - 467 = 438."
    assert sum(output.usage.cached_tokens for output in many) > 0


@pytest.mark.slow
def test_more_tokens_than_fit_are_cut_to_what_fits(llm: LLM) -> None:
    (one,) = llm.generate(QUESTION, SamplingParams(temperature=0, max_tokens=131_072))
    assert (one.text, one.finish_reason) == (ANSWER, "stop")
    (long,) = llm.generate(QUESTION, SamplingParams(temperature=0, max_tokens=10**9, min_tokens=10**9))
    assert long.finish_reason == "length"
    assert len(long.prompt_tokens) + len(long.tokens) == llm.max_length
    with pytest.raises(RequestError, match="the prompt has"):
        llm.generate("word " * llm.max_length, SamplingParams(max_tokens=1))


def test_the_same_script_gets_the_same_samples(llm: LLM) -> None:
    runs = []
    for _ in range(2):
        params = SamplingParams(temperature=3, n=3, seed=5, max_tokens=20)
        runs.append([sample.tokens for sample in llm.generate(QUESTION, params)[0].samples])
    assert runs[0] == runs[1]
    assert len({tuple(tokens) for tokens in runs[0]}) > 1
    unseeded = SamplingParams(temperature=3, max_tokens=20)
    assert len({tuple(output.tokens) for output in llm.generate([QUESTION] * 3, unseeded)}) > 1


def test_streams_say_what_generate_says_one_by_one_and_together(llm: LLM) -> None:
    (whole,) = llm.generate(QUESTION, GREEDY)

    async def tell() -> list:
        return [event async for event in llm.astream(QUESTION, GREEDY)]

    async def together() -> list[list]:
        return await asyncio.gather(*(tell() for _ in range(3)))

    for events in [list(llm.stream(QUESTION, GREEDY)), *asyncio.run(together())]:
        assert "".join(e.text for e in events if isinstance(e, ReasoningDelta)) == whole.reasoning
        assert "".join(e.text for e in events if isinstance(e, TextDelta)) == whole.text
        assert isinstance(events[-1], Finished) and events[-1].result.tokens == whole.tokens


@pytest.mark.slow
def test_text_ends_before_a_stop_string(llm: LLM) -> None:
    params = SamplingParams(temperature=0, stop=["= 6"], logprobs=2)
    (output,) = llm.generate(QUESTION, params)
    assert output.text == "214 + 387 "
    assert output.stop == "= 6"
    assert output.logprobs is not None
    assert [len(entry.top) for entry in output.logprobs] == [2] * len(output.tokens)
    *told, finished = llm.stream(QUESTION, params)
    assert "".join(event.text for event in told if isinstance(event, TextDelta)) == output.text
    assert isinstance(finished, Finished) and finished.result.text == output.text


def test_a_closed_stream_frees_the_engine(llm: LLM) -> None:
    with llm.stream(QUESTION, GREEDY) as stream:
        next(stream)
    assert llm.generate(QUESTION, GREEDY)[0].text == ANSWER
    assert llm._engine.unfinished == 0


def test_the_model_calls_functions_and_quotes_what_they_return(llm: LLM) -> None:
    asked = []

    def get_weather(city: str, unit: Literal["celsius", "fahrenheit"] = "celsius") -> dict[str, object]:
        """Gets the weather."""
        asked.append((city, unit))
        return {"degrees": 21, "sky": "sunny"}

    run = llm.run_tools("What is the weather in Oslo?", {"get_weather": get_weather}, GREEDY)
    assert asked == [("Oslo", "celsius")]
    assert run.rounds == 2
    assert run.generation.text == "It is 21 degrees and sunny in Oslo."


@pytest.mark.slow
def test_an_answer_under_a_schema_is_valid(llm: LLM) -> None:
    schema = {
        "type": "object",
        "properties": {"sum": {"type": "integer"}},
        "required": ["sum"],
        "additionalProperties": False,
    }
    (output,) = llm.generate(QUESTION, SamplingParams(temperature=1.5, seed=1), response_schema=schema)
    assert output.complete
    ((name, value),) = json.loads(output.text).items()
    assert name == "sum" and isinstance(value, int)


@pytest.mark.parametrize(
    ("example", "says"),
    [
        ("generate.py", f"{QUESTION} → {ANSWER}\n"),
        ("stream.py", "Who are you? took "),
        ("run_tools.py", "\nIt is 21 degrees and sunny in Oslo.\n"),
    ],
)
def test_examples_run(example, says, llm: LLM, capsys, monkeypatch) -> None:
    monkeypatch.setattr(gptoss_jax, "LLM", lambda checkpoint: nullcontext(llm), raising=False)
    monkeypatch.setattr(sys, "argv", [example])
    runpy.run_path(str(Path(__file__).parents[2] / "examples" / example), run_name="__main__")
    assert says in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"checkpoint": "/nowhere"}, CheckpointError, "/nowhere"),
        ({"dtype": "int8"}, RequestError, r"^dtype is 'int8': it must be float32 or bfloat16$"),
        ({"dtype": "nonsense"}, RequestError, r"^dtype is 'nonsense': it must be"),
        ({"slots": 0}, RequestError, r"^slots is 0: it must be a whole number from 1 to 2147483647$"),
        ({"seed": "a"}, RequestError, r"^seed is 'a': it must be a whole number$"),
        ({"slot": 3}, RequestError, r"^'slot' is no option of the engine: .*; did you mean slots\?$"),
        ({"mesh": (1, 2, 1)}, ShardingError, r"^the mesh \(data 1, expert 2, tensor 1\) has 2 devices"),
        ({"mesh": (1, 1, 1, 1)}, RequestError, r"^mesh is \(1, 1, 1, 1\): it must be a mesh, or sizes of"),
        ({"mesh": {"data": 2}}, ShardingError, r"^the mesh \(data 2, expert 1, tensor 1\) has 2 devices"),
        (
            {"mesh": {"model": 2}},
            RequestError,
            r"^mesh is {'model': 2}: it must be a mesh, or sizes of the",
        ),
    ],
)
def test_what_cannot_be_loaded_is_refused_in_one_line(options, error, says) -> None:
    with pytest.raises(error, match=says) as caught:
        LLM(**options)
    assert "\n" not in str(caught.value)
