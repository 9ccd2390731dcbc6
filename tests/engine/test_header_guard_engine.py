"""The header guard through the whole engine: random weights, hot, that enter headers all the time."""

from __future__ import annotations

import dataclasses
import random

import jax.numpy as jnp
import pytest
from flax import nnx

from checkpoints import open_checkpoint
from gptoss_jax.engine import Completion, Engine, Request, SamplingParams
from gptoss_jax.engine.grammar import Grammar, HeaderGuard
from gptoss_jax.model import GptOss, Transformer
from gptoss_jax.vocabulary import load_encoding_for
from harmony import RecoveringParser, Role
from tests.engine.engine_model import CONFIG

ENCODING = load_encoding_for(open_checkpoint("tiny"))
ROWS = ENCODING.size + 65
STOPS = [*ENCODING.stop_tokens_for_assistant_actions(), ENCODING.end_of_text]
PROMPT = ENCODING.encode("<|start|>user<|message|>Go.<|end|><|start|>assistant", allowed_special="all")
# A model that knows nothing seldom begins or ends anything; this makes it, rightly or not.
RESTLESS = {token: 6.0 for token in (ENCODING.end, ENCODING.start, ENCODING.channel, ENCODING.message)} | {
    ENCODING.constrain: 4.0,
    ENCODING.call: 0.5,
    ENCODING.return_: 0.5,
    ENCODING.end_of_text: 0.5,
}
HOT = SamplingParams(temperature=1.5, max_tokens=120, logit_bias=RESTLESS)
CHARACTERS = "abcXYZ019_-."


@pytest.fixture(scope="module")
def model() -> Transformer:
    """Random weights, and the embedded checkpoint's vocabulary with rows to spare."""
    config = dataclasses.replace(CONFIG, vocabulary_size=ROWS)
    return Transformer(GptOss(config, dtype=jnp.float32, rngs=nnx.Rngs(2)))


def make_engine(model: Transformer, **options: int) -> Engine:
    options = {"slots": 32, "max_length": 256, "decode_steps": 4, "prefill_tokens": 64} | options
    return Engine(model, STOPS, encoding=ENCODING, **options)


def random_guard(number: int) -> HeaderGuard:
    """Tools of odd names, some of them beginnings of others."""
    chance = random.Random(number)
    names: list[str] = []
    for _ in range(chance.choice([0, 1, 2, 5, 20])):
        longest = chance.choice([1, 3, 12, 64])
        name = "".join(chance.choices(CHARACTERS, k=chance.randint(1, longest)))
        names.append(chance.choice(names) + name if names and chance.random() < 0.5 else name)
    recipients = [f"functions.{name[:64]}" for name in names]
    recipients += chance.sample(
        ["browser.search", "browser.open", "python", "functions"], chance.randint(0, 3)
    )
    channels = chance.choice(
        [("analysis", "commentary", "final"), ("analysis", "final"), ("final", "commentary")]
    )
    types = chance.choice([("json", "code"), ("json",), ("x-odd.type", "text"), ()])
    return HeaderGuard(tuple(recipients), channels, types)


def with_guard(number: int, **sampling: object) -> Request:
    changed = dataclasses.replace(HOT, header_guard=random_guard(number), **sampling)
    return Request(str(number), PROMPT, changed)


def check_messages(completion: Completion, guard: HeaderGuard) -> int:
    """Fails unless every message but a cut one is as the guard says; how many there are."""
    parser = RecoveringParser(ENCODING, Role.ASSISTANT)
    parser.feed(completion.tokens)
    text = ENCODING.decode(completion.tokens)
    assert not parser.completion.diagnostics, (text, parser.completion.diagnostics)
    messages = parser.completion.messages
    for message in messages:
        assert message.author.role is Role.ASSISTANT
        assert message.channel in guard.channels, text
        assert message.recipient is None or message.recipient in guard.recipients, text
        assert message.recipient is None or message.channel in ("analysis", "commentary"), text
        kind = (message.content_type or "").removeprefix("<|constrain|>")
        assert not kind or kind in guard.content_types, text
    return len(messages)


@pytest.mark.parametrize("count", [16, pytest.param(600, marks=pytest.mark.slow)])
def test_every_header_is_well_formed_and_names_only_what_is_declared(model: Transformer, count: int) -> None:
    engine = make_engine(model)
    requests = [with_guard(number) for number in range(count)]
    completions = list(engine.run(requests))
    messages = [check_messages(one, random_guard(int(one.id))) for one in completions]
    assert len(messages) == count and sum(messages) > 2 * count
    assert engine.statistics.refused_tokens > count


@pytest.mark.slow
def test_tokens_do_not_depend_on_how_many_are_drawn_in_a_dispatch(model: Transformer) -> None:
    requests = [with_guard(number, top_p=0.9, frequency_penalty=0.2, max_tokens=60) for number in range(8)]
    found = [
        {one.id: one.tokens for one in make_engine(model, slots=8, decode_steps=steps).run(requests)}
        for steps in (1, 8)
    ]
    assert found[0] == found[1]


@pytest.mark.slow
def test_a_sequence_that_went_on_beyond_what_a_ring_takes_back_is_computed_again(model: Transformer) -> None:
    """Text goes on without the guard, a dispatch ahead of it; then comes a token that it refuses."""
    analysis = ENCODING.encode("<|channel|>analysis<|message|>", allowed_special="all")
    rare = dict.fromkeys((ENCODING.return_, ENCODING.constrain, ENCODING.start), 1.0)
    guard = HeaderGuard(("functions.f",))
    # Cool, so that tokens depend on what attention reads.
    sampling = SamplingParams(temperature=0.1, logit_bias=rare, max_tokens=200, header_guard=guard)
    requests = [Request(f"p{number}", [*PROMPT, *analysis], sampling) for number in range(5)]
    step_by_step = make_engine(model, decode_steps=1)
    expected = {one.id: one.tokens for one in step_by_step.run(requests)}
    assert step_by_step.statistics.recomputations == 0
    engine = make_engine(model, slots=2, decode_steps=16)
    assert {one.id: one.tokens for one in engine.run(requests)} == expected
    assert engine.statistics.recomputations > 0


@pytest.mark.slow
def test_rows_under_the_guard_neither_change_nor_slow_the_others(model: Transformer) -> None:
    engine = make_engine(model, slots=8, decode_steps=8)
    free = [
        Request(f"free {number}", [*PROMPT, 40 + number], SamplingParams(seed=number, max_tokens=64))
        for number in range(4)
    ]
    bound = [with_guard(number, max_tokens=40) for number in range(4)]
    alone = {one.id: one.tokens for one in engine.run(free)}
    bound_alone = {one.id: one.tokens for one in engine.run(bound)}
    together = {one.id: one.tokens for one in engine.run([*free, *bound])}
    assert together == {**alone, **bound_alone}


@pytest.mark.slow
def test_under_a_grammar_the_guard_has_no_effect(model: Transformer) -> None:
    engine = make_engine(model, slots=4)
    grammar = Grammar.calls({"undeclared": None})
    sampling = dataclasses.replace(HOT, max_tokens=30, grammar=grammar)
    guarded = dataclasses.replace(sampling, header_guard=HeaderGuard((), ("final",)))
    (plain,), (both,) = (list(engine.run([Request("r", PROMPT, one)])) for one in (sampling, guarded))
    assert "<|channel|>final" not in ENCODING.decode(plain.tokens)
    assert (both.tokens, both.grammar_complete) == (plain.tokens, plain.grammar_complete)


@pytest.mark.slow
def test_log_probabilities_samples_and_stop_strings_work_under_the_guard(model: Transformer) -> None:
    engine = make_engine(model, slots=4)
    completions = list(engine.run([with_guard(3, n=3, logprobs=2, max_tokens=40)]))
    assert sorted(one.sample for one in completions) == [0, 1, 2]
    for one in completions:
        check_messages(one, random_guard(3))
        assert one.logprobs is not None and len(one.logprobs) == len(one.tokens)
        assert one.grammar_complete is None
