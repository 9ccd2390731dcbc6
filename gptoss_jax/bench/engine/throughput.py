"""Tokens per second for several numbers of sequences, compared with the memory-bound limit."""

from __future__ import annotations

import functools

import jax
import numpy as np

from gptoss_jax.bench.engine.limits import step_bytes
from gptoss_jax.bench.engine.measuring import Burst, burst, complete, same_tokens
from gptoss_jax.bench.engine.report import Figure, Goal, Part, millis, percent
from gptoss_jax.bench.engine.settings import Settings
from gptoss_jax.bench.engine.target import BenchTarget
from gptoss_jax.bench.kernels.ceilings import copy_bandwidth
from gptoss_jax.engine import Engine, Request, SamplingParams

PUBLISHED = {
    ("20b", 1): "published for one stream of 20b: 285 tokens/s, vLLM on one H100",
}
"""(model, sequences) → published figures of other software in a comparable setting; printed on GPUs only."""

_CACHED = 1 << 28
"""Bytes that a device's caches may keep from one step to the next."""

SHARE_GOAL = Goal(minimum=60)
"""Percent of the memory-bound limit that a single sequence should reach on an accelerator."""


def measure(target: BenchTarget, settings: Settings, sequences: int) -> Part:
    """Runs `sequences` sequences at once, in an engine with as many slots."""
    options = {"slots": sequences, "max_length": settings.max_length, "snapshots": 0}
    with target.engine(decode_steps=settings.decode_steps, **options) as engine:
        return _measure(target, settings, engine, sequences)


def _measure(target: BenchTarget, settings: Settings, engine: Engine, sequences: int) -> Part:
    make = functools.partial(_requests, target, settings, sequences)
    # A sequence alone must draw the same tokens as beside the others. This also compiles everything.
    together = complete(engine, make(0)).tokens
    alone = complete(engine, make(0)[:1]).tokens
    exact = target.model.dtype == np.float32
    checked = same_tokens("a sequence alone and beside the others", alone, together, exact=exact)
    bursts = [burst(engine, make(1 + number)) for number in range(settings.rounds)]
    part = figures_of(bursts)
    notes = [f"prompts are random, {sequences} at once; tokens are drawn at temperature 1"]
    context = settings.prompt + float(np.mean([one.steady_length for one in bursts]))
    needs = step_bytes(target.model, sequences, context)
    if needs.total < _CACHED:
        notes.append("a step reads so little that caches can hold it: no memory-bound limit applies")
    elif target.mesh.size == 1:
        bandwidth = _bandwidth(settings.copied)
        limit = needs.total / bandwidth
        goal = SHARE_GOAL if sequences == 1 and jax.default_backend() != "cpu" else None
        shares = [limit / one.step_seconds for one in bursts]
        part.append(percent("memory-bound limit / step time", shares, goal))
        notes.append(
            f"limit: {needs.dense / 1e9:.3g} GB dense + {needs.experts / 1e9:.3g} GB experts (expected) + "
            f"{needs.cache / 1e9:.3g} GB keys and values at {bandwidth / 1e9:,.0f} GB/s (measured copy): "
            f"{1e3 * limit:.3g} ms a step, {sequences / limit:,.0f} tokens/s"
        )
    published = PUBLISHED.get((target.name, sequences))
    if published is not None and jax.default_backend() == "gpu":
        notes.append(published)
    setting = (
        f"{sequences} sequences, {settings.prompt} prompt tokens and {settings.generated} generated each, "
        f"{settings.decode_steps} steps a dispatch"
    )
    return Part(f"throughput {sequences}", setting, [checked], part, notes)


def figures_of(bursts: list[Burst]) -> list[Figure]:
    """The figures of bursts, one burst per round."""
    return [
        Figure("tokens/s while all decode", "1/s", tuple(b.steady_tokens / b.steady_seconds for b in bursts)),
        Figure("tokens/s with prefill, start to end", "1/s", tuple(b.generated / b.seconds for b in bursts)),
        millis("decode step", [one.step_seconds for one in bursts]),
        millis("time to first token, median", [float(np.median(one.first)) for one in bursts]),
        millis("time to first token, longest", [max(one.first) for one in bursts]),
    ]


def _requests(target: BenchTarget, settings: Settings, count: int, number: int) -> list[Request]:
    generator = np.random.default_rng(number)
    sampling = SamplingParams(max_tokens=settings.generated, min_tokens=settings.generated)
    return [
        Request(f"{number}.{index}", target.tokens(generator, settings.prompt), sampling)
        for index in range(count)
    ]


@functools.cache
def _bandwidth(num_bytes: int) -> float:
    return copy_bandwidth(num_bytes)
