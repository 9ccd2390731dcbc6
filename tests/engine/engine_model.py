"""A small random model without a vocabulary of its own, and engines around it."""

import functools

import jax.numpy as jnp
import numpy as np
from flax import nnx

from checkpoints.config import ModelConfig
from gptoss_jax.engine import Completion, Engine, Request, SamplingParams
from gptoss_jax.model import Transformer

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
OPTIONS = {"slots": 4, "max_length": 64, "decode_steps": 5, "prefill_tokens": 32, "page_size": 16}


@functools.cache
def small_model() -> Transformer:
    """The model, float32."""
    return Transformer(CONFIG, dtype=jnp.float32, rngs=nnx.Rngs(1))


def make_engine(stop_tokens=(STOP,), **options) -> Engine:
    """An engine of a few slots."""
    return Engine(small_model(), stop_tokens, **(OPTIONS | options))


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
