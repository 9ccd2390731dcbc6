"""The engine on a small random model: what it generates, when it stops, and what may not matter."""

import functools

import jax
import numpy as np
import pytest
from engine_model import GREEDY, STOP, make_engine, make_requests, run, small_model
from flax import nnx

from gptoss_jax.engine import Request, RequestError, SamplingParams


@pytest.fixture(scope="module")
def model():
    return small_model()


@pytest.fixture(scope="module")
def engine():
    return make_engine()


@functools.partial(jax.jit, static_argnums=0)
def next_token(graph, parameters, tokens, positions, last):
    model = nnx.merge(graph, parameters)
    hidden = model(tokens, positions)
    return model.logits(hidden[0, last]).argmax()


def generate_without_cache(model, prompt, max_tokens):
    """Greedy generation by a full pass for every token, at one padded length."""
    graph, parameters = nnx.split(model)
    tokens = list(prompt)
    for _ in range(max_tokens):
        padded = np.zeros((1, 64), np.int32)
        positions = np.full((1, 64), -1, np.int32)
        padded[0, : len(tokens)] = tokens
        positions[0, : len(tokens)] = np.arange(len(tokens))
        tokens.append(int(next_token(graph, parameters, padded, positions, len(tokens) - 1)))
        if tokens[-1] == STOP:
            break
    return tokens[len(prompt) :]


def test_greedy_generation_equals_full_passes_for_prompts_around_chunk_and_window(model, engine):
    generator = np.random.default_rng(5)
    lengths = [1, 7, 8, 9, 15, 16, 17, 33]
    requests = [Request(str(n), generator.integers(4, 50, size=n).tolist(), GREEDY) for n in lengths]
    completions = run(engine, requests)
    for request in requests:
        expected = generate_without_cache(model, request.prompt, GREEDY.max_tokens)
        assert completions[request.id].tokens == expected


def test_requests_without_a_seed_draw_by_their_id(engine):
    sampling = SamplingParams(max_tokens=20)
    same_prompt = [Request(name, [5, 6, 7], sampling) for name in ("a", "b")]
    first, second = run(engine, same_prompt), run(engine, same_prompt)
    assert first == second
    assert first["a"].tokens != first["b"].tokens


def test_the_64_bits_of_a_seed_all_count(engine):
    prompt = [5, 6, 7]
    outputs = [
        tuple(run(engine, [Request("x", prompt, SamplingParams(seed=seed, max_tokens=20))])["x"].tokens)
        for seed in (1, 2, 1 + 2**32, -1)
    ]
    assert len(set(outputs)) == 4


def test_a_stop_token_ends_a_completion_and_is_its_last_token(model, engine):
    completions = run(engine, make_requests(40, SamplingParams(seed=3)))
    stopped = [completion for completion in completions.values() if completion.finish_reason == "stop"]
    assert stopped
    assert all(c.tokens[-1] == STOP and STOP not in c.tokens[:-1] for c in stopped)


def test_length_ends_a_completion_at_max_tokens_or_the_longest_sequence(model):
    engine = make_engine(max_length=30)
    engine_without_stop = make_engine((), max_length=30)
    request = Request("a", list(range(4, 24)), SamplingParams(temperature=0.0))
    completion = run(engine_without_stop, [request])["a"]
    assert (len(completion.tokens), completion.finish_reason) == (10, "length")
    one = Request("one", [5], SamplingParams(max_tokens=1, seed=2))
    assert len(run(engine, [one])["one"].tokens) == 1


def test_more_requests_than_slots_all_finish_and_are_drawn_lazily(engine):
    drawn = []

    def source():
        for request in make_requests(30, SamplingParams(seed=1, max_tokens=10)):
            drawn.append(request.id)
            yield request

    completions = engine.run(source())
    next(completions)
    assert len(drawn) < 30
    assert len(list(completions)) == 29


def test_an_abandoned_run_leaves_the_engine_clean(model, engine):
    requests = make_requests(10, GREEDY, seed=8)
    expected = run(engine, requests)
    abandoned = engine.run(make_requests(10, SamplingParams(seed=1), seed=9))
    next(abandoned)
    abandoned.close()
    assert run(engine, requests) == expected


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ([], "the prompt is empty"),
        ([1] * 64, "the prompt has 64 tokens: it must leave room in the longest sequence, 64 tokens"),
        ([1, 50], "the prompt holds token 50: ids must be from 0 to 49"),
        ([-1], "the prompt holds token -1"),
    ],
)
def test_a_prompt_that_can_never_run_is_refused(engine, prompt, message):
    with pytest.raises(RequestError, match=message):
        engine.check(Request("x", prompt))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -0.1),
        ("temperature", float("nan")),
        ("temperature", "hot"),
        ("top_p", 0),
        ("top_p", 1.01),
        ("top_k", -1),
        ("top_k", 2.5),
        ("seed", 1.5),
        ("seed", True),
        ("max_tokens", 0),
        ("max_tokens", True),
    ],
)
def test_a_sampling_value_out_of_range_is_named_with_what_is_allowed(field, value):
    with pytest.raises(RequestError, match=f"^{field} is .*: it must be "):
        SamplingParams(**{field: value})
