"""Reads and writes the two published forms of `config.json`, from and to `ModelConfig`.

Hugging Face's form describes many models. `HUGGINGFACE_FIELDS` lists what happens to each field: it is used;
it is checked, because gpt-oss has only one value for it (its activation, its alternating layers, YaRN without
truncation, …); or it has no effect on what a model computes. So a checkpoint that this model cannot represent
is refused and never runs wrongly.

Unknown fields are ignored at the top level: public files contain fields of the tools that wrote them, and no
implementation of gpt-oss computes with those. Inside RoPE's object they are refused, since every field there
changes what is computed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from checkpoints.config import WHOLE_FIELDS, CheckpointError, ModelConfig, check_value, shown, shown_name
from checkpoints.files import read_json
from pallas_kernels.swiglu import SWIGLU_ALPHA

Layout = Literal["huggingface", "original"]
RopeKey = Literal["rope_scaling", "rope_parameters"]

CONFIG_NAME = "config.json"

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
_ABSENT = object()
_FIXED: dict[str, tuple[Any, ...]] = {  # field: its allowed values; messages name the first one
    "hidden_act": ("silu", _ABSENT),
    "attention_bias": (True, _ABSENT),
    "tie_word_embeddings": (False, _ABSENT),
    "swiglu_alpha": (SWIGLU_ALPHA, _ABSENT),
    "partial_rotary_factor": (1.0, None, _ABSENT),
    "per_layer_config": (None, {}, _ABSENT),
    "is_encoder_decoder": (False, _ABSENT),
}
_ALIASES = {  # field: another field with the same meaning, which must have the same value
    "num_experts_per_tok": "experts_per_token",
    "num_local_experts": "num_experts",
}
HUGGINGFACE_FIELDS: dict[str, Literal["used", "checked", "no effect"]] = {
    # Sizes and constants.
    "num_hidden_layers": "used",
    "vocab_size": "used",
    "hidden_size": "used",
    "intermediate_size": "used",
    "num_attention_heads": "used",
    "num_key_value_heads": "used",
    "head_dim": "used",
    "num_local_experts": "used",
    "num_experts": "used",
    "num_experts_per_tok": "used",
    "experts_per_token": "used",
    "sliding_window": "used",
    "max_position_embeddings": "used",
    "rope_theta": "used",
    "rope_scaling": "used",
    "rope_parameters": "used",
    "rms_norm_eps": "used",
    "swiglu_limit": "used",
    "eos_token_id": "used",
    # Fixed in gpt-oss, or the same as another field.
    "model_type": "checked",
    "layer_types": "checked",
    "quantization_config": "checked",
    "initial_context_length": "checked",
    "original_max_position_embeddings": "checked",
    "hidden_act": "checked",
    "attention_bias": "checked",
    "tie_word_embeddings": "checked",
    "swiglu_alpha": "checked",
    "partial_rotary_factor": "checked",
    "per_layer_config": "checked",
    "is_encoder_decoder": "checked",
    # About training, or about what a call returns.
    "attention_dropout": "no effect",
    "initializer_range": "no effect",
    "router_aux_loss_coef": "no effect",
    "output_router_logits": "no effect",
    "output_attentions": "no effect",
    "output_hidden_states": "no effect",
    "return_dict": "no effect",
    "use_cache": "no effect",
    "chunk_size_feed_forward": "no effect",
    "problem_type": "no effect",
    "id2label": "no effect",
    "label2id": "no effect",
    # The origin of the file. The dtype is taken from the tensors.
    "architectures": "no effect",
    "transformers_version": "no effect",
    "_name_or_path": "no effect",
    "name_or_path": "no effect",
    "dtype": "no effect",
    "torch_dtype": "no effect",
    # Prompts are rendered as harmony, and padding needs no token.
    "bos_token_id": "no effect",
    "pad_token_id": "no effect",
}
"""Every known field of Hugging Face's form, and what is done with it."""

_ROPE_FIELDS = frozenset(
    (
        "rope_type",
        "type",
        "rope_theta",
        "factor",
        "original_max_position_embeddings",
        "beta_fast",
        "beta_slow",
        "truncate",
        "attention_factor",
        "mscale",
        "mscale_all_dim",
        "partial_rotary_factor",
    )
)


def read_config(path: Path) -> tuple[Layout, ModelConfig]:
    """Reads the `config.json` at `path`: its layout and its configuration.

    Raises:
        CheckpointError: one line with the field, its value and what is allowed.
    """
    fields = read_json(path)
    try:
        return parse_config(fields)
    except CheckpointError as error:
        raise CheckpointError(f"{path}: {error}") from None


def read_eos_token_ids(path: Path) -> tuple[int, ...]:
    """The tokens that end a generation, from the `config.json` at `path`; () if it does not name them.

    Raises:
        CheckpointError: the file cannot be read, or `eos_token_id` is not a token or a list of tokens.
    """
    try:
        return _eos_token_ids(read_json(path))
    except CheckpointError as error:
        message = str(error)
        raise CheckpointError(message if message.startswith(str(path)) else f"{path}: {message}") from None


def parse_config(fields: Mapping[str, Any]) -> tuple[Layout, ModelConfig]:
    """`read_config` for the fields of a `config.json` that is already in memory."""
    _eos_token_ids(fields)
    if "model_type" in fields:
        if fields["model_type"] != "gpt_oss":
            raise CheckpointError(f'model_type is {shown(fields["model_type"])}: it must be "gpt_oss"')
        return "huggingface", _from_huggingface(fields)
    if "num_experts" in fields:
        return "original", _from_original(fields)
    raise CheckpointError(
        "has neither model_type (Hugging Face) nor num_experts (original): not a gpt-oss model"
    )


def _eos_token_ids(fields: Mapping[str, Any]) -> tuple[int, ...]:
    value = fields.get("eos_token_id")
    ids = [] if value is None else value if isinstance(value, list) else [value]
    if not all(type(token) is int and token >= 0 for token in ids):
        raise CheckpointError(f"eos_token_id is {shown(value)}: it must be a token or a list of tokens")
    return tuple(ids)


def _from_original(fields: Mapping[str, Any]) -> ModelConfig:
    names = _ORIGINAL_SIZES | _ORIGINAL_CONSTANTS
    values = {ours: _value(fields, theirs, ours) for ours, theirs in names.items()}
    return _model(values, round(values["yarn_original_length"] * values["yarn_factor"]))


def _from_huggingface(fields: Mapping[str, Any]) -> ModelConfig:
    fields = dict(fields)
    for name, alias in _ALIASES.items():
        if alias in fields and fields.setdefault(name, fields[alias]) != fields[alias]:
            raise CheckpointError(f"{alias} is {shown(fields[alias])}, but {name} is {shown(fields[name])}")
    values = {ours: _value(fields, theirs, ours) for ours, theirs in _HUGGINGFACE_SIZES.items()}
    for name, allowed in _FIXED.items():
        _check_fixed(name, fields.get(name, _ABSENT), allowed)
    types = fields.get("layer_types")
    expected = _layer_types(values["num_layers"])
    if types is not None and types != expected:
        raise CheckpointError(
            f"layer_types is {shown(types)}: it must alternate, {len(expected)} long, from sliding_attention "
            "to full_attention"
        )
    quantization = fields.get("quantization_config")
    method = quantization.get("quant_method") if isinstance(quantization, dict) else quantization
    if method not in (None, "mxfp4"):
        raise CheckpointError(f'quantization_config.quant_method is {shown(method)}: it must be "mxfp4"')
    values |= _rope(fields)
    for name in ("initial_context_length", "original_max_position_embeddings"):
        length = fields.get(name)
        if length is not None and length != values["yarn_original_length"]:
            raise CheckpointError(
                f"{name} is {shown(length)}: it must be {values['yarn_original_length']}, RoPE's "
                "original_max_position_embeddings"
            )
    values["swiglu_limit"] = _value(fields, "swiglu_limit", "swiglu_limit", 7.0)
    values["norm_epsilon"] = _value(fields, "rms_norm_eps", "norm_epsilon", 1e-5)
    context = _value(fields, "max_position_embeddings", "context_length", ModelConfig.context_length)
    return _model(values, context)


def _model(values: dict[str, Any], context_length: int) -> ModelConfig:
    check_value("context_length", context_length, "the context's length")
    return ModelConfig(**values, context_length=context_length)


def _check_fixed(name: str, value: Any, allowed: tuple[Any, ...]) -> None:
    # 1 == True in Python, but not in JSON.
    if not any(value == one and isinstance(value, bool) == isinstance(one, bool) for one in allowed):
        raise CheckpointError(f"{name} is {shown(value)}: it must be {shown(allowed[0])}")


def _rope(fields: Mapping[str, Any]) -> dict[str, Any]:
    """RoPE's constants from `rope_scaling` (theta beside it) or `rope_parameters` (theta inside)."""
    found = {key: fields[key] for key in ("rope_scaling", "rope_parameters") if fields.get(key) is not None}
    if not found:
        raise CheckpointError("has neither rope_scaling nor rope_parameters: gpt-oss needs YaRN's constants")
    read = [_rope_object(key, rope, fields.get("rope_theta")) for key, rope in found.items()]
    if read[0] != read[-1]:
        raise CheckpointError(f"rope_scaling and rope_parameters disagree: {shown(read)}")
    return read[0]


def _rope_object(key: str, rope: Any, theta_beside: Any) -> dict[str, Any]:
    if not isinstance(rope, dict):
        raise CheckpointError(f"{key} is {shown(rope)}: it must be an object")
    for name in rope:
        if name not in _ROPE_FIELDS:
            raise CheckpointError(
                f"{key}.{shown_name(name)} is not known: it would change what RoPE computes"
            )
    for name in ("rope_type", "type"):
        if name in rope or (name == "rope_type" and "type" not in rope):
            _check_fixed(f"{key}.{name}", rope.get(name), ("yarn",))
    # transformers truncates by default.
    _check_fixed(f"{key}.truncate", rope.get("truncate", True), (False,))
    _check_fixed(f"{key}.partial_rotary_factor", rope.get("partial_rotary_factor"), (1.0, None))
    theta_inside = rope.get("rope_theta")
    if theta_beside is not None and theta_inside is not None and theta_beside != theta_inside:
        raise CheckpointError(
            f"{key}.rope_theta is {shown(theta_inside)}: it must be {shown(theta_beside)}, as rope_theta is"
        )
    prefixed = {f"{key}.{name}": value for name, value in rope.items()}
    prefixed[f"{key}.rope_theta"] = theta_beside if theta_inside is None else theta_inside
    values = {
        "rope_theta": _value(prefixed, f"{key}.rope_theta", "rope_theta"),
        "yarn_factor": _value(prefixed, f"{key}.factor", "yarn_factor"),
        "yarn_original_length": _value(
            prefixed, f"{key}.original_max_position_embeddings", "yarn_original_length"
        ),
        "yarn_beta_fast": _value(prefixed, f"{key}.beta_fast", "yarn_beta_fast", 32.0),
        "yarn_beta_slow": _value(prefixed, f"{key}.beta_slow", "yarn_beta_slow", 1.0),
    }
    _check_attention_factor(key, rope, values["yarn_factor"])
    return values


def _check_attention_factor(key: str, rope: Mapping[str, Any], factor: float) -> None:
    """Checks that cosines and sines are scaled by YaRN's own factor, 0.1·ln(factor) + 1.

    `attention_factor` is that factor. Without it, `mscale` and `mscale_all_dim` change it if both are given
    and not 0: (0.1·mscale·ln(factor) + 1) / (0.1·mscale_all_dim·ln(factor) + 1).
    """
    scales = {}
    for name in ("attention_factor", "mscale", "mscale_all_dim"):
        value = rope.get(name)
        known = value is None or (isinstance(value, (int, float)) and not isinstance(value, bool))
        if not known or not 0 <= (value or 0) <= 1e6:
            raise CheckpointError(f"{key}.{name} is {shown(value)}: it must be a number from 0 to 1,000,000")
        scales[name] = value
    expected = yarn_attention_factor(factor)
    given, names = scales["attention_factor"], "attention_factor"
    if given is None and scales["mscale"] and scales["mscale_all_dim"]:
        names = "mscale / mscale_all_dim"
        given = yarn_attention_factor(factor, scales["mscale"])
        given /= yarn_attention_factor(factor, scales["mscale_all_dim"])
    if given is not None and not math.isclose(given, expected, rel_tol=1e-6):
        raise CheckpointError(
            f"{key}.{names} scales by {given!r}: it must scale by {expected!r}, 0.1·ln(factor) + 1"
        )


def yarn_attention_factor(factor: float, scale: float = 1.0) -> float:
    """YaRN's factor on cosines and sines: 0.1·scale·ln(factor) + 1."""
    return 0.1 * scale * math.log(factor) + 1.0


def _value(fields: Mapping[str, Any], theirs: str, ours: str, default: float | None = None) -> Any:
    """A field's value, checked for its field of `ModelConfig`. Null counts as missing."""
    value = fields.get(theirs)
    if value is None:
        value = default
    if value is None:
        raise CheckpointError(f"has no {theirs}")
    check_value(ours, value, theirs)
    return value if ours in WHOLE_FIELDS else float(value)


def _layer_types(num_layers: int) -> list[str]:
    return ["full_attention" if layer % 2 else "sliding_attention" for layer in range(num_layers)]


def huggingface_config(config: ModelConfig, rope_key: RopeKey = "rope_scaling") -> dict[str, Any]:
    """The `config.json` for transformers. rope_key: the field of RoPE's
    constants, whose name depends on its version.
    """
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
        "max_position_embeddings": config.context_length,
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
        CheckpointError: the norms' epsilon is not 1e-5; this form has no field for it.
    """
    if config.norm_epsilon != 1e-5:
        raise CheckpointError(f"norm_epsilon is {config.norm_epsilon}: the original layout allows only 1e-05")
    names = _ORIGINAL_SIZES | _ORIGINAL_CONSTANTS
    return {theirs: getattr(config, ours) for ours, theirs in names.items()}
