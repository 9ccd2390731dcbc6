"""Parameters that are padded with zeros for a TPU."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

from checkpoints import open_checkpoint
from checkpoints.config import GPT_OSS_20B
from checkpoints.parameters import parameter_specs
from gptoss_jax.model import plain_with_parameters, with_parameters
from gptoss_jax.model.loading import padded_shapes
from tests.golden.running import cached_pass, full_pass


@pytest.mark.slow
def test_padding_for_a_tpu_changes_nothing() -> None:
    checkpoint = open_checkpoint("tiny")
    config = dataclasses.replace(checkpoint.config, num_layers=1)
    names = padded_shapes(dataclasses.replace(GPT_OSS_20B, num_layers=config.num_layers), None, on_tpu=True)
    assert len(names) == 1 + 3 * config.num_layers  # the embedding, and the maps to queries, keys and values
    specs = parameter_specs(config)
    padded = {name: (specs[name].shape[0], specs[name].shape[1] + 64) for name in names}
    parameters = checkpoint.load(None, jnp.float32, padded)
    assert all(parameters[name].shape == shape for name, shape in padded.items())
    tokens = np.arange(24, dtype=np.int32).reshape(2, 12) * 7 % config.vocabulary_size
    positions = np.tile(np.arange(12, dtype=np.int32), (2, 1))
    found = cached_pass(with_parameters(config, parameters, jnp.float32), tokens, positions, 8, singles=2)
    plain = plain_with_parameters(config, checkpoint.load(None, jnp.float32), jnp.float32)
    expected = full_pass(plain, tokens, positions)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
