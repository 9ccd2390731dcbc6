"""Keys and values in 8 bits: the memory and time they save, and how much they change the output."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np

from gptoss_jax.bench.comparison import in_turns
from gptoss_jax.bench.engine.limits import cache_bytes
from gptoss_jax.bench.engine.measuring import begin, decode, end
from gptoss_jax.bench.engine.report import Figure, Part, millis, percent, ratios
from gptoss_jax.bench.engine.settings import Settings
from gptoss_jax.bench.engine.target import BenchTarget, conversations
from gptoss_jax.engine import Engine, Request, SamplingParams
from gptoss_jax.engine.request import TokenLogprobs

KV_DTYPE = "float8_e4m3fn"
_TOP = 20
_JUDGED = 5
"""How many of the likeliest tokens are compared by log-probability.

The embedded model is almost certain of the first.
"""


def measure(target: BenchTarget, settings: Settings, engine: Engine) -> Part:
    """Compares an engine with keys and values in the model's dtype with one in 8 bits."""
    options = {"slots": settings.slots, "max_length": engine.max_length, "kv_dtype": KV_DTYPE}
    with target.engine(decode_steps=settings.decode_steps, **options) as narrow:
        figures, checked = _agreement(target, settings, engine, narrow) if target.trained else ([], [])
        for one in (engine, narrow):
            _steps(target, settings, one)
        ours, theirs = in_turns(
            settings.rounds,
            lambda: _steps(target, settings, narrow),
            lambda: _steps(target, settings, engine),
        )
    config, length, own = target.config, settings.max_length, target.model.dtype
    wide_bytes, narrow_bytes = (cache_bytes(config, length, dtype) for dtype in (own, KV_DTYPE))
    figures = [
        Figure(f"bytes a token, at {length} tokens, as the model", "", (wide_bytes / length,)),
        Figure("bytes a token, 8 bits", "", (narrow_bytes / length,)),
        ratios("decode step, as the model / 8 bits", theirs, ours),
        millis("decode step, as the model", theirs),
        millis("decode step, 8 bits", ours),
        *figures,
    ]
    setting = f"{KV_DTYPE} against {jnp.dtype(own).name}, {engine.slots} slots"
    notes = (
        [] if target.trained else ["weights are not the embedded ones: what 8 bits change is not measured"]
    )
    return Part("kv", setting, checked, figures, notes)


def _steps(target: BenchTarget, settings: Settings, engine: Engine) -> float:
    """Seconds of a step of steady decoding."""
    generator = np.random.default_rng(5)
    sampling = SamplingParams(min_tokens=engine.max_length)
    requests = [
        Request(f"step {index}", target.tokens(generator, settings.prompt), sampling)
        for index in range(engine.slots)
    ]
    begin(engine, requests)
    work = decode(engine, settings.dispatches)
    end(engine, requests)
    return work.seconds / settings.dispatches / settings.decode_steps


@dataclasses.dataclass(frozen=True)
class _Place:
    """A place in a completion: the tokens before it, and its token."""

    before: list[int]
    token: int


def _agreement(
    target: BenchTarget, settings: Settings, engine: Engine, narrow: Engine
) -> tuple[list[Figure], list[str]]:
    """Compares both engines at places of the same texts, the greedy completions in the model's dtype."""
    prompts = conversations(target, settings.questions)
    room = engine.max_length - max(map(len, prompts))
    greedy = SamplingParams(temperature=0.0, max_tokens=min(room, 96))
    whole = {c.id: c.tokens for c in engine.run(_all(prompts, greedy))}
    same = {c.id: c.tokens for c in narrow.run(_all(prompts, greedy))}
    places = [
        _Place([*prompt, *whole[str(index)][:at]], whole[str(index)][at])
        for index, prompt in enumerate(prompts)
        for at in np.linspace(0, len(whole[str(index)]) - 1, settings.places).round().astype(int)
    ]
    wide, thin = (_at(one, places) for one in (engine, narrow))
    agreed = [ours.top[0][0] == place.token for ours, place in zip(thin, places, strict=True)]
    gaps = [gap for ours, theirs in zip(thin, wide, strict=True) for gap in _gaps(ours, theirs)]
    repeated = np.mean([ours.top[0][0] == place.token for ours, place in zip(wide, places, strict=True)])
    figures = [
        percent("likeliest token is the same, at given texts", [float(np.mean(agreed))]),
        percent("greedy completions are the same", [float(np.mean([same[id] == whole[id] for id in whole]))]),
        Figure(f"log-probabilities of {_JUDGED} likeliest, mean gap", "nat", (float(np.mean(gaps)),)),
        Figure("the same, 95th percentile", "nat", (float(np.percentile(gaps, 95)),)),
        Figure("the same, largest", "nat", (float(np.max(gaps)),)),
    ]
    checked = [
        f"the model's own precision finds its own tokens again at {repeated:.1%} of {len(places)} places of "
        f"{len(prompts)} completions"
    ]
    return figures, checked


def _gaps(ours: TokenLogprobs, theirs: TokenLogprobs) -> list[float]:
    """The differences of the log-probabilities of the likeliest tokens that both list."""
    found = dict(ours.top)
    return [abs(found[token] - value) for token, value in theirs.top[:_JUDGED] if token in found]


def _all(prompts: Sequence[list[int]], sampling: SamplingParams) -> list[Request]:
    return [Request(str(index), list(prompt), sampling) for index, prompt in enumerate(prompts)]


def _at(engine: Engine, places: Sequence[_Place]) -> list[TokenLogprobs]:
    """The likeliest tokens at each place."""
    sampling = SamplingParams(temperature=0.0, max_tokens=1, logprobs=_TOP)
    found = {c.id: c.logprobs for c in engine.run(_all([place.before for place in places], sampling))}
    entries = []
    for index in range(len(places)):
        logprobs = found[str(index)]
        assert logprobs is not None
        entries.append(logprobs[0])
    return entries
