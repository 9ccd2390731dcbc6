"""The embedded model on the TPU and GPU kernels, run as plain JAX, does what it does on the references."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from checkpoints import open_checkpoint
from gptoss_jax.engine import Engine, Request, SamplingParams
from gptoss_jax.model import Transformer, load
from gptoss_jax.model.moe import Experts, TiledExperts
from gptoss_jax.vocabulary import load_encoding_for
from harmony import Conversation, Message, Role
from pallas_kernels.platform import Chip, using

PROMPTS = ("What is 27 + 35?", "Which of 14 and 9 is larger?")


@pytest.fixture(scope="module")
def on_references() -> Transformer:
    return load("tiny", jnp.float32)


# Unoptimised code compiles several times faster, and these models run once.
@functools.partial(jax.jit, static_argnums=0, compiler_options={"xla_backend_optimization_level": 0})
def run(graph: nnx.GraphDef, state: nnx.State, tokens: jax.Array, positions: jax.Array) -> jax.Array:
    model = nnx.merge(graph, state)
    hidden = model(tokens, positions)
    return model.logits(hidden)


def logits(model: Transformer) -> jax.Array:
    """Of two prompts of 80 tokens, longer than the window, one of them padded."""
    tokens = jnp.asarray(np.random.default_rng(0).integers(0, 2000, (2, 80)), jnp.int32)
    positions = jnp.where(jnp.arange(80) < jnp.array([[80], [70]]), jnp.arange(80), -1)
    return run(*nnx.split(model), tokens, positions)


@pytest.mark.parametrize("chip", ["v5p", "7x"])
def test_logits_on_kernels_equal_those_on_references(on_references: Transformer, chip: Chip) -> None:
    expected = logits(on_references)
    with using("tpu-interpret", chip):
        model = load("tiny", jnp.float32)
        assert all(isinstance(layer.moe.experts, TiledExperts) for layer in model.layers)
        actual = logits(model)
    real = np.s_[0, :], np.s_[1, :70]
    for rows in real:
        difference = jnp.abs(actual[rows] - expected[rows]).max() / jnp.abs(expected[rows]).max()
        assert difference < 1e-5


def test_logits_on_gpu_kernels_equal_those_on_references(on_references: Transformer) -> None:
    with using("gpu-interpret"):
        actual = logits(on_references)
    expected = logits(on_references)
    for rows in (np.s_[0, :], np.s_[1, :70]):
        difference = jnp.abs(actual[rows] - expected[rows]).max() / jnp.abs(expected[rows]).max()
        assert difference < 1e-5


def test_bfloat16_on_kernels_is_as_near_to_float32_as_on_references(on_references: Transformer) -> None:
    exact = logits(on_references)

    def distance(model: Transformer) -> float:
        difference = logits(model) - exact
        return float(jnp.sqrt(jnp.square(jnp.concatenate([difference[0], difference[1, :70]])).mean()))

    noise = distance(load("tiny", jnp.bfloat16))
    with using("tpu-interpret", "v6e"):
        assert distance(load("tiny", jnp.bfloat16)) < 1.5 * noise


def test_experts_stay_as_published_where_no_tpu_kernel_runs(on_references: Transformer) -> None:
    assert all(isinstance(layer.moe.experts, Experts) for layer in on_references.layers)


def test_the_engine_draws_the_same_greedy_tokens_on_kernels(on_references: Transformer) -> None:
    encoding = load_encoding_for(open_checkpoint("tiny"))
    stop_tokens = encoding.stop_tokens_for_assistant_actions()
    requests = []
    for text in PROMPTS:
        conversation = Conversation.from_messages([Message.from_role_and_content(Role.USER, text)])
        prompt = encoding.render_conversation_for_completion(conversation, Role.ASSISTANT)
        requests.append(Request(text, prompt, SamplingParams(temperature=0, max_tokens=24)))

    def answers(model: Transformer) -> dict[str, list[int]]:
        engine = Engine(model, stop_tokens, slots=2, max_length=128)
        return {completion.id: completion.tokens for completion in engine.run(requests)}

    expected = answers(on_references)
    with using("tpu-interpret", "v6e"):
        actual = answers(load("tiny", jnp.float32))
    assert actual == expected
    assert all(len(tokens) > 5 for tokens in expected.values())
