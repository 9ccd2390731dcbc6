"""The two published forms of `config.json`, read into `ModelConfig` and written from it.

Hugging Face's form describes a family of models; what gpt-oss fixes (its activation, its alternating layers,
YaRN without truncation, …) is checked here, so that a checkpoint this model cannot represent is refused
instead of running wrongly.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from checkpoints.config import CheckpointError, ModelConfig

Layout = Literal["huggingface", "original"]
RopeKey = Literal["rope_scaling", "rope_parameters"]

CONFIG_NAME = "config.json"
SWIGLU_ALPHA = 1.702

_HUGGINGFACE_SIZES = {
    "num_layers": "num_hidden_layers",
    "vocabulary_size": "vocab_size",
    "hidden_size": "hidden_size",
    "intermediate_size": "intermediate_size",
    "num_heads": "num_attention_heads",
    "num_kv_heads": "num_key_value_heads",
    "head_size": "head_dim",
    "num_experts": "num_local_experts",
    "experts_per_token": "num_experts_per_tok",
    "sliding_window": "sliding_window",
}
_ORIGINAL_SIZES = _HUGGINGFACE_SIZES | {
    "num_experts": "num_experts",
    "experts_per_token": "experts_per_token",
    "yarn_original_length": "initial_context_length",
}
_ORIGINAL_CONSTANTS = {
    "rope_theta": "rope_theta",
    "yarn_factor": "rope_scaling_factor",
    "yarn_beta_slow": "rope_ntk_alpha",
    "yarn_beta_fast": "rope_ntk_beta",
    "swiglu_limit": "swiglu_limit",
}
_FIXED = {  # field: the only value, which is also what leaving the field out means
    "hidden_act": "silu",
    "attention_bias": True,
    "tie_word_embeddings": False,
    "swiglu_alpha": SWIGLU_ALPHA,
}


def read_config(path: Path) -> tuple[Layout, ModelConfig]:
    """Which published layout the `config.json` at `path` belongs to, and what it says.

    Raises:
        CheckpointError: one line with the field, its value and what is allowed.
    """
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: cannot be read as JSON: {error}") from None
    if not isinstance(fields, dict):
        raise CheckpointError(f"{path}: must be a JSON object")
    try:
        return parse_config(fields)
    except CheckpointError as error:
        raise CheckpointError(f"{path}: {error}") from None


def parse_config(fields: Mapping[str, Any]) -> tuple[Layout, ModelConfig]:
    """`read_config` for the fields of a `config.json` that is already in memory."""
    if "model_type" in fields:
        if fields["model_type"] != "gpt_oss":
            raise CheckpointError(f"model_type is {fields['model_type']!r}: it must be 'gpt_oss'")
        return "huggingface", _from_huggingface(fields)
    if "num_experts" in fields:
        return "original", _from_original(fields)
    raise CheckpointError(
        "has neither model_type (Hugging Face) nor num_experts (original): not a gpt-oss model"
    )


def _from_original(fields: Mapping[str, Any]) -> ModelConfig:
    sizes = {ours: _whole(fields, theirs) for ours, theirs in _ORIGINAL_SIZES.items()}
    constants = {ours: _number(fields, theirs) for ours, theirs in _ORIGINAL_CONSTANTS.items()}
    return ModelConfig(**sizes, **constants)  # type: ignore[arg-type]


def _from_huggingface(fields: Mapping[str, Any]) -> ModelConfig:
    if "num_experts_per_tok" not in fields and "experts_per_token" in fields:
        fields = {**fields, "num_experts_per_tok": fields["experts_per_token"]}
    sizes = {ours: _whole(fields, theirs) for ours, theirs in _HUGGINGFACE_SIZES.items()}
    for name, only in _FIXED.items():
        if fields.get(name, only) != only:
            raise CheckpointError(f"{name} is {fields[name]!r}: it must be {only!r}")
    types = fields.get("layer_types")
    expected = _layer_types(sizes["num_layers"])
    if types is not None and types != expected:
        raise CheckpointError(
            f"layer_types is {types!r}: it must alternate, {len(expected)} long, from sliding_attention "
            "to full_attention"
        )
    quantization = fields.get("quantization_config")
    method = quantization.get("quant_method") if isinstance(quantization, dict) else quantization
    if method not in (None, "mxfp4"):
        raise CheckpointError(f"quantization_config.quant_method is {method!r}: it must be 'mxfp4'")
    return ModelConfig(
        **sizes,
        **_rope(fields),
        swiglu_limit=_number(fields, "swiglu_limit", 7.0),
        norm_epsilon=_number(fields, "rms_norm_eps", 1e-5),
    )


def _rope(fields: Mapping[str, Any]) -> dict[str, Any]:
    """RoPE's constants from `rope_scaling` (theta beside it) or `rope_parameters` (theta inside)."""
    found = {key: fields[key] for key in ("rope_scaling", "rope_parameters") if fields.get(key) is not None}
    if not found:
        raise CheckpointError("has neither rope_scaling nor rope_parameters: gpt-oss needs YaRN's constants")
    read = {}
    for key, rope in found.items():
        if not isinstance(rope, dict):
            raise CheckpointError(f"{key} is {rope!r}: it must be an object")
        kind = rope.get("rope_type", rope.get("type"))
        if kind != "yarn":
            raise CheckpointError(f"{key}.rope_type is {kind!r}: it must be 'yarn'")
        if rope.get("truncate", True) is not False:  # transformers truncates unless told otherwise
            raise CheckpointError(f"{key}.truncate is {rope.get('truncate', True)!r}: it must be false")
        beside, inside = fields.get("rope_theta"), rope.get("rope_theta")
        if beside is not None and inside is not None and beside != inside:
            raise CheckpointError(f"{key}.rope_theta is {inside!r}: it must be {beside!r}, as rope_theta is")
        prefixed = {f"{key}.{name}": value for name, value in rope.items()}
        prefixed[f"{key}.rope_theta"] = beside if inside is None else inside
        factor = _number(prefixed, f"{key}.factor")
        attention = rope.get("attention_factor")
        if attention is not None and not math.isclose(attention, yarn_attention_factor(factor), rel_tol=1e-6):
            raise CheckpointError(
                f"{key}.attention_factor is {attention!r}: it must be {yarn_attention_factor(factor)!r}, "
                "0.1·ln(factor) + 1"
            )
        read[key] = {
            "rope_theta": _number(prefixed, f"{key}.rope_theta"),
            "yarn_factor": factor,
            "yarn_original_length": _whole(prefixed, f"{key}.original_max_position_embeddings"),
            "yarn_beta_fast": _number(prefixed, f"{key}.beta_fast", 32.0),
            "yarn_beta_slow": _number(prefixed, f"{key}.beta_slow", 1.0),
        }
    values = list(read.values())
    if values[0] != values[-1]:
        raise CheckpointError(f"rope_scaling and rope_parameters disagree: {values[0]} and {values[-1]}")
    return values[0]


def yarn_attention_factor(factor: float) -> float:
    """YaRN's scaling of the attention logits' cosines and sines, 0.1·ln(factor) + 1."""
    return 0.1 * math.log(factor) + 1.0


def _whole(fields: Mapping[str, Any], name: str) -> int:
    if name not in fields:
        raise CheckpointError(f"has no {name}")
    value = fields[name]
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise CheckpointError(f"{name} is {value!r}: it must be a positive whole number")
    return value


def _number(fields: Mapping[str, Any], name: str, default: float | None = None) -> float:
    value = fields.get(name, default)
    if value is None:
        raise CheckpointError(f"has no {name}")
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
        raise CheckpointError(f"{name} is {value!r}: it must be a number greater than 0")
    return float(value)


def _layer_types(num_layers: int) -> list[str]:
    return ["full_attention" if layer % 2 else "sliding_attention" for layer in range(num_layers)]


def huggingface_config(config: ModelConfig, rope_key: RopeKey = "rope_scaling") -> dict[str, Any]:
    """The `config.json` that transformers reads, RoPE's constants under the key of one or the other age."""
    rope: dict[str, Any] = {
        "rope_type": "yarn",
        "factor": config.yarn_factor,
        "beta_fast": config.yarn_beta_fast,
        "beta_slow": config.yarn_beta_slow,
        "truncate": False,
        "original_max_position_embeddings": config.yarn_original_length,
    }
    if rope_key == "rope_parameters":
        rope_fields: dict[str, Any] = {"rope_parameters": rope | {"rope_theta": config.rope_theta}}
    else:
        rope_fields = {"rope_theta": config.rope_theta, "rope_scaling": rope}
    return {
        "architectures": ["GptOssForCausalLM"],
        "model_type": "gpt_oss",
        **{theirs: getattr(config, ours) for ours, theirs in _HUGGINGFACE_SIZES.items()},
        "layer_types": _layer_types(config.num_layers),
        "initial_context_length": config.yarn_original_length,
        "max_position_embeddings": round(config.yarn_original_length * config.yarn_factor),
        **rope_fields,
        "rms_norm_eps": config.norm_epsilon,
        "swiglu_limit": config.swiglu_limit,
        "hidden_act": "silu",
        "attention_bias": True,
        "attention_dropout": 0.0,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "quantization_config": {
            "quant_method": "mxfp4",
            "modules_to_not_convert": [
                "model.layers.*.self_attn",
                "model.layers.*.mlp.router",
                "model.embed_tokens",
                "lm_head",
            ],
        },
    }


def original_config(config: ModelConfig) -> dict[str, Any]:
    """The `config.json` of OpenAI's `original/` folder.

    Raises:
        CheckpointError: the norms' epsilon is not the one that this form takes for granted.
    """
    if config.norm_epsilon != 1e-5:
        raise CheckpointError(f"norm_epsilon is {config.norm_epsilon}: the original layout allows only 1e-05")
    names = _ORIGINAL_SIZES | _ORIGINAL_CONSTANTS
    return {theirs: getattr(config, ours) for ours, theirs in names.items()}
