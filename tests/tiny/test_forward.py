"""The packed forward pass of training against the plain model, branch by branch."""

from __future__ import annotations

import random

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from checkpoints.config import ModelConfig
from gptoss_jax.model import GptOss, plain_with_parameters
from gptoss_jax.tiny.experts import through_mxfp4
from gptoss_jax.tiny.forward import hidden_states, model_with
from gptoss_jax.tiny.initialisation import float_model, initial_parameters
from pallas_kernels import mxfp4

CONFIG = ModelConfig(
    num_layers=3,
    vocabulary_size=300,
    hidden_size=64,
    intermediate_size=32,
    num_heads=4,
    num_kv_heads=2,
    head_size=16,
    num_experts=4,
    experts_per_token=2,
    sliding_window=8,
)


@pytest.fixture(scope="module")
def parameters() -> dict[str, jax.Array]:
    vocabulary = [bytes([value]) for value in range(256)]
    found = initial_parameters(CONFIG, vocabulary, seed=3)
    keys = jax.random.split(jax.random.key(0), len(found))
    return {  # away from the zeros and ones of a fresh start
        name: value + 0.2 * jax.random.normal(key, value.shape)
        for (name, value), key in zip(found.items(), keys, strict=True)
    }


def plain_model(parameters: dict[str, jax.Array]) -> GptOss:
    """The plain model with the experts encoded in MXFP4."""
    published = {}
    for name, value in parameters.items():
        if ".experts." in name and name.endswith(".weight"):
            part = name.removesuffix(".weight")
            blocks, scales = map(jnp.asarray, mxfp4.encode(value))
            published |= {f"{part}.blocks": blocks, f"{part}.scales": scales}
        else:
            published[name] = value
    return plain_with_parameters(CONFIG, published, jnp.float32)


@pytest.mark.slow
def test_each_branch_of_a_packed_row_is_computed_as_if_it_followed_the_prefix_alone(
    parameters: dict[str, jax.Array],
) -> None:
    rng = random.Random(0)
    prefix, branches = 21, [5, 17, 9, 12]
    length = 72
    used = prefix + sum(branches)
    tokens = [rng.randrange(300) for _ in range(used)] + [0] * (length - used)
    segments, positions = [0] * prefix, list(range(prefix))
    for number, size in enumerate(branches, 1):
        segments += [number] * size
        positions += range(prefix, prefix + size)
    segments += [-1] * (length - used)
    positions += [0] * (length - used)
    graph, _ = float_model(CONFIG)
    rows = [jnp.array([row], jnp.int32) for row in (tokens, positions, segments)]

    @jax.jit
    def packed_logits(parameters: dict[str, jax.Array]) -> jax.Array:
        model = model_with(graph, parameters)
        return model.unembedding(hidden_states(model, *rows, quantised=True)[0])

    packed, plain = packed_logits(parameters), nnx.jit(plain_model(parameters))
    start = prefix
    for size in branches:
        alone = [*tokens[:prefix], *tokens[start : start + size]]
        filled = jnp.array([alone + [0] * (length - len(alone))], jnp.int32)  # one shape: one compilation
        expected = plain(filled)
        ours = jnp.concatenate([packed[0, :prefix], packed[0, start : start + size]])
        np.testing.assert_allclose(ours, expected[0, : len(alone)], rtol=2e-4, atol=2e-4)
        start += size


def test_weights_seen_through_mxfp4_in_training_are_the_ones_the_encoder_writes() -> None:
    rng = np.random.default_rng(1)
    weights = rng.standard_normal((50, 96)) * 2.0 ** rng.integers(-30, 30, (50, 1))
    weights[0, :32] = 0
    weights[1, :16] = np.arange(16) / 4  # every midpoint between two codes
    weights[1, 16:32] = -6
    weights = weights.astype(np.float32)
    decoded = mxfp4.decode(*map(jnp.asarray, mxfp4.encode(weights)))
    np.testing.assert_array_equal(np.asarray(through_mxfp4(jnp.asarray(weights))), np.asarray(decoded))


def test_the_gradient_passes_through_the_rounding_unchanged() -> None:
    weights = jax.random.normal(jax.random.key(2), (2, 32))
    gradient = jax.grad(lambda w: (through_mxfp4(w) * jnp.arange(64.0).reshape(2, 32)).sum())(weights)
    np.testing.assert_array_equal(np.asarray(gradient), np.arange(64.0).reshape(2, 32))


@pytest.mark.slow
def test_routing_that_sends_everything_to_the_same_experts_counts_as_less_balanced(
    parameters: dict[str, jax.Array],
) -> None:
    graph, _ = float_model(CONFIG)
    tokens = jnp.arange(64, dtype=jnp.int32)[None]
    rows = (tokens, jnp.arange(64)[None], jnp.zeros((1, 64), jnp.int32))
    skewed = dict(parameters)
    for layer in range(3):
        skewed[f"layers.{layer}.moe.router.bias"] = jnp.array([9.0, 9.0, 0.0, 0.0])
    imbalance = jax.jit(lambda p: hidden_states(model_with(graph, p), *rows)[1])
    even, uneven = imbalance(parameters), imbalance(skewed)
    assert 0.9 < even < uneven
    assert uneven == pytest.approx(2.0, abs=0.05)  # two of four experts take everything
