"""Runs an engine step by step with a clock: whole jobs, bursts, and stretches of steady decoding."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence

from gptoss_jax.bench.comparison import BenchError
from gptoss_jax.engine import Engine, Request
from gptoss_jax.engine.statistics import Statistics

Clock = Callable[[], float]
Tokens = dict[str, list[int]]
"""Request id → the tokens of its completion so far."""


@dataclasses.dataclass(frozen=True)
class Work:
    """What the engine did in a stretch of time. tokens: those that it returned in that time."""

    seconds: float
    statistics: Statistics
    tokens: Tokens

    @property
    def generated(self) -> int:
        """The number of tokens of all sequences."""
        return sum(map(len, self.tokens.values()))

    @property
    def rate(self) -> float:
        """Tokens per second."""
        return self.generated / self.seconds


def complete(engine: Engine, requests: Sequence[Request], clock: Clock = time.perf_counter) -> Work:
    """Adds all requests at once and runs them to the end."""
    before, start = engine.statistics.copy(), clock()
    for request in requests:
        engine.add(request)
    tokens: Tokens = {}
    while engine.unfinished:
        for update in engine.step():
            tokens.setdefault(update.id, []).extend(update.tokens)
    return Work(clock() - start, engine.statistics - before, tokens)


def begin(engine: Engine, requests: Sequence[Request], minimum: int = 1) -> Tokens:
    """Adds requests, at most as many as there are free slots, and steps until each has `minimum` tokens.

    From then on all of them decode and nothing is prefilled. Returns the tokens so far, those of earlier
    requests included.
    """
    for request in requests:
        engine.add(request)
    tokens: Tokens = {request.id: [] for request in requests}
    while any(len(tokens[request.id]) < minimum for request in requests):
        for update in engine.step():
            tokens.setdefault(update.id, []).extend(update.tokens)
            _not_finished(update.completion)
    return tokens


def decode(engine: Engine, dispatches: int, clock: Clock = time.perf_counter) -> Work:
    """Runs `dispatches` dispatches of sequences that `begin` started. None of them may end meanwhile."""
    before, start = engine.statistics.copy(), clock()
    tokens: Tokens = {}
    while engine.statistics.dispatches - before.dispatches < dispatches:
        for update in engine.step():
            tokens.setdefault(update.id, []).extend(update.tokens)
            _not_finished(update.completion)
    return Work(clock() - start, engine.statistics - before, tokens)


def end(engine: Engine, requests: Sequence[Request]) -> None:
    """Cancels requests, and steps until the engine is idle."""
    for request in requests:
        engine.cancel(request.id)
    engine.step()


@dataclasses.dataclass(frozen=True)
class Burst:
    """The times of equal requests that were added at once, as many as there are slots.

    first: seconds until each request had its first token. seconds: the whole time. generated: tokens in all.
    steady_seconds, steady_tokens: time and tokens between the last request's first token and the first
    request's end. steady_length: mean length of the completions in the middle of that stretch.
    """

    first: Sequence[float]
    seconds: float
    generated: int
    steady_seconds: float
    steady_tokens: int
    steady_length: float

    @property
    def step_seconds(self) -> float:
        """Seconds per decode step, while all sequences decode."""
        return self.steady_seconds / (self.steady_tokens / len(self.first))


def burst(engine: Engine, requests: Sequence[Request], clock: Clock = time.perf_counter) -> Burst:
    """Runs a burst. Raises `BenchError` if its completions are too short to have a steady middle."""
    start = clock()
    for request in requests:
        engine.add(request)
    first: dict[str, float] = {}
    generated = 0
    began: tuple[float, int] | None = None
    ended: tuple[float, int] | None = None
    while engine.unfinished:
        updates = engine.step()
        now = clock() - start
        for update in updates:
            first.setdefault(update.id, now)
            generated += len(update.tokens)
        if began is None and len(first) == len(requests):
            began = now, generated
        if ended is None and any(update.completion is not None for update in updates):
            ended = now, generated
    if began is None or ended is None or ended[1] <= began[1]:
        raise BenchError(
            f"{len(requests)} sequences: the first ended before the last had begun; they must be longer"
        )
    return Burst(
        first=tuple(first[request.id] for request in requests),
        seconds=now,
        generated=generated,
        steady_seconds=ended[0] - began[0],
        steady_tokens=ended[1] - began[1],
        steady_length=(began[1] + ended[1]) / 2 / len(requests),
    )


def same_tokens(what: str, ours: Tokens, theirs: Tokens, *, exact: bool) -> str:
    """Compares completions up to the length of the shorter one. Returns the line that says what was checked.

    Raises `BenchError` if they differ and `exact` is True.
    """
    equal = 0
    for id, tokens in ours.items():
        shared = min(len(tokens), len(theirs.get(id, ())))
        equal += shared > 0 and tokens[:shared] == theirs[id][:shared]
    if exact and equal < len(ours):
        raise BenchError(f"{what}: {len(ours) - equal} of {len(ours)} completions differ")
    return f"{what}: {equal} of {len(ours)} completions have the same tokens"


def _not_finished(completion: object) -> None:
    if completion is not None:
        raise BenchError("a sequence ended while steady decoding was measured: max_length is too small")
