"""What a gpt-oss model is, in numbers: `ModelConfig`."""

from __future__ import annotations

import dataclasses
import math

MXFP4_BLOCK = 32
"""Weights that share one MXFP4 scale; every contracted expert size is a multiple of it."""


class CheckpointError(ValueError):
    """A checkpoint, or a part of one, is not what it must be; the message names the part."""


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """The sizes and constants of one gpt-oss model. Dimension letters: V, D, F, H, K, E, A."""

    num_layers: int
    vocabulary_size: int  # V
    hidden_size: int  # D
    intermediate_size: int  # F, per expert
    num_heads: int  # H, query heads
    num_kv_heads: int  # K
    head_size: int
    num_experts: int  # E
    experts_per_token: int  # A
    sliding_window: int  # keys that a query of an even layer sees, itself included
    rope_theta: float = 150_000.0
    yarn_factor: float = 32.0
    yarn_original_length: int = 4096
    yarn_beta_fast: float = 32.0
    yarn_beta_slow: float = 1.0
    swiglu_limit: float = 7.0
    norm_epsilon: float = 1e-5

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
                raise CheckpointError(f"{field.name} is {value!r}: it must be a finite number")
            if field.type == "int" and (not isinstance(value, int) or value < 1):
                raise CheckpointError(f"{field.name} is {value!r}: it must be a positive whole number")
            if value <= 0:
                raise CheckpointError(f"{field.name} is {value!r}: it must be greater than 0")
        for name in ("hidden_size", "intermediate_size"):
            if getattr(self, name) % MXFP4_BLOCK:
                raise CheckpointError(
                    f"{name} is {getattr(self, name)}: it must be a multiple of {MXFP4_BLOCK}, an MXFP4 block"
                )
        if self.num_heads % self.num_kv_heads:
            raise CheckpointError(
                f"num_heads is {self.num_heads}: it must be a multiple of num_kv_heads, {self.num_kv_heads}"
            )
        if self.head_size % 2:
            raise CheckpointError(f"head_size is {self.head_size}: it must be even, RoPE turns pairs")
        if self.experts_per_token > self.num_experts:
            raise CheckpointError(
                f"experts_per_token is {self.experts_per_token}: there are only {self.num_experts} experts"
            )

    def window(self, layer: int) -> int | None:
        """The sliding window of a layer in keys (even layers), or None where it sees all keys (odd ones)."""
        return self.sliding_window if layer % 2 == 0 else None


GPT_OSS_20B = ModelConfig(
    num_layers=24,
    vocabulary_size=201_088,
    hidden_size=2880,
    intermediate_size=2880,
    num_heads=64,
    num_kv_heads=8,
    head_size=64,
    num_experts=32,
    experts_per_token=4,
    sliding_window=128,
)
GPT_OSS_120B = dataclasses.replace(GPT_OSS_20B, num_layers=36, num_experts=128)
