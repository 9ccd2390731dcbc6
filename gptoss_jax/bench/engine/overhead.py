"""The share of time in which the device has nothing to do, because the host is not ready."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from gptoss_jax.bench.comparison import BenchError
from gptoss_jax.bench.engine.measuring import Clock, Work, begin, decode, end
from gptoss_jax.bench.engine.report import Figure, Goal, Part, millis, percent
from gptoss_jax.bench.engine.settings import Settings
from gptoss_jax.bench.engine.subject import Subject
from gptoss_jax.engine import Engine, Request, SamplingParams
from gptoss_jax.engine.runner import Runner

_WARM = 2
"""Dispatches before the clock starts, on both sides."""

GOAL = Goal(most=5)
"""Percent of the time that the device may wait on an accelerator."""


class _Call(NamedTuple):
    """A decode dispatch: what stood behind parameters, cache and slots, and what it drew."""

    arguments: tuple[Any, ...]
    tokens: jax.Array


class Round(NamedTuple):
    """The same dispatches by the engine, and one after the other without a host in between, in seconds."""

    engine: Work
    device_seconds: float
    drawn: int
    differing: int

    def idle(self) -> float:
        """The share of the engine's time in which the device waited."""
        return idle_share(self.engine.seconds, self.device_seconds)


def idle_share(seconds: float, device_seconds: float) -> float:
    """The part of some seconds that a device did not need."""
    return 1 - device_seconds / seconds


def measure(subject: Subject, settings: Settings, engine: Engine) -> Part:
    """Steady decoding of all slots, against its own dispatches replayed back to back from the same state."""
    rounds = [_round(subject, settings, engine, number) for number in range(-1, settings.rounds)]
    differing, drawn = sum(one.differing for one in rounds), sum(one.drawn for one in rounds)
    if differing and subject.model.dtype == np.float32:
        raise BenchError(f"the replayed dispatches drew {differing} other tokens than the engine's")
    del rounds[0]  # compiles
    count, on_cpu = settings.dispatches, jax.default_backend() == "cpu"
    idle = percent("time in which the device waits", [one.idle() for one in rounds], None if on_cpu else GOAL)
    works = [one.engine for one in rounds]
    figures = [
        idle,
        millis("engine, a dispatch", [one.seconds / count for one in works]),
        millis("device, a dispatch", [one.device_seconds / count for one in rounds]),
        millis("engine, a decode step", [one.seconds / count / settings.decode_steps for one in works]),
        millis("host's own, a dispatch", [_host(one) / count for one in works]),
        Figure("dispatches sent to an idle device", "", tuple(_blocked(one) for one in works)),
    ]
    setting = (
        f"{engine.slots} slots, all decoding, {settings.decode_steps} steps a dispatch, {count} dispatches, "
        f"prompts of {settings.prompt} tokens"
    )
    checked = [f"the replayed dispatches drew {drawn - differing} of the engine's {drawn} tokens"]
    notes = ["host's own: the time in which it does not wait for a dispatch; it may overlap the device's"]
    return Part("overhead", setting, checked, figures, notes)


def _host(work: Work) -> float:
    return work.seconds - work.statistics.wait_seconds


def _blocked(work: Work) -> float:
    return float(work.statistics.blocked_dispatches)


def _round(
    subject: Subject, settings: Settings, engine: Engine, number: int, clock: Clock = time.perf_counter
) -> Round:
    count = _WARM + settings.dispatches
    sampling = SamplingParams(min_tokens=engine.max_length)
    generator = np.random.default_rng(number + 1)
    requests = [
        Request(f"{number}.{index}", subject.tokens(generator, settings.prompt), sampling)
        for index in range(engine.slots)
    ]
    begin(engine, requests)
    runner = _runner_of(engine)
    state = jax.block_until_ready(jax.tree.map(jnp.copy, (runner._cache, runner._slots)))
    with _recorded(runner) as calls:
        decode(engine, _WARM)
        work = decode(engine, settings.dispatches, clock)
    end(engine, requests)
    if len(calls) != count:
        raise BenchError(f"steady decoding sent {len(calls)} dispatches instead of {count}")
    step, parameters = runner.steps.decode, runner.steps.parameters
    cache, slots = state
    del state  # each call takes the place of the one before it
    drawn: list[jax.Array] = []
    start = 0.0
    for index, call in enumerate(calls):
        if index == _WARM:
            jax.block_until_ready(drawn)
            start = clock()
        cache, slots, one = step(parameters, cache, slots, *call.arguments)
        drawn.append(one.tokens)
    jax.block_until_ready(drawn)
    seconds = clock() - start
    differing = sum(
        int((np.asarray(ours) != np.asarray(call.tokens)).sum())
        for ours, call in zip(drawn, calls, strict=True)
    )
    return Round(work, seconds, sum(one.size for one in drawn), differing)


def _runner_of(engine: Engine) -> Runner:
    """The device's side of an engine, which nobody but a measurement needs."""
    return engine._runner


@contextmanager
def _recorded(runner: Runner) -> Iterator[list[_Call]]:
    """Notes what the decode step is called with, as it lies on the device."""
    calls: list[_Call] = []
    step = runner.steps.decode

    def recording(parameters: Any, cache: Any, slots: Any, *arguments: Any) -> Any:
        done = step(parameters, cache, slots, *arguments)
        calls.append(_Call(arguments, done[2].tokens))
        return done

    runner.steps.decode = recording  # type: ignore[assignment]
    try:
        yield calls
    finally:
        runner.steps.decode = step
