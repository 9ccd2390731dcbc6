"""Continuous batching compared with static batches, for requests of different lengths."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import numpy as np

from gptoss_jax.bench.engine.measuring import Tokens, Work, complete, same_tokens
from gptoss_jax.bench.engine.report import Figure, Part, percent, ratios
from gptoss_jax.bench.engine.settings import Settings
from gptoss_jax.bench.engine.target import BenchTarget
from gptoss_jax.engine import Engine, Request, SamplingParams
from gptoss_jax.engine.statistics import Statistics

_LONG_SHARE = 0.2


Side = Callable[[list[Request]], Work]

_SIDES = {"queue": "queue", "sorted": "longest first", "static": "static batches"}


def measure(target: BenchTarget, settings: Settings, engine: Engine) -> Part:
    """Runs the same requests as one queue, sorted with the longest first,
    and in static batches as large as the slots.
    """
    sides: dict[str, Side] = {
        "queue": functools.partial(complete, engine),
        "sorted": lambda requests: complete(engine, sorted(requests, key=_length, reverse=True)),
        "static": functools.partial(static, engine),
    }
    make = functools.partial(_requests, target, settings, engine.slots)
    exact = target.model.dtype == np.float32
    first = {name: run(make(0, 0)) for name, run in sides.items()}
    batched = first["static"].tokens
    checked = [
        same_tokens(f"{_SIDES[name]} and static batches", first[name].tokens, batched, exact=exact)
        for name in ("queue", "sorted")
    ]
    works: dict[str, list[Work]] = {name: [] for name in sides}
    for number in range(settings.rounds):
        names = list(sides)
        for name in names if number % 2 == 0 else names[::-1]:
            # Each side has its own prompts, so that it finds none of them in the prefix cache.
            works[name].append(sides[name](make(1 + number, names.index(name))))
    setting = (
        f"{settings.requests * engine.slots} requests for {engine.slots} slots, prompts of {settings.prompt} "
        f"tokens, {_LONG_SHARE:.0%} generate {settings.long} tokens and the others {settings.short}"
    )
    notes = [
        "queue: all at once, begun in the order of arrival, which knows nothing of lengths",
        "slot use: tokens / (steps sent x slots); row use: tokens / steps sent for rows that were taken",
    ]
    return Part("batching", setting, checked, _figures(works, engine.slots), notes)


def _figures(works: dict[str, list[Work]], slots: int) -> list[Figure]:
    rates = {name: [work.rate for work in some] for name, some in works.items()}
    return [
        ratios("queue / static batches, tokens/s", rates["queue"], rates["static"]),
        ratios("longest first / static batches", rates["sorted"], rates["static"]),
        *(Figure(f"tokens/s, {words}", "1/s", tuple(rates[name])) for name, words in _SIDES.items()),
        *(
            percent(f"slot use, {words}", [slot_use(work.statistics, slots) for work in works[name]])
            for name, words in _SIDES.items()
        ),
        *(
            percent(f"row use, {words}", [row_use(work.statistics) for work in works[name]])
            for name, words in _SIDES.items()
        ),
        *(
            percent(f"padding in prefill, {words}", [padding(work.statistics) for work in works[name]])
            for name, words in _SIDES.items()
        ),
    ]


def static(engine: Engine, requests: Sequence[Request]) -> Work:
    """Runs requests in batches as large as the number of slots.

    Each starts when the one before is finished.
    """
    works = [
        complete(engine, requests[begin : begin + engine.slots])
        for begin in range(0, len(requests), engine.slots)
    ]
    tokens: Tokens = {}
    before = Statistics()
    for work in works:
        tokens |= work.tokens
        before = before - work.statistics
    return Work(sum(work.seconds for work in works), Statistics() - before, tokens)


def slot_use(statistics: Statistics, slots: int) -> float:
    """The fraction of the steps of all slots that gave a token."""
    return statistics.generated_tokens / (statistics.decode_steps * slots)


def row_use(statistics: Statistics) -> float:
    """The fraction of the steps of occupied slots that gave a token."""
    return statistics.generated_tokens / statistics.row_steps


def padding(statistics: Statistics) -> float:
    """The fraction of the tokens in prefill steps that were padding."""
    return statistics.padded_tokens / (statistics.padded_tokens + statistics.prefilled_tokens)


def _length(request: Request) -> int:
    return request.sampling.max_tokens or 0


def _requests(target: BenchTarget, settings: Settings, slots: int, number: int, side: int) -> list[Request]:
    """The requests of a round. Their lengths are the same for all sides."""
    generator = np.random.default_rng([1, number])
    is_long = generator.random(settings.requests * slots) < _LONG_SHARE
    generator = np.random.default_rng([2, number, side])
    requests = []
    for index, length in enumerate(np.where(is_long, settings.long, settings.short).tolist()):
        sampling = SamplingParams(max_tokens=length, min_tokens=length)
        prompt = target.tokens(generator, settings.prompt)
        requests.append(Request(f"{number}.{index}", prompt, sampling))
    return requests
