"""What the whole engine does with requests: answers, calls of tools, structured output, equal repetition."""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np

from gptoss_jax.engine import Engine, Request, SamplingParams
from gptoss_jax.llm import LLM
from gptoss_jax.llm.prompts import PromptOptions
from gptoss_jax.verify.prompts import DATE, QUESTION, WEATHER
from gptoss_jax.verify.rows import Check, Outcome
from harmony.json_types import JsonObject

_MOST_TOKENS = 384
_SUM, _TOTAL = "What is 14 + 28?", "42"
_REPEATED = 32
"""Tokens of a completion that is repeated."""

SCHEMA: JsonObject = {
    "type": "object",
    "properties": {
        "city": {"enum": ["Lisbon", "Oslo", "Rome"]},
        "degrees": {"type": "integer", "minimum": -9, "maximum": 40},
        "sunny": {"type": "boolean"},
    },
    "required": ["city", "degrees", "sunny"],
    "additionalProperties": False,
}


def repetition_check(engine: Engine, vocabulary: int) -> Check:
    """The same request again, and beside others that fill all slots. vocabulary: its size."""
    return Check(
        "repetition",
        "a request gets the same tokens when it comes again, and beside others",
        "a request's tokens depend on other requests: rows of a batch are mixed up, or the device does not "
        "compute the same twice (see XLA's flags for deterministic operations)",
        lambda: _repetition(engine, vocabulary),
    )


def _repetition(engine: Engine, vocabulary: int) -> Outcome:
    generator = np.random.default_rng(6)
    sampling = SamplingParams(temperature=1, seed=7, max_tokens=_REPEATED, min_tokens=_REPEATED)
    length = min(40, engine.max_length - _REPEATED)
    prompt = generator.integers(0, vocabulary, length).tolist()
    others = [
        Request(f"other-{number}", generator.integers(0, vocabulary, 1 + number % length).tolist(), sampling)
        for number in range(engine.slots - 1)
    ]

    def tokens(name: str, beside: Sequence[Request]) -> list[int]:
        requests = [*beside[: len(beside) // 2], Request(name, prompt, sampling), *beside[len(beside) // 2 :]]
        return next(found.tokens for found in list(engine.run(requests)) if found.id == name)

    first, second, third = tokens("first", ()), tokens("second", ()), tokens("third", others)
    pairs = enumerate(zip(second, third, strict=False))
    shared = next((place for place, (one, other) in pairs if one != other), None)
    again = "the same tokens" if first == second else "other tokens"
    beside = "the same" if shared is None else f"others from token {shared + 1} on"
    return Outcome(
        first == second == third,
        f"again {again}, beside {len(others)} others {beside}; {len(first)} tokens at temperature 1",
        "the same",
    )


def checks(llm: LLM) -> list[Check]:
    """The checks of requests."""
    return [
        Check(
            "answer",
            "the model reasons, answers a sum, and ends its answer by itself",
            "the model does not answer: its deeper layers, its vocabulary or its stop tokens are wrong (a "
            "checkpoint with random weights fails here, too)",
            lambda: _answer(llm),
        ),
        Check(
            "tool call",
            "it calls a function with arguments of its schema, gets the result, and uses it",
            "calls of functions do not work: prompts are rendered or answers are parsed wrongly, or the "
            "weights are wrong",
            lambda: _tool_call(llm),
        ),
        Check(
            "structured output",
            "documents follow their JSON Schema at a high temperature",
            "the grammar is not enforced: is llguidance of the version that pip installed?",
            lambda: _structured(llm),
        ),
    ]


def _answer(llm: LLM) -> Outcome:
    sampling = SamplingParams(temperature=0, max_tokens=_MOST_TOKENS)
    (found,) = llm.generate(_SUM, sampling, effort="low", date=DATE)
    right = _TOTAL in found.text
    ended = found.finish_reason == "stop"
    clean = not found.diagnostics
    return Outcome(
        right and ended and clean,
        f"{_SUM} -> {_shown(found.text)}, finish reason {found.finish_reason}, "
        f"{len(found.diagnostics)} errors of format, {len(found.tokens)} tokens",
        f"an answer with {_TOTAL}, finish reason stop, well-formed",
        {"text": found.text, "reasoning": found.reasoning, "finish_reason": found.finish_reason},
    )


def _tool_call(llm: LLM) -> Outcome:
    seen: list[str] = []

    def get_weather(city: str) -> dict[str, object]:
        seen.append(city)
        return {"degrees": 21, "sky": "sunny"}

    options: PromptOptions = {"tools": [WEATHER], "effort": "low", "date": DATE}
    sampling = SamplingParams(temperature=0, max_tokens=_MOST_TOKENS)
    found = llm.run_tools(QUESTION, {"get_weather": get_weather}, sampling, max_rounds=3, **options)
    text = found.generation.text
    called = ", ".join(_shown(city) for city in seen) or "nothing"
    return Outcome(
        seen == ["Lisbon"] and "21" in text,
        f"get_weather was called with {called}; then: {_shown(text)}",
        'one call with "Lisbon", an answer with 21',
        {"cities": list(seen), "text": text, "rounds": found.rounds},
    )


def _structured(llm: LLM) -> Outcome:
    sampling = SamplingParams(temperature=1.5, reasoning_budget=24, max_tokens=_MOST_TOKENS, n=4, seed=3)
    (found,) = llm.generate(QUESTION, sampling, response_schema=SCHEMA, date=DATE)
    documents = [sample.text for sample in found.samples]
    wrong = [problem for text in documents if (problem := _problem(text))]
    measured = f"{len(documents) - len(wrong)} of {len(documents)} documents are valid"
    return Outcome(
        not wrong,
        measured + (f"; {wrong[0]}" if wrong else f", such as {_shown(documents[0])}"),
        "all",
        {"documents": documents},
    )


def _problem(text: str) -> str:
    """Why a document does not follow `SCHEMA`; "" if it does."""
    try:
        value = json.loads(text)
    except ValueError:
        return f"{_shown(text)} is no JSON"
    if not isinstance(value, dict) or set(value) != {"city", "degrees", "sunny"}:
        return f"{_shown(text)} has other fields"
    if value["city"] not in ("Lisbon", "Oslo", "Rome"):
        return f"city is {_shown(str(value['city']))}"
    if type(value["degrees"]) is not int or not -9 <= value["degrees"] <= 40:
        return f"degrees is {_shown(str(value['degrees']))}"
    return "" if type(value["sunny"]) is bool else f"sunny is {_shown(str(value['sunny']))}"


def _shown(text: str, length: int = 80) -> str:
    text = " ".join(text.split())
    return json.dumps(text if len(text) <= length else f"{text[:length]} ...")
