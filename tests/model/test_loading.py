"""Parameters stored with zeros behind them."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp
import numpy as np

from checkpoints import open_checkpoint
from checkpoints.config import GPT_OSS_20B
from checkpoints.parameters import parameter_specs
from gptoss_jax.model import load, with_parameters
from gptoss_jax.model.loading import padded_shapes


def test_padding_for_a_tpu_changes_nothing() -> None:
    checkpoint = open_checkpoint("tiny")
    config = checkpoint.config
    names = padded_shapes(dataclasses.replace(GPT_OSS_20B, num_layers=config.num_layers), None, on_tpu=True)
    assert len(names) == 1 + 3 * config.num_layers  # the embedding, and the maps to queries, keys and values
    specs = parameter_specs(config)
    padded = {name: (specs[name].shape[0], specs[name].shape[1] + 64) for name in names}
    parameters = checkpoint.load(None, jnp.float32, padded)
    assert all(parameters[name].shape == shape for name, shape in padded.items())
    model, plain = with_parameters(config, parameters, jnp.float32), load(checkpoint, jnp.float32)
    tokens = jnp.arange(24, dtype=jnp.int32).reshape(2, 12) * 7 % config.vocabulary_size
    positions = jnp.tile(jnp.arange(12, dtype=jnp.int32), (2, 1))
    found, expected = (one.logits(one(tokens, positions)) for one in (model, plain))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
