"""The two published layouts of a gpt-oss checkpoint: which tensor holds each parameter, and where.

The Hugging Face layout has one tensor per parameter; OpenAI's `original/` layout stacks query, key and value.
Both interleave the rows of gate and up (even rows are gate), and both have an axis of 16 for the bytes of an
MXFP4 block. Each parameter is a view of its tensor, so one table serves reading and writing.
"""

from __future__ import annotations

import dataclasses
import math
import re
from pathlib import Path

import numpy as np

from checkpoints.config import CheckpointError, ModelConfig, shown_name
from checkpoints.parameters import ParameterSpec, parameter_specs
from checkpoints.published_config import Layout
from checkpoints.safetensors_files import StoredTensor, list_tensors

_BYTES_PER_BLOCK = 16

_HUGGINGFACE_NAMES = {
    "embedding.weight": "model.embed_tokens.weight",
    "norm.scale": "model.norm.weight",
    "unembedding.weight": "lm_head.weight",
    "attention.norm.scale": "input_layernorm.weight",
    "attention.query.weight": "self_attn.q_proj.weight",
    "attention.query.bias": "self_attn.q_proj.bias",
    "attention.key.weight": "self_attn.k_proj.weight",
    "attention.key.bias": "self_attn.k_proj.bias",
    "attention.value.weight": "self_attn.v_proj.weight",
    "attention.value.bias": "self_attn.v_proj.bias",
    "attention.sinks": "self_attn.sinks",
    "attention.output.weight": "self_attn.o_proj.weight",
    "attention.output.bias": "self_attn.o_proj.bias",
    "moe.norm.scale": "post_attention_layernorm.weight",
    "moe.router.weight": "mlp.router.weight",
    "moe.router.bias": "mlp.router.bias",
    "moe.experts.gate_up.blocks": "mlp.experts.gate_up_proj_blocks",
    "moe.experts.gate_up.scales": "mlp.experts.gate_up_proj_scales",
    "moe.experts.gate_up.bias": "mlp.experts.gate_up_proj_bias",
    "moe.experts.down.blocks": "mlp.experts.down_proj_blocks",
    "moe.experts.down.scales": "mlp.experts.down_proj_scales",
    "moe.experts.down.bias": "mlp.experts.down_proj_bias",
}
_ORIGINAL_NAMES = {
    "embedding.weight": "embedding.weight",
    "norm.scale": "norm.scale",
    "unembedding.weight": "unembedding.weight",
    "attention.norm.scale": "attn.norm.scale",
    "attention.query.weight": "attn.qkv.weight",
    "attention.query.bias": "attn.qkv.bias",
    "attention.key.weight": "attn.qkv.weight",
    "attention.key.bias": "attn.qkv.bias",
    "attention.value.weight": "attn.qkv.weight",
    "attention.value.bias": "attn.qkv.bias",
    "attention.sinks": "attn.sinks",
    "attention.output.weight": "attn.out.weight",
    "attention.output.bias": "attn.out.bias",
    "moe.norm.scale": "mlp.norm.scale",
    "moe.router.weight": "mlp.gate.weight",
    "moe.router.bias": "mlp.gate.bias",
    "moe.experts.gate_up.blocks": "mlp.mlp1_weight.blocks",
    "moe.experts.gate_up.scales": "mlp.mlp1_weight.scales",
    "moe.experts.gate_up.bias": "mlp.mlp1_bias",
    "moe.experts.down.blocks": "mlp.mlp2_weight.blocks",
    "moe.experts.down.scales": "mlp.mlp2_weight.scales",
    "moe.experts.down.bias": "mlp.mlp2_bias",
}
_LAYER = re.compile(r"layers\.(\d+)\.(.+)")


@dataclasses.dataclass(frozen=True)
class Source:
    """Where a published layout stores one parameter."""

    tensor: str
    tensor_shape: tuple[int, ...]
    parameter: ParameterSpec
    first_row: int = 0  # the row of the tensor where the parameter begins
    interleaved: bool = False  # True: rows of gate and up alternate

    @property
    def start_byte(self) -> int:
        """The byte of the tensor at which the parameter begins.

        Only for parameters that are not interleaved.
        """
        return self.first_row * math.prod(self.tensor_shape[1:]) * self.parameter.dtype.itemsize

    def view(self, tensor: np.ndarray) -> np.ndarray:
        """The parameter as a view of its tensor, in its canonical shape, for reading or for writing."""
        if not self.interleaved:
            rows = tensor[self.first_row : self.first_row + self.parameter.shape[0]]
            return rows.reshape(self.parameter.shape)
        experts, two, intermediate, *rest = self.parameter.shape
        return tensor.reshape(experts, intermediate, two, *rest).swapaxes(1, 2)


def sources(config: ModelConfig, layout: Layout) -> dict[str, Source]:
    """Canonical parameter name → where `layout` stores it."""
    query_rows = config.num_heads * config.head_size
    key_rows = config.num_kv_heads * config.head_size
    first_rows = {"query": 0, "key": query_rows, "value": query_rows + key_rows}
    found = {}
    for name, spec in parameter_specs(config).items():
        shape, first_row, interleaved = spec.shape, 0, False
        part = name.split(".")[3] if ".attention." in name else ""
        if layout == "original" and part in first_rows:
            first_row = first_rows[part]
            shape = (query_rows + 2 * key_rows, *shape[1:])
        if ".gate_up." in name:
            interleaved = True
            experts, two, intermediate, *rest = shape
            shape = (experts, two * intermediate, *rest)
        if name.endswith(".blocks"):
            shape = (*shape[:-1], shape[-1] // _BYTES_PER_BLOCK, _BYTES_PER_BLOCK)
        found[name] = Source(_tensor_name(name, layout), shape, spec, first_row, interleaved)
    return found


def _tensor_name(parameter: str, layout: Layout) -> str:
    names, prefix = (
        (_HUGGINGFACE_NAMES, "model.layers") if layout == "huggingface" else (_ORIGINAL_NAMES, "block")
    )
    match = _LAYER.fullmatch(parameter)
    return f"{prefix}.{match[1]}.{names[match[2]]}" if match else names[parameter]


def published_tensors(config: ModelConfig, layout: Layout) -> dict[str, tuple[tuple[int, ...], np.dtype]]:
    """Every tensor of a checkpoint in `layout`: name → shape and dtype."""
    return {s.tensor: (s.tensor_shape, s.parameter.dtype) for s in sources(config, layout).values()}


def find_tensors(folder: Path, config: ModelConfig, layout: Layout) -> dict[str, StoredTensor]:
    """The folder's tensors, after checking each of them against the configuration. Reads no data.

    Raises:
        CheckpointError: one line with everything that is missing, unexpected or wrong.
    """
    tensors, problems = list_tensors(folder)
    expected = published_tensors(config, layout)
    missing = [name for name in expected if name not in tensors]
    unexpected = [name for name in tensors if name not in expected]
    wrong = []
    for name, (shape, dtype) in expected.items():
        tensor = tensors.get(name)
        if tensor is not None and (tensor.shape != shape or tensor.dtype != dtype):
            wrong.append(f"{name} is {tensor.describe()}: it must be {dtype} {list(shape)}")
    report = list(problems)
    for kind, names in (("missing", missing), ("unexpected", unexpected), ("wrong", wrong)):
        if names:
            report.append(f"{len(names)} {kind} of {len(expected)} tensors: {_some(names)}")
    if report:
        raise CheckpointError(f"{folder}: not the checkpoint its config.json describes: {'; '.join(report)}")
    return tensors


def _some(names: list[str], limit: int = 12) -> str:
    more = f", and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(map(shown_name, names[:limit])) + more
