"""Every parameter of a gpt-oss model by its canonical name: shape, dtype, and parameter counts."""

from __future__ import annotations

import dataclasses
import math

import ml_dtypes
import numpy as np

from checkpoints.config import MXFP4_BLOCK, ModelConfig

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
UINT8 = np.dtype(np.uint8)


@dataclasses.dataclass(frozen=True)
class ParameterSpec:
    """Shape and dtype of one parameter in a checkpoint."""

    shape: tuple[int, ...]
    dtype: np.dtype = BFLOAT16

    @property
    def num_bytes(self) -> int:
        """Bytes on disk, and in memory unless the dtype is converted."""
        return math.prod(self.shape) * self.dtype.itemsize


def parameter_specs(config: ModelConfig) -> dict[str, ParameterSpec]:
    """Canonical name → spec, in the order in which a forward pass uses the parameters.

    docs/architecture.md lists the names. Weights are [outputs, inputs]. Expert weights are packed MXFP4:
    `blocks` has two weights per byte, `scales` one byte per 32 weights. Gate and up are an axis of their own
    (0 gate, 1 up).
    """
    specs = {"embedding.weight": ParameterSpec((config.vocabulary_size, config.hidden_size))}
    for layer in range(config.num_layers):
        for name, spec in _layer_specs(config).items():
            specs[f"layers.{layer}.{name}"] = spec
    specs["norm.scale"] = ParameterSpec((config.hidden_size,))
    specs["unembedding.weight"] = ParameterSpec((config.vocabulary_size, config.hidden_size))
    return specs


def _layer_specs(config: ModelConfig) -> dict[str, ParameterSpec]:
    hidden, intermediate, experts = config.hidden_size, config.intermediate_size, config.num_experts
    query_rows = config.num_heads * config.head_size
    key_rows = config.num_kv_heads * config.head_size
    specs = {"attention.norm.scale": ParameterSpec((hidden,))}
    for name, rows in (("query", query_rows), ("key", key_rows), ("value", key_rows)):
        specs[f"attention.{name}.weight"] = ParameterSpec((rows, hidden))
        specs[f"attention.{name}.bias"] = ParameterSpec((rows,))
    specs |= {
        "attention.sinks": ParameterSpec((config.num_heads,)),
        "attention.output.weight": ParameterSpec((hidden, query_rows)),
        "attention.output.bias": ParameterSpec((hidden,)),
        "moe.norm.scale": ParameterSpec((hidden,)),
        "moe.router.weight": ParameterSpec((experts, hidden)),
        "moe.router.bias": ParameterSpec((experts,)),
    }
    return (
        specs
        | _expert_specs("gate_up", (experts, 2, intermediate), hidden)
        | _expert_specs("down", (experts, hidden), intermediate)
    )


def _expert_specs(name: str, rows: tuple[int, ...], inputs: int) -> dict[str, ParameterSpec]:
    return {
        f"moe.experts.{name}.blocks": ParameterSpec((*rows, inputs // 2), UINT8),
        f"moe.experts.{name}.scales": ParameterSpec((*rows, inputs // MXFP4_BLOCK), UINT8),
        f"moe.experts.{name}.bias": ParameterSpec(rows),
    }


@dataclasses.dataclass(frozen=True)
class ParameterCount:
    """How many parameters a model has, and how many of them are active for one token."""

    total: int
    active: int  # without the experts that the router does not choose, and without the input embedding


def count_parameters(config: ModelConfig) -> ParameterCount:
    """Counts parameters as the model's authors do: a packed weight is one parameter, a scale is none."""
    total = inactive = 0
    for name, spec in parameter_specs(config).items():
        if name.endswith(".scales"):
            continue
        count = math.prod(spec.shape) * (2 if name.endswith(".blocks") else 1)
        total += count
        if name == "embedding.weight":
            inactive += count
        elif ".experts." in name:
            inactive += count // config.num_experts * (config.num_experts - config.experts_per_token)
    return ParameterCount(total, total - inactive)
