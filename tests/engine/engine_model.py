"""A small random model without a vocabulary of its own, and engines around it."""

import functools
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from checkpoints.config import ModelConfig
from gptoss_jax.engine import Completion, Engine, Request, SamplingParams, runner
from gptoss_jax.engine.steps import Steps
from gptoss_jax.model import GptOss, Transformer

CONFIG = ModelConfig(
    num_layers=2,
    vocabulary_size=50,
    hidden_size=64,
    intermediate_size=32,
    num_heads=4,
    num_kv_heads=2,
    head_size=16,
    num_experts=4,
    experts_per_token=2,
    sliding_window=8,
    yarn_original_length=16,
)
STOP = 3
GREEDY = SamplingParams(temperature=0.0, max_tokens=12)
OPTIONS = {"slots": 8, "max_length": 64, "decode_steps": 5, "prefill_tokens": 32, "page_size": 16}
FEW_PAGES = {"pages": 4, "snapshots": 2}
"""As many pages as one longest sequence needs. Tests share these shapes: each takes seconds to compile."""


@functools.cache
def plain_model() -> GptOss:
    """The model as published, float32."""
    return GptOss(CONFIG, dtype=jnp.float32, rngs=nnx.Rngs(1))


@functools.cache
def small_model() -> Transformer:
    """The same, as it is served."""
    return Transformer(plain_model())


shared_steps = functools.cache(Steps)
"""The compiled steps of a model: engines that share them compile each shape once."""


def make_engine(stop_tokens=(STOP,), model=None, **options) -> Engine:
    """An engine of a few slots, with an empty cache; `model`: another one than the small one."""
    with mock.patch.object(runner, "Steps", shared_steps):
        return Engine(model or small_model(), stop_tokens, **(OPTIONS | options))


def make_requests(count, sampling, seed=0, longest=40) -> list[Request]:
    """Requests with random prompts of different lengths."""
    generator = np.random.default_rng(seed)
    return [
        Request(
            f"r{number}", generator.integers(4, 50, size=generator.integers(1, longest)).tolist(), sampling
        )
        for number in range(count)
    ]


def run(engine, requests) -> dict[str, Completion]:
    """All completions by id; each request has exactly one."""
    completions = list(engine.run(requests))
    assert sorted(completion.id for completion in completions) == sorted(request.id for request in requests)
    return {completion.id: completion for completion in completions}


def tokens_of(completions: dict[str, Completion]) -> dict[str, list[int]]:
    """Only what was generated."""
    return {id: completion.tokens for id, completion in completions.items()}


@functools.partial(jax.jit, static_argnums=0)
def next_token(graph, parameters, tokens, last):
    return nnx.merge(graph, parameters)(tokens)[0, last].argmax()


def generate_by_plain_model(prompt, max_tokens):
    """Greedy generation by a full pass of the published model for every token.

    All passes are of one length, so that one program serves them: no token sees those behind it.
    """
    graph, parameters = nnx.split(plain_model())
    tokens = list(prompt)
    for _ in range(min(max_tokens, OPTIONS["max_length"] - len(tokens))):
        padded = np.zeros((1, OPTIONS["max_length"]), np.int32)
        padded[0, : len(tokens)] = tokens
        tokens.append(int(next_token(graph, parameters, padded, len(tokens) - 1)))
        if tokens[-1] == STOP:
            break
    return tokens[len(prompt) :]
