"""The model on the TPU and GPU kernels, run as plain JAX, does what the plain model does.

The quick run takes the first two layers of the embedded model, a sliding one with a shorter window and a full
one.
"""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

from checkpoints import open_checkpoint
from gptoss_jax.engine import Engine, Request, SamplingParams
from gptoss_jax.model import GptOss, Transformer, load, load_plain, plain_with_parameters
from gptoss_jax.model.loading import tile_experts_of
from gptoss_jax.model.moe import PackedExperts, TiledExperts
from gptoss_jax.vocabulary import load_encoding_for
from harmony import Conversation, Message, Role
from pallas_kernels.expert_matmul import code_format_for
from pallas_kernels.platform import Chip, using
from tests.golden.distances import relative_difference, rms_distance
from tests.golden.running import cached_pass, full_pass

PROMPTS = ("What is 27 + 35?", "Which of 14 and 9 is larger?")
TOKENS = np.random.default_rng(0).integers(0, 2000, (2, 80)).astype(np.int32)
POSITIONS = np.tile(np.arange(80, dtype=np.int32), (2, 1))
FEW = 26
"""Tokens of each prompt in the quick run: two chunks, the second with padding, and two decode steps."""


def two_layers() -> GptOss:
    """The embedding, the first two layers and the unembedding of the embedded model; windows of 12 keys."""
    checkpoint = open_checkpoint("tiny")
    config = dataclasses.replace(checkpoint.config, num_layers=2, sliding_window=12)
    return plain_with_parameters(config, checkpoint.load(None, jnp.float32), jnp.float32)


@pytest.fixture(scope="module")
def few_logits() -> np.ndarray:
    """The logits of the plain two layers, for prompts longer than the window."""
    return full_pass(two_layers(), TOKENS[:, :FEW], POSITIONS[:, :FEW])


@pytest.mark.slow
def test_logits_of_two_layers_on_tpu_kernels_are_the_plain_models(few_logits: np.ndarray) -> None:
    with using("tpu-interpret", "v5p"):
        model = Transformer(two_layers())
        tile_experts_of(model, code_format_for("v5p"))
        served = cached_pass(model, TOKENS[:, :FEW], POSITIONS[:, :FEW], 16, singles=2)
    assert relative_difference(served, few_logits) < 1e-5


@pytest.fixture(scope="module")
def plain_logits() -> np.ndarray:
    """The logits of the plain embedded model, for two prompts longer than the window."""
    return full_pass(load_plain("tiny"), TOKENS, POSITIONS)


def served_logits(model: Transformer) -> np.ndarray:
    """The same of a served model: two chunks, the second with padding behind it."""
    return cached_pass(model, TOKENS, POSITIONS, 48)


@pytest.mark.slow
@pytest.mark.parametrize("chip", ["v5p", "7x"])
def test_logits_on_tpu_kernels_are_the_plain_models(plain_logits: np.ndarray, chip: Chip) -> None:
    with using("tpu-interpret", chip):
        assert relative_difference(served_logits(load("tiny")), plain_logits) < 1e-5


@pytest.mark.slow
def test_logits_on_gpu_kernels_are_the_plain_models(plain_logits: np.ndarray) -> None:
    with using("gpu-interpret"):
        assert relative_difference(served_logits(load("tiny")), plain_logits) < 1e-5


@pytest.mark.slow
def test_bfloat16_on_kernels_is_about_as_near_to_float32_as_in_the_plain_model(
    plain_logits: np.ndarray,
) -> None:
    noise = rms_distance(full_pass(load_plain("tiny", jnp.bfloat16), TOKENS, POSITIONS), plain_logits)
    with using("tpu-interpret", "v6e"):
        served = served_logits(load("tiny", jnp.bfloat16))
    assert rms_distance(served, plain_logits) < 1.5 * noise


def test_experts_are_tiled_only_where_the_tpu_kernel_runs() -> None:
    assert all(isinstance(layer.moe.experts, PackedExperts) for layer in load("tiny").layers)
    with using("tpu-interpret", "v5p"):
        assert all(isinstance(layer.moe.experts, TiledExperts) for layer in load("tiny").layers)


@pytest.mark.slow
def test_the_engine_draws_the_same_greedy_tokens_on_kernels() -> None:
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

    expected = answers(load("tiny"))
    with using("tpu-interpret", "v6e"):
        actual = answers(load("tiny"))
    assert actual == expected
    assert all(len(tokens) > 5 for tokens in expected.values())
