"""Prompts with a common prefix: with the prefix cache, and without it."""

from __future__ import annotations

import functools

import numpy as np

from gptoss_jax.bench.comparison import in_turns
from gptoss_jax.bench.engine.measuring import complete, same_tokens
from gptoss_jax.bench.engine.report import Figure, Part, millis, ratios
from gptoss_jax.bench.engine.settings import Settings
from gptoss_jax.bench.engine.target import BenchTarget
from gptoss_jax.engine import Engine, Request, SamplingParams

_OWN = 16
"""Tokens of each prompt after the common prefix."""
_GENERATED = 16


def measure(target: BenchTarget, settings: Settings, engine: Engine) -> Part:
    """Compares an engine with a prefix cache with one without. Each round has a new prefix."""
    make = functools.partial(_requests, target, settings, engine.slots)
    options = {"slots": settings.slots, "max_length": engine.max_length, "snapshots": 0}
    with target.engine(decode_steps=settings.decode_steps, **options) as without:
        kept, anew = complete(engine, make(-1)), complete(without, make(-1))
        exact = target.model.dtype == np.float32
        checked = [same_tokens("with reuse and without", kept.tokens, anew.tokens, exact=exact)]
        complete(engine, make(-2))  # compiles the copies of rings, which the first run did not need
        numbers, again = iter(range(settings.rounds)), iter(range(settings.rounds))
        ours, theirs = in_turns(
            settings.rounds,
            lambda: complete(engine, make(next(numbers))),
            lambda: complete(without, make(next(again))),
        )
    figures = [
        ratios("time without / with reuse", [a.seconds for a in theirs], [b.seconds for b in ours]),
        ratios(
            "prefilled tokens without / with reuse",
            [a.statistics.prefilled_tokens for a in theirs],
            [b.statistics.prefilled_tokens for b in ours],
        ),
        millis("with reuse", [one.seconds for one in ours]),
        millis("without", [one.seconds for one in theirs]),
        Figure("prompt tokens found", "", tuple(float(w.statistics.cached_tokens) for w in ours)),
    ]
    count = settings.prefix_requests * engine.slots
    setting = (
        f"{count} requests at once for {engine.slots} slots: {settings.prefix} tokens in common and {_OWN} "
        f"of their own, {_GENERATED} generated; the common ones are new to the engine"
    )
    return Part("prefix", setting, checked, figures)


def _requests(target: BenchTarget, settings: Settings, slots: int, number: int) -> list[Request]:
    generator = np.random.default_rng(1000 + number)
    common = target.tokens(generator, settings.prefix)
    sampling = SamplingParams(max_tokens=_GENERATED, min_tokens=_GENERATED)
    return [
        Request(f"{number}.{index}", [*common, *target.tokens(generator, _OWN)], sampling)
        for index in range(settings.prefix_requests * slots)
    ]
