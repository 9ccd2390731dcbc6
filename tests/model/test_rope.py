"""YaRN against its definition, written for one pair of dimensions at a time."""

from __future__ import annotations

import dataclasses
import math

import jax.numpy as jnp
import numpy as np
import pytest

from checkpoints.config import GPT_OSS_20B, ModelConfig
from gptoss_jax.model.gpt_oss import rotate, rotations, yarn_frequencies

SMALL = dataclasses.replace(
    GPT_OSS_20B,
    head_size=24,
    rope_theta=10_000.0,
    yarn_factor=8.0,
    yarn_original_length=256,
    yarn_beta_fast=16.0,
    yarn_beta_slow=2.0,
)
PLAIN = dataclasses.replace(GPT_OSS_20B, yarn_factor=1.0)


def frequency_of_pair(pair: int, config: ModelConfig) -> float:
    """A pair keeps its frequency if it rotates often within the original length, and is slowed if it rotates
    rarely.

    In between the blend is linear in the pair's number: it is 0 where a pair would turn beta_fast times
    and 1 where it would turn beta_slow times, both numbers as real ones, not truncated.
    """
    plain = config.rope_theta ** (-2 * pair / config.head_size)

    def pair_that_turns(times: float) -> float:
        # theta^(-2p/h) · length = 2π · times, solved for p
        wavelength = config.yarn_original_length / times
        return config.head_size / 2 * math.log(wavelength / (2 * math.pi), config.rope_theta)

    first, last = pair_that_turns(config.yarn_beta_fast), pair_that_turns(config.yarn_beta_slow)
    blend = min(max((pair - first) / (last - first), 0.0), 1.0)
    return plain * (1 - blend) + plain / config.yarn_factor * blend


@pytest.mark.parametrize("config", [GPT_OSS_20B, SMALL], ids=["published", "small"])
def test_frequencies_follow_yarns_definition(config: ModelConfig) -> None:
    frequencies, factor = yarn_frequencies(config)
    expected = [frequency_of_pair(pair, config) for pair in range(config.head_size // 2)]
    np.testing.assert_allclose(frequencies, expected, rtol=1e-6)
    assert factor == pytest.approx(0.1 * math.log(config.yarn_factor) + 1)


def test_the_published_models_keep_9_pairs_blend_9_and_slow_14() -> None:
    # 32 turns within 4,096 positions: pair 8.09; one turn: pair 17.4. So 0 … 8 are kept, 18 … 31 slowed.
    frequencies, _ = yarn_frequencies(GPT_OSS_20B)
    ratio = frequencies / 150_000.0 ** -(np.arange(32) / 32)
    assert np.allclose(ratio[:9], 1) and np.allclose(ratio[18:], 1 / 32)
    assert ((ratio[9:18] < 1) & (ratio[9:18] > 1 / 32)).all()


def test_a_factor_of_one_is_plain_rope() -> None:
    frequencies, factor = yarn_frequencies(PLAIN)
    np.testing.assert_allclose(frequencies, 150_000.0 ** -(np.arange(32) / 32), rtol=1e-6)
    assert factor == 1


def test_a_pair_of_dimensions_turns_by_its_angle_and_grows_by_the_factor() -> None:
    generator = np.random.default_rng(0)
    half = SMALL.head_size // 2
    x = generator.standard_normal((2, 3, 5, 2 * half)).astype(np.float32)
    positions = np.array([[0, 1, 300], [7, 2, 9]], np.int32)
    turned = np.asarray(rotate(jnp.asarray(x), *rotations(positions, SMALL)))
    _, factor = yarn_frequencies(SMALL)
    for pair in range(half):
        angle = positions * frequency_of_pair(pair, SMALL)
        before = x[..., pair] + 1j * x[..., pair + half]  # published checkpoints pair i with i + h/2
        after = before * np.exp(1j * angle)[..., None] * factor
        np.testing.assert_allclose(turned[..., pair], after.real, atol=2e-4)
        np.testing.assert_allclose(turned[..., pair + half], after.imag, atol=2e-4)
