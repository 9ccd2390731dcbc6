"""Whatever RoPE settings are accepted, the model computes with them; all others are refused."""

import math
import random

import numpy as np
import pytest

from checkpoints import CheckpointError
from checkpoints.config import GPT_OSS_20B
from checkpoints.published_config import huggingface_config, parse_config
from gptoss_jax.model.gpt_oss import yarn_frequencies

PUBLISHED = huggingface_config(GPT_OSS_20B, "rope_parameters")
VALUES = {
    "factor": [1.0, 2.0, 32.0, 0.5, 7],
    "original_max_position_embeddings": [4096, 1024, 64, 4, 1 << 20],
    "beta_fast": [32.0, 8, 1.0, 0.5, 64.0, None],
    "beta_slow": [1.0, 2.0, 0.25, 16.0, None],
    "truncate": [False, False, False, True, None],
    "attention_factor": [None, 1.0, 0.1 * math.log(32) + 1, "1"],
    "mscale": [None, 0.707, 1.0, 0],
    "mscale_all_dim": [None, 1.0, 0.5, 0],
    "rope_theta": [150_000.0, 10_000.0, 2.0, 1e6, 1.0],
    "partial_rotary_factor": [None, 1.0, 0.5],
}


def scale(factor, multiplier=1):
    return 0.1 * multiplier * math.log(factor) + 1 if factor > 1 else 1.0


def expected(rope, head_dim):
    """What transformers computes from a `rope_parameters` object: its formulas, pair by pair, in float64."""
    factor, theta = rope["factor"], rope["rope_theta"]
    attention = rope.get("attention_factor")
    if attention is None:
        pair = rope.get("mscale"), rope.get("mscale_all_dim")
        attention = scale(factor, pair[0]) / scale(factor, pair[1]) if all(pair) else scale(factor)
    size = int(head_dim * (rope.get("partial_rotary_factor") or 1.0))

    def bound(turns):
        length = rope["original_max_position_embeddings"]
        return size * math.log(length / (turns * 2 * math.pi)) / (2 * math.log(theta))

    low, high = bound(rope.get("beta_fast") or 32), bound(rope.get("beta_slow") or 1)
    if rope.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, size - 1)
    high += 0.001 if low == high else 0
    frequencies = []
    for number in range(size // 2):
        plain = theta ** (-2 * number / size)
        blend = min(max((number - low) / (high - low), 0), 1)
        frequencies.append(plain / factor * blend + plain * (1 - blend))
    return np.array(frequencies), attention


@pytest.mark.parametrize("seed", range(3))
def test_settings_are_computed_with_or_refused(seed):
    rng = random.Random(seed)
    accepted = 0
    for _ in range(700):
        rope = dict(PUBLISHED["rope_parameters"])
        for name in rng.sample(sorted(VALUES), rng.randrange(5)):
            rope[name] = rng.choice(VALUES[name])
        fields = PUBLISHED | {"rope_parameters": rope}
        del fields["initial_context_length"]
        try:
            config = parse_config(fields)[1]
        except CheckpointError:
            continue
        accepted += 1
        frequencies, attention = yarn_frequencies(config)
        theirs, factor = expected(rope, fields["head_dim"])
        np.testing.assert_allclose(frequencies, theirs, rtol=1e-6, err_msg=str(rope))
        assert attention == pytest.approx(factor, rel=1e-9), rope
    assert accepted > 100


@pytest.mark.parametrize("rope_key", ["rope_scaling", "rope_parameters"])
def test_settings_that_change_nothing_are_accepted(rope_key):
    for extra in (
        {"mscale": 1.0},
        {"mscale_all_dim": 0.0, "mscale": 2.0},
        {"attention_factor": scale(32)},
        {"partial_rotary_factor": 1},
        {"beta_fast": None, "beta_slow": None},
        {"type": "yarn"},
    ):
        fields = huggingface_config(GPT_OSS_20B, rope_key)
        fields[rope_key] |= extra
        assert parse_config(fields) == ("huggingface", GPT_OSS_20B)
