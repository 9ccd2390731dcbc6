"""The fraction of time in which the device is idle, because the host is not ready."""

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
from gptoss_jax.bench.engine.target import BenchTarget
from gptoss_jax.engine import Engine, Request, SamplingParams
from gptoss_jax.engine.runner import Runner

_WARM = 2
"""Dispatches before timing starts, on both sides."""

GOAL = Goal(maximum=5)
"""Percent of the time that an accelerator may be idle."""


class _Call(NamedTuple):
    """A decode dispatch: its arguments after parameters, cache and slots, and the tokens that it drew."""

    arguments: tuple[object, ...]
    tokens: jax.Array


class Round(NamedTuple):
    """The same dispatches run by the engine, and replayed back to back without the host. `device_seconds` is
    the time of the replay; `differing` of the `drawn` tokens differ.
    """

    engine: Work
    device_seconds: float
    drawn: int
    differing: int

    def idle(self) -> float:
        """The fraction of the engine's time in which the device was idle."""
        return idle_share(self.engine.seconds, self.device_seconds)


def idle_share(seconds: float, device_seconds: float) -> float:
    """The fraction of `seconds` in which a device that needs `device_seconds` is idle."""
    return 1 - device_seconds / seconds


def measure(target: BenchTarget, settings: Settings, engine: Engine) -> Part:
    """Compares steady decoding of all slots with the same dispatches
    replayed back to back from the same state.
    """
    rounds = [_round(target, settings, engine, number) for number in range(-1, settings.rounds)]
    differing, drawn = sum(one.differing for one in rounds), sum(one.drawn for one in rounds)
    if differing and target.model.dtype == np.float32:
        raise BenchError(f"the replayed dispatches drew {differing} other tokens than the engine's")
    del rounds[0]  # the first round compiles
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
    target: BenchTarget, settings: Settings, engine: Engine, number: int, clock: Clock = time.perf_counter
) -> Round:
    count = _WARM + settings.dispatches
    sampling = SamplingParams(min_tokens=engine.max_length)
    generator = np.random.default_rng(number + 1)
    requests = [
        Request(f"{number}.{index}", target.tokens(generator, settings.prompt), sampling)
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
    del state  # the replay donates it
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
    """The runner of an engine, which is not part of its public API."""
    return engine._runner


@contextmanager
def _recorded(runner: Runner) -> Iterator[list[_Call]]:
    """Records the calls of the decode step with their arguments on the device."""
    calls: list[_Call] = []
    step = runner.steps.decode

    def recording(parameters: Any, cache: Any, slots: Any, *arguments: object) -> Any:
        done = step(parameters, cache, slots, *arguments)
        calls.append(_Call(arguments, done[2].tokens))
        return done

    runner.steps.decode = recording  # type: ignore[assignment]
    try:
        yield calls
    finally:
        runner.steps.decode = step
