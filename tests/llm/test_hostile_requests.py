"""Requests of every wrong type, while other callers work: only those who ask wrongly hear of it."""

from __future__ import annotations

import dataclasses
import itertools
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gptoss_jax.engine.engine_thread import EngineThread, Mailbox, NamedRequest
from gptoss_jax.engine.errors import RequestError, RequestFailed
from gptoss_jax.engine.grammar import Document, Function, Grammar
from gptoss_jax.engine.request import ChannelLimit, Request, SamplingParams
from gptoss_jax.llm import LLM
from tests import tiny_engine
from tests.llm.fake_engine import FakeEngine, Script

PATIENCE = 120.0
"""Seconds after which a caller that hears nothing is held to wait for ever."""

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.sampled_from([2**31, 2**63, -(2**63) - 1, 2**2000, -1, 0, 1]),
    st.sampled_from([-1, 1]).map(lambda sign: sign * 10**5000),  # more digits than Python writes
    st.floats(),
    st.sampled_from([1e300, 5e-324, np.float32(0.5), np.int64(3), np.bool_(True), np.float32("nan")]),
    st.text(st.characters(exclude_categories=()), max_size=8),
    st.sampled_from(["", "\ud800", "abc", "analysis", "1", b"ab", np.array(["x"]), np.zeros(2), object()]),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=2).map(tuple)
        | st.dictionaries(st.text(max_size=4) | st.integers(), inner, max_size=3)
    ),
    max_leaves=6,
)


@st.composite
def made(draw: st.DrawFn, kind: type, values: dict[str, st.SearchStrategy[Any]]) -> Any:
    """An object with some strange fields; a value as it came where the object cannot be made of them."""
    fields = draw(st.fixed_dictionaries({}, optional=values))
    try:
        return kind(**fields)
    except (RequestError, TypeError):
        return fields


SCHEMAS = st.sampled_from(
    ['{"type":"object"}', "[0-9]+", "{", "[1]", "5", '{"type": 5}', '{"$ref":"#"}', "("]
)
DOCUMENTS = made(Document, {"kind": st.sampled_from(["json_schema", "regex", "lark", "x"]), "text": SCHEMAS})
FUNCTIONS = made(Function, {"name": st.sampled_from(["f", "g h", 5]), "arguments": DOCUMENTS | VALUES})
GRAMMARS = made(
    Grammar,
    {
        "final": DOCUMENTS | VALUES,
        "functions": st.lists(FUNCTIONS | VALUES, max_size=2).map(tuple) | VALUES,
        "choice": st.sampled_from(["auto", "required", "none", "f"]) | VALUES,
    },
)
LIMITS = made(ChannelLimit, {"min": VALUES, "max": VALUES})
LIMITED = st.sampled_from(["analysis", "commentary", "final", "thoughts"])
FIELDS: dict[str, st.SearchStrategy[Any]] = {
    field.name: VALUES for field in dataclasses.fields(SamplingParams)
} | {
    "grammar": GRAMMARS | VALUES,
    "channel_limits": st.dictionaries(LIMITED, LIMITS | VALUES, max_size=3) | VALUES,
    "logit_bias": st.dictionaries(st.integers(-2, 3000) | st.booleans(), SCALARS, max_size=3) | VALUES,
    "stop": st.lists(st.text(max_size=3), max_size=18) | VALUES,
    "stop_token_ids": st.lists(st.integers(-1, 2100), max_size=18) | VALUES,
}
SAMPLING = st.lists(st.sampled_from(list(FIELDS)), max_size=2, unique=True).flatmap(
    lambda names: st.fixed_dictionaries({name: FIELDS[name] for name in names})
)
JSON: tuple[Any, ...] = (
    None,
    True,
    5,
    0.5,
    float("nan"),
    10**5000,
    "abc",
    "\ud800",
    [],
    [[{}]],
    {},
    {"a": 5},
)
PROMPTS = st.lists(st.integers(-1, 2100), max_size=30) | st.lists(SCALARS, max_size=3) | VALUES


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM("tiny", dtype=tiny_engine.DTYPE, **tiny_engine.OPTIONS) as llm:
        yield llm


class Innocents:
    """Callers that ask the same things again and again, and compare what they hear with the first time."""

    def __init__(self, llm: LLM, count: int) -> None:
        self._llm = llm
        self.wrong: list[object] = []
        self.rounds = 0
        self._enough = threading.Event()
        self._asked = [
            (f"What is {number} + {number + 3}?", SamplingParams(seed=number, max_tokens=12, temperature=0.8))
            for number in range(count)
        ]
        self._alone = [self._answer(number) for number in range(count)]
        self._threads = [threading.Thread(target=self._work, args=(n,)) for n in range(count)]

    def _answer(self, number: int) -> tuple[int, ...]:
        prompt, sampling = self._asked[number]
        (generation,) = self._llm.generate(prompt, sampling, date="2026-01-01")
        return tuple(generation.samples[0].tokens)

    def _work(self, number: int) -> None:
        while not self._enough.is_set():
            try:
                answer: object = self._answer(number)
            except BaseException as error:
                answer = error
            if answer != self._alone[number]:
                self.wrong.append(answer)
                return
            self.rounds += 1

    def __enter__(self) -> Innocents:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._enough.set()
        for thread in self._threads:
            thread.join(PATIENCE)


@pytest.mark.parametrize(("examples", "callers"), [(12, 4), pytest.param(200, 16, marks=pytest.mark.slow)])
def test_no_request_of_whatever_types_reaches_another_caller(llm: LLM, examples: int, callers: int) -> None:
    outcomes: dict[str, int] = {"refused": 0, "answered": 0}

    @settings(max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck))
    @given(fields=SAMPLING, prompt=PROMPTS, whole=st.booleans())
    def ask_strangely(fields: dict[str, Any], prompt: Any, whole: bool) -> None:
        ask(fields, prompt, whole)

    def ask(fields: dict[str, Any], prompt: Any, whole: bool) -> None:
        def work() -> object:
            sampling = SamplingParams(**{"max_tokens": 2, **fields})
            if whole:
                return llm.generate("Hello", dataclasses.replace(sampling, n=min(sampling.n, 3)))
            request = Request(next(llm._numbers), prompt, sampling)  # past what LLM itself looks at
            mailbox = Mailbox()
            assert llm._thread is not None
            llm._thread.submit([NamedRequest(request)], mailbox.deliver, whole=True)
            return mailbox.get()

        try:
            pool.submit(work).result(timeout=PATIENCE)
            outcomes["answered"] += 1
        except RequestError as error:
            assert "\n" not in str(error) and len(str(error)) < 1000
            outcomes["refused"] += 1

    with ThreadPoolExecutor(8) as pool, Innocents(llm, callers) as innocents:
        with ThreadPoolExecutor(8) as askers:
            list(askers.map(lambda of: ask({of[0]: of[1]}, [5, 6], True), itertools.product(FIELDS, JSON)))
        ask_strangely()
    assert innocents.wrong == []
    assert innocents.rounds >= callers
    assert outcomes["refused"] > 20 and outcomes["answered"] > 5, outcomes


@pytest.mark.parametrize("where", ["check", "add"])
@pytest.mark.parametrize(
    "error", [TypeError("no"), ValueError("no"), OverflowError("a\nb"), BaseException("panic")]
)
def test_an_error_while_a_request_is_looked_at_is_its_callers_alone(
    answering: Any, endless: Script, where: str, error: BaseException
) -> None:
    llm = answering(lambda request, sample: "<|channel|>final<|message|>Yes.<|return|>")
    look = getattr(llm._engine, where)

    def fail(request: Request) -> None:
        if request.sampling.top_k == 7:
            raise error
        look(request)

    setattr(llm._engine, where, fail)
    with ThreadPoolExecutor(4) as pool:
        good = [pool.submit(llm.generate, "x") for _ in range(3)]
        with pytest.raises(
            RequestFailed, match=rf"cannot take the request: {type(error).__name__}"
        ) as caught:
            llm.generate(["x", "y"], [SamplingParams(), SamplingParams(top_k=7)])
        assert caught.value.__cause__ is error
        assert [future.result(PATIENCE)[0].text for future in good] == ["Yes."] * 3
    assert llm.generate("x")[0].text == "Yes."


def test_a_completion_that_the_engine_gave_up_is_an_error_of_its_caller_alone(answering: Any) -> None:
    llm = answering("<|channel|>final<|message|>Yes.<|return|>")
    update = llm._engine._update

    def spoil(running: Any, *arguments: Any) -> Any:
        told = update(running, *arguments)
        if running.request.sampling.top_k != 7:
            return told
        return dataclasses.replace(told, completion=dataclasses.replace(told.completion, error="it broke"))

    llm._engine._update = spoil
    with pytest.raises(RequestFailed, match=r"^prompts\[1\]: it broke$"):
        llm.generate(["x", "y"], [SamplingParams(), SamplingParams(top_k=7)])
    assert llm.generate("x")[0].text == "Yes."


def test_a_caller_that_cannot_be_told_is_left_and_the_others_go_on(encoding: Any, tokens_of: Any) -> None:
    engine = FakeEngine(
        lambda request, sample: Script(tokens_of("<|channel|>final<|message|>Yes.<|return|>"))
    )
    thread = EngineThread(engine, "test")

    def refuse(delivery: object) -> None:
        raise LookupError("nobody is here")

    thread.submit([NamedRequest(Request("a", [1]))], refuse, whole=False)
    mailbox = Mailbox()
    thread.submit([NamedRequest(Request("b", [1]))], mailbox.deliver, whole=True)
    assert mailbox.get()[0].completion is not None
    thread.close()


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


def test_an_error_without_a_text_still_ends_every_wait(answering: Any) -> None:
    llm = answering("<|channel|>final<|message|>Yes.<|return|>")

    def step() -> list:
        raise Unspeakable

    llm._engine.step = step
    with pytest.raises(RuntimeError, match="the engine failed: Unspeakable"):
        llm.generate("x")
