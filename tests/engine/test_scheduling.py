"""What may not change a sequence's tokens: who else is there, when it came, how few pages there are."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest

from gptoss_jax.engine import Request, SamplingParams
from gptoss_jax.engine.sequence import State
from tests.engine.engine_model import (
    FEW_PAGES,
    GREEDY,
    OPTIONS,
    generate_by_plain_model,
    make_engine,
    make_requests,
    run,
    tokens_of,
)

MIXES = 200


@pytest.fixture(scope="module")
def requests() -> list[Request]:
    """Sixty greedy requests; every third shares a beginning of 33 tokens with others."""
    generator = np.random.default_rng(0)
    common = generator.integers(4, 50, 33).tolist()
    found = []
    for number in range(60):
        own = generator.integers(4, 50, generator.integers(1, 10 if number % 3 == 0 else 25)).tolist()
        sampling = dataclasses.replace(GREEDY, max_tokens=int(generator.integers(1, 40)))
        found.append(Request(f"r{number}", (common if number % 3 == 0 else []) + own, sampling))
    return found


@pytest.fixture(scope="module")
def alone(requests: list[Request]) -> dict[str, list[int]]:
    """What the published model gives for each request by itself, without an engine."""
    return {one.id: generate_by_plain_model(one.prompt, one.sampling.max_tokens) for one in requests}


@pytest.fixture(scope="module")
def engines() -> list:
    """Engines with hardly any pages, and with plenty of them."""
    return [make_engine(**FEW_PAGES), make_engine()]


@pytest.fixture(scope="module")
def more_engines(engines: list) -> list:
    """The same, and engines with other numbers of slots and of steps in a dispatch."""
    return [
        *engines,
        make_engine(pages=6, snapshots=0, decode_steps=8),
        make_engine(pages=8, snapshots=4, slots=3),
    ]


def test_mixes_of_arrivals_and_cancellations_give_each_sequence_its_own_tokens(
    requests: list[Request], alone: dict[str, list[int]], engines: list
) -> None:
    run_mixes(requests, alone, engines, MIXES // 8)


@pytest.mark.slow
def test_many_mixes_of_arrivals_and_cancellations_give_each_sequence_its_own_tokens(
    requests: list[Request], alone: dict[str, list[int]], more_engines: list
) -> None:
    run_mixes(requests, alone, more_engines, MIXES)


def run_mixes(requests: list[Request], alone: dict[str, list[int]], engines: list, mixes: int) -> None:
    """Runs random mixes on each engine in turn, and compares every sequence with the one it gives alone."""
    generator = np.random.default_rng(1)
    finished = cancelled = 0
    for mix in range(mixes):
        engine = engines[mix % len(engines)]
        chosen = [requests[index] for index in generator.permutation(60)[: generator.integers(2, 9)]]
        arrivals = sorted(generator.integers(0, 6, len(chosen)).tolist())
        leaving = {
            request.id: int(generator.integers(0, 10)) for request in chosen if generator.random() < 0.2
        }
        completions = {}
        turn = 0
        while chosen or engine.unfinished:
            while chosen and arrivals[0] <= turn:
                arrivals.pop(0)
                engine.add(chosen.pop())
            for name, when in leaving.items():
                if when == turn:
                    engine.cancel(name)
            for update in engine.step():
                if update.completion is not None:
                    assert update.id not in completions
                    completions[update.id] = update.completion
            turn += 1
        for name, completion in completions.items():
            if completion.finish_reason == "cancelled":
                assert name in leaving
                assert completion.tokens == alone[name][: len(completion.tokens)]
                cancelled += 1
            else:
                assert completion.tokens == alone[name], (mix, name)
                finished += 1
    assert finished > 3 * mixes
    assert cancelled > mixes // 10
    assert sum(engine.statistics.preemptions for engine in engines) > 40 * mixes // MIXES
    assert sum(engine.statistics.cached_tokens for engine in engines) > 1000 * mixes // MIXES
    for engine in engines:
        for shard in engine._scheduler._shards:
            assert shard.store.available == engine._layout.pages
            assert len(shard.free) == engine._layout.slots
            assert not shard.prefixes


@pytest.mark.parametrize("slots", [OPTIONS["slots"], pytest.param(64, marks=pytest.mark.slow)])
def test_a_requests_samples_are_the_same_alone_among_others_reversed_and_after_others(
    engines: list, slots: int
) -> None:
    engine = make_engine(slots=slots)
    requests = [
        dataclasses.replace(
            request,
            sampling=SamplingParams(
                temperature=1.3,
                seed=None if number % 2 else number,
                top_p=(1.0, 0.8)[number % 3 == 0],
                top_k=(0, 7)[number % 5 == 0],
                min_p=(0.0, 0.05)[number % 7 == 0],
                presence_penalty=(0.0, 0.5)[number % 4 == 0],
                max_tokens=20,
            ),
        )
        for number, request in enumerate(make_requests(64, GREEDY, seed=3))
    ]
    together = tokens_of(run(engine, requests))
    assert tokens_of(run(engine, requests[::-1])) == together
    for request in requests[::8]:
        assert run(engine, [request])[request.id].tokens == together[request.id]
    few_pages = engines[0]
    before = few_pages.statistics.copy()
    assert tokens_of(run(few_pages, requests[:24])) == {r.id: together[r.id] for r in requests[:24]}
    assert (few_pages.statistics - before).preemptions > 0
    assert len({tuple(tokens) for tokens in together.values()}) > 60


def test_samples_of_one_request_differ_from_each_other_and_share_its_prompt() -> None:
    engine = make_engine()
    prompt = list(range(4, 44))
    request = Request("many", prompt, SamplingParams(n=6, max_tokens=12, temperature=1.5))
    completions = list(engine.run([request]))
    assert sorted(completion.sample for completion in completions) == list(range(6))
    assert len({tuple(completion.tokens) for completion in completions}) == 6
    assert sum(completion.cached_tokens for completion in completions) == 5 * 32  # two whole pages of 16
    assert engine.statistics.prefilled_tokens == 39 + 5 * 7
    one = dataclasses.replace(request, sampling=dataclasses.replace(request.sampling, n=1))
    (alone,) = engine.run([one])
    assert alone.tokens == next(c.tokens for c in completions if c.sample == 0)


def test_a_common_beginning_is_computed_once() -> None:
    engine = make_engine()
    common = list(range(5, 38))
    requests = [Request(str(n), [*common, 40 + n], GREEDY) for n in range(8)]
    first = run(engine, requests)
    computed = engine.statistics.prefilled_tokens
    assert computed == 33 + 7 * (33 - 32)
    assert sorted(completion.cached_tokens for completion in first.values()) == [0] + [32] * 7
    for request in requests:
        expected = generate_by_plain_model(request.prompt, GREEDY.max_tokens)
        assert first[request.id].tokens == expected


def test_no_mix_of_requests_compiles_a_new_program() -> None:
    engine = make_engine(**FEW_PAGES)
    run(engine, make_requests(6, GREEDY, longest=60))
    penalised = SamplingParams(temperature=0.5, top_k=4, frequency_penalty=0.3, seed=1, logprobs=5, n=2)
    list(engine.run(make_requests(2, penalised)))
    before = engine.compiled_programs
    run(engine, make_requests(12, SamplingParams(temperature=0.7, top_p=0.8, min_p=0.1), longest=60))
    list(engine.run(make_requests(8, penalised, seed=5, longest=60)))
    assert engine.compiled_programs == before


def test_a_long_prompt_does_not_stop_those_that_decode() -> None:
    engine = make_engine((), prefill_tokens=4)
    engine.add(Request("first", [5, 6], SamplingParams(temperature=0, max_tokens=60)))
    for _ in range(3):
        engine.step()
    engine.add(Request("long", list(range(4, 50)), GREEDY))
    seen = []
    while len(seen) < 8:
        seen += [update.id for update in engine.step() if update.tokens]
    assert seen[:8].count("first") >= 7  # 46 tokens of prompt are twelve chunks


def test_a_cancelled_request_frees_its_slot_and_pages_at_once() -> None:
    engine = make_engine(**FEW_PAGES)
    engine.add(Request("long", list(range(4, 40)), SamplingParams(temperature=0, max_tokens=28)))
    engine.add(Request("next", [7, 8, 9], GREEDY))
    for _ in range(2):
        engine.step()
    engine.cancel("long")
    engine.cancel("nobody")
    updates = engine.step()
    assert updates[0].completion is not None and updates[0].completion.finish_reason == "cancelled"
    assert [one.request.id for one in engine._scheduler.running()] == ["next"]


def test_a_sequence_waits_is_prefilled_and_decodes():
    engine = make_engine(**FEW_PAGES)  # no room for two
    engine.add(Request("first", list(range(4, 40)), GREEDY))
    engine.add(Request("second", [5, 6], GREEDY))
    (first,), (second,) = engine._sequences.values()
    seen = [(first.state, second.state)]
    while engine.unfinished:
        engine.step()
        seen.append((first.state, second.state))
    waiting, prefilling, decoding = State.WAITING, State.PREFILLING, State.DECODING
    assert [pair for pair, _ in itertools.groupby(seen)] == [
        *[(waiting, waiting), (prefilling, waiting), (decoding, waiting)],
        *[(waiting, waiting), (waiting, decoding), (waiting, waiting)],
    ]
    with pytest.raises(RuntimeError, match="sample 0 of request 'first' has no slot"):
        _ = first.placed


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"slots": 0}, "slots is 0: it must be a whole number from 1 to 2147483647"),
        ({"decode_steps": 2.5}, "decode_steps is 2.5: it must be a whole number from 1 to 2147483647"),
        ({"page_size": 24}, "page_size is 24: it must be a multiple of 16"),
        ({"pages": 3}, "pages is 3: the longest sequence, 64 tokens, needs 4 of 16 tokens"),
        (
            {"kv_dtype": "int3"},
            "kv_dtype is 'int3': it must be one of float32, bfloat16, float8_e4m3fn, float8_e5m2",
        ),
        (
            {"kv_dtype": "float8_e5m2"},
            "page_size is 16: it must be a multiple of 32 for float8_e5m2 entries",
        ),
    ],
)
def test_an_option_that_cannot_be_is_refused_in_one_line(changes: dict, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}$"):
        make_engine(**(OPTIONS | changes))
