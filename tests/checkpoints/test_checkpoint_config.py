"""Both published forms of config.json, and the values that the model cannot represent."""

import copy
import json

import pytest

from checkpoints.config import GPT_OSS_20B, GPT_OSS_120B, CheckpointError
from checkpoints.published_config import huggingface_config, original_config, parse_config, read_config

PUBLISHED_20B = {  # the fields of the published file that say something about the model
    "architectures": ["GptOssForCausalLM"],
    "attention_bias": True,
    "attention_dropout": 0.0,
    "eos_token_id": 200002,
    "experts_per_token": 4,
    "head_dim": 64,
    "hidden_act": "silu",
    "hidden_size": 2880,
    "initial_context_length": 4096,
    "intermediate_size": 2880,
    "layer_types": ["sliding_attention", "full_attention"] * 12,
    "max_position_embeddings": 131072,
    "model_type": "gpt_oss",
    "num_attention_heads": 64,
    "num_experts_per_tok": 4,
    "num_hidden_layers": 24,
    "num_key_value_heads": 8,
    "num_local_experts": 32,
    "quantization_config": {"modules_to_not_convert": ["lm_head"], "quant_method": "mxfp4"},
    "rms_norm_eps": 1e-05,
    "rope_scaling": {
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "factor": 32.0,
        "original_max_position_embeddings": 4096,
        "rope_type": "yarn",
        "truncate": False,
    },
    "rope_theta": 150000,
    "sliding_window": 128,
    "swiglu_limit": 7.0,
    "tie_word_embeddings": False,
    "vocab_size": 201088,
}
ORIGINAL_120B = {
    "num_hidden_layers": 36,
    "num_experts": 128,
    "experts_per_token": 4,
    "vocab_size": 201088,
    "hidden_size": 2880,
    "intermediate_size": 2880,
    "swiglu_limit": 7.0,
    "head_dim": 64,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "sliding_window": 128,
    "initial_context_length": 4096,
    "rope_theta": 150000,
    "rope_scaling_factor": 32.0,
    "rope_ntk_alpha": 1,
    "rope_ntk_beta": 32,
}


def changed(fields, path, value):
    """A copy with the field at a dotted path replaced, or left out where the value is ..."""
    fields = copy.deepcopy(fields)
    *parents, last = path.split(".")
    place = fields
    for parent in parents:
        place = place[parent]
    if value is ...:
        del place[last]
    else:
        place[last] = value
    return fields


def test_the_published_files_give_the_published_models():
    assert parse_config(PUBLISHED_20B) == ("huggingface", GPT_OSS_20B)
    assert parse_config(ORIGINAL_120B) == ("original", GPT_OSS_120B)


def test_rope_may_stand_under_either_key():
    fields = changed(PUBLISHED_20B, "rope_scaling", ...)
    del fields["rope_theta"]
    rope = PUBLISHED_20B["rope_scaling"] | {"factor": 8.0, "rope_theta": 10000.0}
    config = parse_config(fields | {"rope_parameters": rope})[1]
    assert (config.yarn_factor, config.rope_theta) == (8.0, 10000.0)


@pytest.mark.parametrize("rope_key", ["rope_scaling", "rope_parameters"])
@pytest.mark.parametrize("config", [GPT_OSS_20B, GPT_OSS_120B])
def test_what_is_written_reads_back(config, rope_key):
    assert parse_config(json.loads(json.dumps(huggingface_config(config, rope_key)))) == (
        "huggingface",
        config,
    )
    assert parse_config(json.loads(json.dumps(original_config(config)))) == ("original", config)


def test_the_original_form_is_written_with_exactly_its_fields():
    assert original_config(GPT_OSS_120B) == ORIGINAL_120B


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("model_type", "llama", "model_type is 'llama': it must be 'gpt_oss'"),
        ("hidden_act", "gelu", "hidden_act is 'gelu': it must be 'silu'"),
        ("attention_bias", False, "attention_bias is False: it must be True"),
        ("tie_word_embeddings", True, "tie_word_embeddings is True: it must be False"),
        ("swiglu_alpha", 1.0, "swiglu_alpha is 1.0: it must be 1.702"),
        ("layer_types", ["full_attention"] * 24, "layer_types is .* must alternate, 24 long"),
        ("layer_types", ["sliding_attention", "full_attention"], "layer_types is .* must alternate, 24 long"),
        ("quantization_config.quant_method", "bitsandbytes", "quant_method is 'bitsandbytes'"),
        ("rope_scaling.truncate", True, "rope_scaling.truncate is True: it must be false"),
        ("rope_scaling.truncate", ..., "rope_scaling.truncate is True: it must be false"),
        ("rope_scaling.rope_type", "linear", "rope_scaling.rope_type is 'linear': it must be 'yarn'"),
        ("rope_scaling.factor", "32", "rope_scaling.factor is '32': it must be a number"),
        ("rope_scaling.factor", ..., "has no rope_scaling.factor"),
        ("rope_scaling.attention_factor", 1.0, "rope_scaling.attention_factor is 1.0: it must be 1.34"),
        ("rope_scaling.rope_theta", 1e4, "rope_scaling.rope_theta is 10000.0: it must be 150000"),
        ("rope_scaling", ..., "neither rope_scaling nor rope_parameters"),
        ("rope_theta", ..., "has no rope_scaling.rope_theta"),
        ("num_local_experts", ..., "has no num_local_experts"),
        ("num_hidden_layers", 0, "num_hidden_layers is 0: it must be a positive whole number"),
        ("num_hidden_layers", 24.5, "num_hidden_layers is 24.5: it must be a positive whole number"),
        ("hidden_size", 2890, "hidden_size is 2890: it must be a multiple of 32"),
        ("num_experts_per_tok", 33, "experts_per_token is 33: there are only 32 experts"),
        ("rms_norm_eps", -1, "rms_norm_eps is -1: it must be a number greater than 0"),
    ],
)
def test_what_the_model_cannot_represent_is_refused_by_name(tmp_path, path, value, message):
    file = tmp_path / "config.json"
    file.write_text(json.dumps(changed(PUBLISHED_20B, path, value)))
    with pytest.raises(CheckpointError, match=message) as error:
        read_config(file)
    assert str(error.value).startswith(str(file)) and "\n" not in str(error.value)


def test_two_rope_objects_that_disagree_are_refused():
    other = PUBLISHED_20B["rope_scaling"] | {"factor": 8.0}
    with pytest.raises(CheckpointError, match="disagree"):
        parse_config(PUBLISHED_20B | {"rope_parameters": other})


@pytest.mark.parametrize("field", sorted(ORIGINAL_120B))
def test_the_original_form_lacks_no_field(field):
    with pytest.raises(CheckpointError, match=field if field != "num_experts" else "not a gpt-oss model"):
        parse_config(changed(ORIGINAL_120B, field, ...))


@pytest.mark.parametrize("text", ["", "[]", "{", '{"a": 1}'])
def test_a_file_that_is_no_configuration_is_refused(tmp_path, text):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"config\.json"):
        read_config(tmp_path / "config.json")
