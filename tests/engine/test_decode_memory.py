"""On a CPU the decode step holds one float32 copy of a bfloat16 weight at a time, not all of them."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import pytest

from checkpoints.config import ModelConfig
from checkpoints.parameters import parameter_specs
from gptoss_jax.engine.layout import lay_out
from gptoss_jax.engine.options import EngineOptions
from gptoss_jax.engine.shapes import EngineShapes
from gptoss_jax.engine.steps import Steps
from gptoss_jax.sharding import make_mesh, shape_of

CONFIG = ModelConfig(
    num_layers=4,
    vocabulary_size=2048,
    hidden_size=512,
    intermediate_size=64,
    num_heads=8,
    num_kv_heads=2,
    head_size=64,
    num_experts=4,
    experts_per_token=2,
    sliding_window=16,
)


@pytest.mark.slow
@pytest.mark.skipif(jax.default_backend() != "cpu", reason="other backends multiply bfloat16 as it is")
def test_decoding_in_bfloat16_does_not_keep_float32_copies_of_all_weights() -> None:
    mesh = make_mesh(CONFIG, devices=jax.devices()[:1])
    layout = lay_out(EngineOptions(slots=1, max_length=64), CONFIG, shape_of(mesh), jnp.bfloat16)
    shapes = EngineShapes(CONFIG, mesh, layout, jnp.bfloat16, None)
    steps = Steps(shapes.model, mesh, layout.decode_steps)
    lowered = steps.decode.lower(steps.parameters, shapes.cache, *shapes.decode_inputs())
    temporaries = lowered.compile().memory_analysis().temp_size_in_bytes
    multiplied = [
        4 * math.prod(spec.shape)
        for name, spec in parameter_specs(CONFIG).items()
        if name.endswith(".weight") and name != "embedding.weight"
    ]
    assert temporaries < sum(multiplied) / 2
    assert temporaries < 1.5 * max(multiplied)
