"""The cost of a grammar, for rows under it and for free rows in the same batch."""

from __future__ import annotations

import dataclasses
import functools

import numpy as np

from gptoss_jax.bench.comparison import BenchError, in_turns
from gptoss_jax.bench.engine.measuring import Tokens, Work, begin, decode, end, same_tokens
from gptoss_jax.bench.engine.report import Figure, Part, millis, percent, ratios
from gptoss_jax.bench.engine.settings import Settings
from gptoss_jax.bench.engine.target import BenchTarget
from gptoss_jax.engine import Engine, Request, SamplingParams

SCHEMA = {
    "type": "array",
    "minItems": 10_000,  # so that no document ends while it is timed
    "items": {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 12},
            "count": {"type": "integer", "minimum": 0, "maximum": 999},
            "kind": {"enum": ["first", "second", "third"]},
        },
        "required": ["name", "count", "kind"],
        "additionalProperties": False,
    },
}
_INSIDE = 16
"""Tokens after which every completion is inside its document."""


def measure(target: BenchTarget, settings: Settings, engine: Engine) -> Part:
    """Measures all rows free, all rows under a schema, and half of each."""
    if target.encoding is None:
        raise BenchError("there is no encoding: it needs the packages of harmony and llguidance")
    slots = engine.slots
    if slots < 2:
        raise BenchError("slots is 1: there must be at least 2, half of them free")
    run = functools.partial(_run, target, settings, engine)
    kinds = {"free": (slots, 0), "bound": (0, slots), "half": (slots - slots // 2, slots // 2)}
    first = {name: run(*counts, 0) for name, counts in kinds.items()}
    exact = target.model.dtype == np.float32
    checked = [
        same_tokens("free rows alone and beside others", _half(first, "f"), first["free"][1], exact=exact),
        same_tokens("rows under the schema, the same", _half(first, "b"), first["bound"][1], exact=exact),
    ]
    works: dict[str, list[Work]] = {name: [] for name in kinds}
    for number in range(settings.rounds):
        for name in list(kinds) if number % 2 == 0 else list(kinds)[::-1]:
            works[name].append(run(*kinds[name], 1 + number)[0])
    figures = _figures(works, settings.dispatches) + _single_steps(target, settings, slots)
    notes = [
        "a dispatch has one masked token; those drawn behind it are kept as far as the schema allows them,",
        "and it ends early where all rows drew a stop token",
    ]
    return Part("grammar", _setting(settings, slots), checked, figures, notes)


def _single_steps(target: BenchTarget, settings: Settings, slots: int) -> list[Figure]:
    """Measures one step per dispatch, where every token is masked: the cost of masks alone."""
    settings = dataclasses.replace(settings, dispatches=4 * settings.dispatches, decode_steps=1)
    with target.engine(slots=slots, max_length=settings.max_length, decode_steps=1) as engine:
        run = functools.partial(_run, target, settings, engine)
        for counts in ((slots, 0), (0, slots)):
            run(*counts, 0)
        free, bound = in_turns(settings.rounds, lambda: run(slots, 0, 1)[0], lambda: run(0, slots, 1)[0])
    times = [[work.seconds / settings.dispatches for work in some] for some in (free, bound)]
    more = [1e6 * (b - a) / slots for a, b in zip(*times, strict=True)]
    return [
        ratios("one step a dispatch: schema / free", times[1], times[0]),
        millis("one step a dispatch: free", times[0]),
        millis("one step a dispatch: schema", times[1]),
        Figure("one step a dispatch: the schema, for each row", "us", tuple(more)),
    ]


def _setting(settings: Settings, slots: int) -> str:
    return (
        f"{slots} slots, an array of objects of three fields, {settings.decode_steps} steps a dispatch, "
        f"{settings.dispatches} dispatches"
    )


def _figures(works: dict[str, list[Work]], dispatches: int) -> list[Figure]:
    free, bound, half = works["free"], works["bound"], works["half"]

    def each(some: list[Work]) -> list[float]:
        return [work.seconds / dispatches for work in some]

    def host(some: list[Work]) -> list[float]:
        return [(work.seconds - work.statistics.wait_seconds) / dispatches for work in some]

    def rate(some: list[Work], prefix: str) -> list[float]:
        """Tokens per second of a row of one kind."""
        found = []
        for work in some:
            rows = [tokens for id, tokens in work.tokens.items() if id.startswith(prefix)]
            found.append(sum(map(len, rows)) / max(1, len(rows)) / work.seconds)
        return found

    def refused(some: list[Work]) -> list[float]:
        return [
            work.statistics.refused_tokens / (work.statistics.refused_tokens + work.generated)
            for work in some
        ]

    free_rate, bound_rate = rate(free, "f"), rate(bound, "b")
    return [
        ratios("a dispatch, under the schema / free", each(bound), each(free)),
        ratios("a token, under the schema / free", free_rate, bound_rate),
        ratios("a free row's tokens/s, half free / all free", rate(half, "f"), free_rate),
        ratios("a bound row's tokens/s, half free / all bound", rate(half, "b"), bound_rate),
        millis("a dispatch, free", each(free)),
        millis("a dispatch, under the schema", each(bound)),
        millis("a dispatch, half of each", each(half)),
        millis("host's own, free", host(free)),
        millis("host's own, under the schema", host(bound)),
        Figure("tokens of a row in a dispatch, schema", "", _per_dispatch(bound, dispatches)),
        percent("drawn and taken back, schema", refused(bound)),
    ]


def _per_dispatch(some: list[Work], dispatches: int) -> tuple[float, ...]:
    return tuple(work.generated / len(work.tokens) / dispatches for work in some)


def _half(first: dict[str, tuple[Work, Tokens]], prefix: str) -> Tokens:
    return {id: tokens for id, tokens in first["half"][1].items() if id.startswith(prefix)}


def _run(
    target: BenchTarget, settings: Settings, engine: Engine, free: int, bound: int, number: int
) -> tuple[Work, Tokens]:
    """Steady decoding of `free` and `bound` rows.

    Returns the timed work, and all tokens since the requests started.
    """
    from gptoss_jax.engine.grammar import Grammar  # only this part needs its packages

    assert target.encoding is not None
    encoding = target.encoding
    schema = SamplingParams(reasoning_budget=1, grammar=Grammar.json_schema(SCHEMA))
    plain = SamplingParams(min_tokens=engine.max_length)

    def requests(kind: str, count: int, sampling: SamplingParams) -> list[Request]:
        texts = (f"<|start|>user<|message|>List {index}.<|end|><|start|>assistant" for index in range(count))
        prompts = (encoding.encode(text, allowed_special="all") for text in texts)
        return [Request(f"{kind}{number}.{i}", prompt, sampling) for i, prompt in enumerate(prompts)]

    under, others = requests("b", bound, schema), requests("f", free, plain)
    tokens = begin(engine, under, minimum=_INSIDE)
    for id, more in begin(engine, others).items():
        tokens[id] = tokens.get(id, []) + more
    work = decode(engine, settings.dispatches)
    end(engine, [*under, *others])
    return work, {id: tokens[id] + work.tokens.get(id, []) for id in tokens}
