"""The sizes and constants of a gpt-oss model: `ModelConfig`."""

from __future__ import annotations

import dataclasses
import json
import math

MXFP4_BLOCK = 32
"""Weights per MXFP4 scale. The experts' hidden and intermediate sizes must be multiples of it."""


class CheckpointError(ValueError):
    """The checkpoint cannot be used. The message is one line with the part, its value and what is allowed."""


def shown(value: object, length: int = 100) -> str:
    """A value as text for a message: JSON if possible, on one line, cut off after `length` characters."""
    try:
        text = json.dumps(value)
    except (TypeError, ValueError, RecursionError):
        text = f"a {type(value).__name__}"
    return text if len(text) <= length else f"{text[:length]}…"


def shown_name(name: str, length: int = 100) -> str:
    """A name from a file as text for a message: control characters
    escaped, cut off after `length` characters.
    """
    text = json.dumps(name)[1:-1]
    return text if len(text) <= length else f"{text[:length]}…"


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """The sizes and constants of one gpt-oss model. Dimension letters: V, D, F, H, K, E, A.

    Raises:
        CheckpointError: a value is outside its limits, which are far above those of the published models.
    """

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
    context_length: int = 131_072  # tokens that the model was trained for; nothing is computed from it

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            check_value(field.name, getattr(self, field.name), field.name)
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
            raise CheckpointError(f"head_size is {self.head_size}: it must be even, since RoPE rotates pairs")
        if self.experts_per_token > self.num_experts:
            raise CheckpointError(
                f"experts_per_token is {self.experts_per_token}: there are only {self.num_experts} experts"
            )
        if self.yarn_beta_fast < self.yarn_beta_slow:
            raise CheckpointError(
                f"yarn_beta_fast is {self.yarn_beta_fast}: it must not be less than yarn_beta_slow, "
                f"{self.yarn_beta_slow}"
            )
        self._check_yarn_range()

    def _check_yarn_range(self) -> None:
        """Raises CheckpointError for constants with which YaRN's first bound lies behind its second one.

        The bounds are the pairs of dimensions that rotate `yarn_beta_fast` and `yarn_beta_slow` times within
        the original length, clipped to the existing dimensions. Implementations of YaRN differ for such
        constants: one raises an error, another one leaves all frequencies unchanged.
        """

        def pair_turning(turns: float) -> float:
            wavelength = self.yarn_original_length / (turns * 2 * math.pi)
            return self.head_size / 2 * math.log(wavelength) / math.log(self.rope_theta)

        if pair_turning(self.yarn_beta_slow) < 0 or pair_turning(self.yarn_beta_fast) > self.head_size - 1:
            raise CheckpointError(
                f"yarn_original_length is {self.yarn_original_length:,}: with rope_theta {self.rope_theta:g} "
                f"no dimension turns between yarn_beta_slow, {self.yarn_beta_slow:g}, and yarn_beta_fast, "
                f"{self.yarn_beta_fast:g}, times within it"
            )

    def window(self, layer: int) -> int | None:
        """The window of a layer in keys, the query's own included (even
        layers); None: it sees all keys (odd layers).
        """
        return self.sliding_window if layer % 2 == 0 else None


_LIMITS: dict[str, tuple[float, float]] = {
    "num_layers": (1, 1024),
    "vocabulary_size": (1, 1 << 24),
    "hidden_size": (1, 1 << 20),
    "intermediate_size": (1, 1 << 20),
    "num_heads": (1, 1 << 14),
    "num_kv_heads": (1, 1 << 14),
    "head_size": (1, 1 << 14),
    "num_experts": (1, 1 << 14),
    "experts_per_token": (1, 1 << 14),
    "sliding_window": (1, (1 << 31) - 1),  # positions are int32
    "rope_theta": (1.01, 1e30),  # its logarithm is a divisor; the others must be finite in float32
    "yarn_factor": (1, 1e6),
    "yarn_original_length": (1, (1 << 31) - 1),
    "yarn_beta_fast": (1e-6, 1e6),
    "yarn_beta_slow": (1e-6, 1e6),
    "swiglu_limit": (1e-6, 1e30),
    "norm_epsilon": (1e-30, 1),
    "context_length": (1, (1 << 31) - 1),
}
"""The lowest and the highest allowed value of each field of `ModelConfig`, both included."""
WHOLE_FIELDS = frozenset(field.name for field in dataclasses.fields(ModelConfig) if field.type == "int")
"""The fields of `ModelConfig` that are whole numbers."""


def check_value(field: str, value: object, name: str) -> None:
    """Checks the type and the range of a value for a field of `ModelConfig`.

    Args:
        field: the name of the field in `ModelConfig`.
        value: the value to check, of any type.
        name: the field's name in the message.

    Raises:
        CheckpointError: the value is not allowed.
    """
    lowest, highest = _LIMITS[field]
    whole = field in WHOLE_FIELDS
    fits = isinstance(value, int | float) and type(value) is not bool and lowest <= value <= highest
    if not fits or (whole and isinstance(value, float)):
        kind = "whole number" if whole else "number"
        raise CheckpointError(f"{name} is {shown(value)}: it must be a {kind} from {lowest:,} to {highest:,}")


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
