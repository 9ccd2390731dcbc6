"""Requests in the background: they fill free slots, and make room for all others."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

import numpy as np
import pytest

from gptoss_jax.engine import Request, RequestError
from gptoss_jax.engine.feeder import BACKLOG, Feeder
from tests.engine.engine_model import FEW_PAGES, GREEDY, OPTIONS, make_engine, make_requests, run, tokens_of
from tests.engine.test_feeder import Counter, handed, request

LONG = dataclasses.replace(GREEDY, max_tokens=24)


def in_background(requests: list[Request]) -> list[Request]:
    return [dataclasses.replace(one, id=f"behind {one.id}", background=True) for one in requests]


def names_of(found: Iterable) -> set[str]:
    """The ids of requests, or of sequences."""
    return {getattr(one, "request", one).id for one in found}


def finish(engine, completions: dict) -> dict:
    """Steps until all is done; completions by id, in the order in which they came."""
    while engine.unfinished:
        for update in engine.step():
            if update.completion is not None:
                completions[update.id] = update.completion
    return completions


@pytest.mark.parametrize(
    "options", [{}, pytest.param(FEW_PAGES, marks=pytest.mark.slow)], ids=["slots", "pages"]
)
def test_a_request_takes_the_place_of_those_in_the_background_and_no_token_changes(options: dict) -> None:
    engine = make_engine(**options)
    behind = in_background(make_requests(OPTIONS["slots"] * 2, LONG, seed=5, longest=12))
    urgent = make_requests(OPTIONS["slots"], GREEDY, seed=6, longest=20)
    alone = tokens_of(run(make_engine(), behind + urgent))
    for one in behind:
        engine.add(one)
    completions: dict = {}
    for _ in range(4):  # all slots are taken, and tokens are in flight
        completions |= {update.id: update.completion for update in engine.step() if update.completion}
    assert names_of(engine._scheduler.running()) <= names_of(behind)
    for one in urgent:
        engine.add(one)
    before = engine.statistics.preemptions
    completions |= {update.id: update.completion for update in engine.step() if update.completion}
    assert engine.statistics.preemptions > before
    if not options:  # with pages for all of them
        assert names_of(engine._scheduler.running()) == names_of(urgent)
    assert tokens_of(finish(engine, completions)) == alone


def test_random_mixes_of_both_give_each_its_own_tokens() -> None:
    generator = np.random.default_rng(4)
    requests = make_requests(24, GREEDY, seed=9, longest=30)
    alone = tokens_of(run(make_engine(), requests))
    engine = make_engine(**FEW_PAGES)
    completions: dict = {}
    for one in requests:
        engine.add(dataclasses.replace(one, background=bool(generator.random() < 0.6)))
        for _ in range(generator.integers(0, 3)):
            completions |= {update.id: update.completion for update in engine.step() if update.completion}
    assert tokens_of(finish(engine, completions)) == alone
    assert engine.statistics.preemptions > 2


def test_background_is_a_flag() -> None:
    with pytest.raises(RequestError, match="background is 1: it must be True or False"):
        Request("r", [1], background=1)  # type: ignore[arg-type]


def test_sources_in_the_background_get_only_free_slots() -> None:
    engine = Counter()
    feeder = Feeder(engine)
    feeder.add_source([request(f"behind {number}", 1) for number in range(9)], background=True)
    feeder.add_source([request("first", 1)])
    assert handed(feeder, engine) == ["first", "behind 0", "behind 1", "behind 2"]
    assert handed(feeder, engine) == []
    engine.unfinished -= 1
    feeder.add_source([request(str(number), 1) for number in range(20)])
    assert handed(feeder, engine) == [str(number) for number in range(5)]
    engine.unfinished = 0
    assert "behind 3" not in handed(feeder, engine)


def test_however_much_of_the_background_is_in_the_engine_others_come_in() -> None:
    engine = Counter()
    feeder = Feeder(engine)
    engine.unfinished = 100  # one request of a hundred samples
    feeder.add_source([request(str(number), 1) for number in range(20)])
    assert list(feeder.due(0)) == []
    due = []
    for one in feeder.due(100):
        engine.unfinished += 1
        due.append(one.id)
    assert len(due) == BACKLOG * engine.slots
