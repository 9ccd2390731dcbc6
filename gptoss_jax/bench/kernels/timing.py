"""Times calls on an asynchronous device: many calls per program, many programs in a row."""

from __future__ import annotations

import collections
import dataclasses
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import jax


@dataclasses.dataclass(frozen=True)
class Timing:
    """Seconds of one call: the median over rounds, and the interquartile range as `spread`.

    kernels: seconds of one call in each kernel by name, from the profiler; empty if it saw none.
    """

    seconds: float
    spread: float
    kernels: dict[str, float]


def time_calls(
    step: Callable[..., object],
    inputs: Sequence[tuple[object, ...]],
    weights: Sequence[object] = (),
    *,
    rounds: int = 9,
    seconds_a_round: float = 0.05,
) -> Timing:
    """Times `step(*input, weight)`. Calls use the inputs in order and the weights in turn.

    Together, the calls should touch more memory than any cache holds. All calls are one compiled program, so
    that the host does nothing between them, and the program runs several times before a wait, so that many
    calls share it.
    """

    @jax.jit
    def program(inputs: Sequence[tuple[object, ...]], weights: Sequence[object]) -> list[object]:
        chosen = [(weights[n % len(weights)],) if weights else () for n in range(len(inputs))]
        return [step(*each, *weight) for each, weight in zip(inputs, chosen, strict=True)]

    def run(repeats: int) -> float:
        start = time.perf_counter()
        for _ in range(repeats):
            result = program(inputs, weights)
        jax.block_until_ready(result)
        return time.perf_counter() - start

    run(2)
    repeats = max(2, round(seconds_a_round / max(run(3) / 3, 1e-6)))
    times = sorted(run(repeats) / repeats / len(inputs) for _ in range(rounds))
    quartile = rounds // 4
    kernels = _profile(lambda: run(2))
    return Timing(
        seconds=statistics.median(times),
        spread=times[-1 - quartile] - times[quartile],
        kernels={name: seconds / 2 / len(inputs) for name, seconds in kernels.items()},
    )


def _profile(run: Callable[[], object]) -> dict[str, float]:
    """Seconds in each GPU kernel during `run`, the longest first."""
    totals: dict[str, float] = collections.defaultdict(float)
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            run()
        for file in Path(folder).rglob("*.xplane.pb"):
            for plane in jax.profiler.ProfileData.from_file(str(file)).planes:
                if not plane.name.startswith("/device:GPU"):
                    continue
                for line in plane.lines:
                    if line.name.startswith("Stream"):
                        for event in line.events:
                            totals[event.name] += event.duration_ns * 1e-9
    return dict(sorted(totals.items(), key=lambda item: -item[1]))
