"""What the model is compared on: random checkpoints and prompts, each defined by numbers and a seed alone.

Every size differs from every other one that a wrong transpose or reshape could confuse it with (the published
models have hidden = intermediate, heads = head size, KV heads = heads per KV head).
"""

from __future__ import annotations

import dataclasses
import hashlib
from pathlib import Path

import numpy as np

from checkpoints.config import ModelConfig
from checkpoints.parameters import parameter_specs
from checkpoints.published_config import Layout, RopeKey
from checkpoints.random import fill_random, write_random

FOLDER = Path(__file__).parent
DEQUANTISATION = FOLDER / "dequantisation.npz"


@dataclasses.dataclass(frozen=True)
class Case:
    """One comparison: a random checkpoint in one layout, and a batch of prompts."""

    name: str
    config: ModelConfig
    seed: int
    layout: Layout
    rope_key: RopeKey
    batch: int
    length: int
    first_position: int

    def tokens(self) -> np.ndarray:
        """The prompts, int32 [B, T]."""
        generator = np.random.default_rng(self.seed)
        shape = (self.batch, self.length)
        return generator.integers(0, self.config.vocabulary_size, shape, dtype=np.int32)

    def positions(self) -> np.ndarray:
        """Where the prompts stand, int32 [B, T]."""
        row = self.first_position + np.arange(self.length, dtype=np.int32)
        return np.tile(row, (self.batch, 1))

    def write(self, folder: Path, layout: Layout | None = None) -> Path:
        """Writes the checkpoint; layout: None for the case's own."""
        write_random(folder, self.config, self.seed, layout or self.layout, rope_key=self.rope_key)
        return folder

    def weights_digest(self) -> str:
        """SHA-256 of the random weights, which distinguishes a changed generator from a wrong model."""
        digest = hashlib.sha256()
        for name, spec in parameter_specs(self.config).items():
            values = np.empty(spec.shape, spec.dtype)
            fill_random(name, values, self.seed)
            digest.update(values.tobytes())
        return digest.hexdigest()

    @property
    def golden(self) -> Path:
        """The committed file.

        What the oracle computes: `logits` float32 and `logits_bfloat16` (bits, uint16), both [B, T, V], and
        RoPE's `frequencies` float32 [h/2]. What it was given: `tokens`, `positions`, the `weights` digest.
        """
        return FOLDER / f"{self.name}.npz"


CASES = (
    Case(
        "huggingface",
        ModelConfig(
            num_layers=3,
            vocabulary_size=256,
            hidden_size=96,
            intermediate_size=64,
            num_heads=6,
            num_kv_heads=2,
            head_size=32,
            num_experts=7,
            experts_per_token=2,
            sliding_window=8,
        ),
        seed=1,
        layout="huggingface",
        rope_key="rope_scaling",
        batch=2,
        length=48,
        first_position=0,
    ),
    # Its limit is one that many activations meet.
    Case(
        "original",
        ModelConfig(
            num_layers=2,
            vocabulary_size=200,
            hidden_size=64,
            intermediate_size=96,
            num_heads=8,
            num_kv_heads=4,
            head_size=24,
            num_experts=5,
            experts_per_token=3,
            sliding_window=5,
            swiglu_limit=1.5,
        ),
        seed=2,
        layout="original",
        rope_key="rope_scaling",
        batch=3,
        length=40,
        first_position=0,
    ),
    # A sequence that starts within YaRN's original length and goes on beyond it.
    Case(
        "long",
        ModelConfig(
            num_layers=2,
            vocabulary_size=160,
            hidden_size=96,
            intermediate_size=32,
            num_heads=10,
            num_kv_heads=2,
            head_size=16,
            num_experts=8,
            experts_per_token=4,
            sliding_window=12,
            rope_theta=10_000.0,
            yarn_factor=8.0,
            yarn_original_length=64,
            yarn_beta_fast=8.0,
            yarn_beta_slow=2.0,
        ),
        seed=3,
        layout="huggingface",
        rope_key="rope_parameters",
        batch=1,
        length=160,
        first_position=0,
    ),
)

FAR = Case(
    "far",
    ModelConfig(
        num_layers=2,
        vocabulary_size=96,
        hidden_size=32,
        intermediate_size=64,
        num_heads=4,
        num_kv_heads=2,
        head_size=64,
        num_experts=3,
        experts_per_token=2,
        sliding_window=6,
    ),
    seed=4,
    layout="huggingface",
    rope_key="rope_scaling",
    batch=1,
    length=24,
    first_position=100_000,
)
"""RoPE as published, at positions far beyond its original 4,096.

There float32 itself is coarse: the last bit of a frequency moves an angle of 100,000 by as much as 0.01. Only
with the oracle's own frequencies, bit for bit, do logits agree as closely as elsewhere.
"""
