"""What the feeder hands to an engine, and when."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gptoss_jax.engine.feeder import BACKLOG, WINDOW, Feeder
from gptoss_jax.engine.request import Request, SamplingParams


class Counter:
    """An engine of which only the numbers are known."""

    max_length, slots, unfinished = 1000, 4, 0


def request(name: str, prompt: int, max_tokens: int | None = 1) -> Request:
    return Request(name, [1] * prompt, SamplingParams(max_tokens=max_tokens))


def handed(feeder: Feeder, engine: Counter) -> list[str]:
    """What is due, added to the engine one by one."""
    names = []
    for one in feeder.due():
        engine.unfinished += one.sampling.n
        names.append(one.id)
    return names


def test_as_many_wait_in_the_engine_as_run() -> None:
    engine = Counter()
    feeder = Feeder(engine)
    feeder.add_source([request(str(number), 1) for number in range(100)])
    assert len(handed(feeder, engine)) == BACKLOG * engine.slots
    assert handed(feeder, engine) == []
    engine.unfinished -= 3
    assert len(handed(feeder, engine)) == 3
    assert feeder


def test_the_longest_of_a_list_go_first_and_no_limit_is_the_longest() -> None:
    engine = Counter()
    feeder = Feeder(engine)
    feeder.add_source([request("a", 10), request("b", 5, 50), request("c", 3, None), request("d", 2, 10**9)])
    assert handed(feeder, engine) == ["c", "d", "b", "a"]
    assert not handed(feeder, engine) and not feeder


def test_sources_take_turns() -> None:
    engine = Counter()
    feeder = Feeder(engine)
    feeder.add_source([request(f"many {number}", 1) for number in range(50)])
    feeder.add_source([request("one", 1)])
    feeder.add_source(iter([request("x", 1), request("y", 2)]))
    assert handed(feeder, engine) == ["many 0", "one", "y", "many 1", "x", "many 2", "many 3", "many 4"]


@pytest.mark.parametrize("count", [0, 3, 100])
def test_an_iterable_is_read_a_window_at_a_time_and_only_when_it_is_needed(count: int) -> None:
    read = []

    def lines() -> Iterator[Request]:
        for number in range(count):
            read.append(number)
            yield request(str(number), 1 + number)

    engine = Counter()
    feeder = Feeder(engine)
    feeder.add_source(lines())
    assert read == []
    first = handed(feeder, engine)
    window = min(count, WINDOW * engine.slots)
    assert len(read) == window
    assert first == [str(number) for number in reversed(range(window))][: BACKLOG * engine.slots]
    rest = []
    while feeder:
        engine.unfinished = 0
        rest += handed(feeder, engine)
    assert sorted(map(int, first + rest)) == list(range(count))
