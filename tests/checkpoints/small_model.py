"""A configuration for tests in which no two sizes coincide, so that a transposed axis cannot hide."""

from checkpoints.config import ModelConfig

SMALL = ModelConfig(
    num_layers=3,
    vocabulary_size=301,
    hidden_size=96,
    intermediate_size=64,
    num_heads=6,
    num_kv_heads=2,
    head_size=32,
    num_experts=5,
    experts_per_token=2,
    sliding_window=8,
    yarn_original_length=16,
    context_length=512,
)
