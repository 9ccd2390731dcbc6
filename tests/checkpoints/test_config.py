"""Both published forms of config.json, and the values that the model cannot represent."""

import copy
import dataclasses
import json
import math

import pytest

from checkpoints.config import GPT_OSS_20B, GPT_OSS_120B, CheckpointError
from checkpoints.published_config import (
    HUGGINGFACE_FIELDS,
    huggingface_config,
    original_config,
    parse_config,
    read_config,
)

PUBLISHED_20B = {  # the published file, whole
    "architectures": ["GptOssForCausalLM"],
    "attention_bias": True,
    "attention_dropout": 0.0,
    "eos_token_id": 200002,
    "experts_per_token": 4,
    "head_dim": 64,
    "hidden_act": "silu",
    "hidden_size": 2880,
    "initial_context_length": 4096,
    "initializer_range": 0.02,
    "intermediate_size": 2880,
    "layer_types": ["sliding_attention", "full_attention"] * 12,
    "max_position_embeddings": 131072,
    "model_type": "gpt_oss",
    "num_attention_heads": 64,
    "num_experts_per_tok": 4,
    "num_hidden_layers": 24,
    "num_key_value_heads": 8,
    "num_local_experts": 32,
    "output_router_logits": False,
    "pad_token_id": 199999,
    "quantization_config": {
        "modules_to_not_convert": [
            "model.layers.*.self_attn",
            "model.layers.*.mlp.router",
            "model.embed_tokens",
            "lm_head",
        ],
        "quant_method": "mxfp4",
    },
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
    "router_aux_loss_coef": 0.9,
    "sliding_window": 128,
    "swiglu_limit": 7.0,
    "tie_word_embeddings": False,
    "transformers_version": "4.55.0.dev0",
    "use_cache": True,
    "vocab_size": 201088,
}
PUBLISHED_120B = PUBLISHED_20B | {
    "num_hidden_layers": 36,
    "num_local_experts": 128,
    "layer_types": ["sliding_attention", "full_attention"] * 18,
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
ORIGINAL_20B = ORIGINAL_120B | {"num_hidden_layers": 24, "num_experts": 32}
TRANSFORMERS_FIELDS = [  # every field that transformers 5.23 writes for this family; a live test compares
    "_name_or_path",
    "architectures",
    "attention_bias",
    "attention_dropout",
    "bos_token_id",
    "chunk_size_feed_forward",
    "dtype",
    "eos_token_id",
    "head_dim",
    "hidden_act",
    "hidden_size",
    "id2label",
    "initializer_range",
    "intermediate_size",
    "is_encoder_decoder",
    "label2id",
    "layer_types",
    "max_position_embeddings",
    "model_type",
    "num_attention_heads",
    "num_experts_per_tok",
    "num_hidden_layers",
    "num_key_value_heads",
    "num_local_experts",
    "output_attentions",
    "output_hidden_states",
    "output_router_logits",
    "pad_token_id",
    "problem_type",
    "return_dict",
    "rms_norm_eps",
    "rope_parameters",
    "router_aux_loss_coef",
    "sliding_window",
    "swiglu_alpha",
    "swiglu_limit",
    "tie_word_embeddings",
    "transformers_version",
    "use_cache",
    "vocab_size",
]


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


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        (PUBLISHED_20B, ("huggingface", GPT_OSS_20B)),
        (PUBLISHED_120B, ("huggingface", GPT_OSS_120B)),
        (ORIGINAL_20B, ("original", GPT_OSS_20B)),
        (ORIGINAL_120B, ("original", GPT_OSS_120B)),
    ],
)
def test_the_published_files_give_the_published_models(fields, expected):
    assert parse_config(fields) == expected


def test_every_field_that_anybody_writes_is_in_the_table():
    known = {*PUBLISHED_20B, *TRANSFORMERS_FIELDS, *huggingface_config(GPT_OSS_20B, "rope_parameters")}
    assert known - set(HUGGINGFACE_FIELDS) == set()


@pytest.mark.parametrize("field", [name for name, what in HUGGINGFACE_FIELDS.items() if what != "no effect"])
def test_a_field_that_is_used_or_checked_is_not_ignored(field):
    with pytest.raises(CheckpointError):
        parse_config(PUBLISHED_20B | {field: "bogus"})


@pytest.mark.parametrize("field", [name for name, what in HUGGINGFACE_FIELDS.items() if what == "no effect"])
def test_a_field_without_effect_may_hold_anything_and_so_may_one_that_nobody_knows(field):
    expected = parse_config(PUBLISHED_20B)
    for value in (None, 7, "bogus", [], {}):
        assert parse_config(PUBLISHED_20B | {field: value, "unsloth_fixed": True}) == expected


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
        ("model_type", "llama", 'model_type is "llama": it must be "gpt_oss"'),
        ("hidden_act", "gelu", 'hidden_act is "gelu": it must be "silu"'),
        ("attention_bias", False, "attention_bias is false: it must be true"),
        ("attention_bias", 1, "attention_bias is 1: it must be true"),
        ("tie_word_embeddings", True, "tie_word_embeddings is true: it must be false"),
        ("swiglu_alpha", 1.0, "swiglu_alpha is 1.0: it must be 1.702"),
        ("layer_types", ["full_attention"] * 24, "layer_types is .* must alternate, 24 long"),
        ("layer_types", ["sliding_attention", "full_attention"], "layer_types is .* must alternate, 24 long"),
        ("quantization_config.quant_method", "bitsandbytes", 'quant_method is "bitsandbytes"'),
        ("rope_scaling.truncate", True, "rope_scaling.truncate is true: it must be false"),
        ("rope_scaling.truncate", ..., "rope_scaling.truncate is true: it must be false"),
        ("rope_scaling.rope_type", "linear", 'rope_scaling.rope_type is "linear": it must be "yarn"'),
        ("rope_scaling.factor", "32", 'rope_scaling.factor is "32": it must be a number from 1 to 1,000,000'),
        ("rope_scaling.factor", ..., "has no rope_scaling.factor"),
        (
            "rope_scaling.attention_factor",
            1.0,
            "rope_scaling.attention_factor scales by 1.0: it must scale by 1.34",
        ),
        ("rope_scaling.rope_theta", 1e4, "rope_scaling.rope_theta is 10000.0: it must be 150000"),
        ("rope_scaling", ..., "neither rope_scaling nor rope_parameters"),
        ("rope_theta", ..., "has no rope_scaling.rope_theta"),
        ("num_local_experts", ..., "has no num_local_experts"),
        ("num_hidden_layers", 0, "num_hidden_layers is 0: it must be a whole number from 1 to 1,024"),
        ("num_hidden_layers", 24.5, "num_hidden_layers is 24.5: it must be a whole number from 1 to 1,024"),
        ("hidden_size", 2890, "hidden_size is 2890: it must be a multiple of 32"),
        ("num_local_experts", 3, "experts_per_token is 4: there are only 3 experts"),
        ("rms_norm_eps", -1, "rms_norm_eps is -1: it must be a number from 1e-30 to 1"),
        ("rms_norm_eps", "1e-5", 'rms_norm_eps is "1e-5": it must be a number'),
        (
            "num_hidden_layers",
            10**9,
            "num_hidden_layers is 1000000000: it must be a whole number from 1 to 1,024",
        ),
        ("vocab_size", 10**300, "vocab_size is 10+…: it must be a whole number from 1 to 16,777,216"),
        ("hidden_size", True, "hidden_size is true: it must be a whole number"),
        ("head_dim", None, "has no head_dim"),
        ("head_dim", 63, "head_size is 63: it must be even"),
        ("sliding_window", None, "has no sliding_window"),
        ("rope_theta", 1.0, r"rope_theta is 1.0: it must be a number from 1.01 to 1e\+30"),
        ("rope_theta", 1e-300, "rope_theta is 1e-300: it must be a number from 1.01"),
        ("experts_per_token", 3, "experts_per_token is 3, but num_experts_per_tok is 4"),
        ("num_experts", 33, "num_experts is 33, but num_local_experts is 32"),
        ("initial_context_length", 8192, "initial_context_length is 8192: it must be 4096"),
        (
            "original_max_position_embeddings",
            8192,
            "original_max_position_embeddings is 8192: it must be 4096",
        ),
        ("partial_rotary_factor", 0.5, "partial_rotary_factor is 0.5: it must be 1.0"),
        ("per_layer_config", {"0": {}}, "per_layer_config is .* it must be null"),
        ("is_encoder_decoder", True, "is_encoder_decoder is true: it must be false"),
        ("max_position_embeddings", 0, "max_position_embeddings is 0: it must be a whole number from 1"),
        ("eos_token_id", "</s>", 'eos_token_id is "</s>": it must be a token or a list of tokens'),
        (
            "layer_types",
            ["full_attention"] * 100_000,
            "layer_types is .{110}… it must alternate|layer_types is",
        ),
        ("rope_scaling.mscale", "1", 'rope_scaling.mscale is "1": it must be a number'),
        ("rope_scaling.factor", 0.5, "rope_scaling.factor is 0.5: it must be a number from 1"),
        (
            "rope_scaling.beta_fast",
            0.5,
            "yarn_beta_fast is 0.5: it must not be less than yarn_beta_slow, 1.0",
        ),
        (
            "rope_scaling.partial_rotary_factor",
            0.5,
            "rope_scaling.partial_rotary_factor is 0.5: it must be 1.0",
        ),
        ("rope_scaling.type", "dynamic", 'rope_scaling.type is "dynamic": it must be "yarn"'),
        ("rope_scaling.long_factor", [1], "rope_scaling.long_factor is not known"),
        ("rope_scaling.original_max_position_embeddings", 4, "initial_context_length is 4096: it must be 4"),
    ],
)
def test_what_the_model_cannot_represent_is_refused_by_name(tmp_path, path, value, message):
    file = tmp_path / "config.json"
    file.write_text(json.dumps(changed(PUBLISHED_20B, path, value)))
    with pytest.raises(CheckpointError, match=message) as error:
        read_config(file)
    assert str(error.value).startswith(str(file)) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("scales", "accepted"),
    [
        ({"mscale": 1.0, "mscale_all_dim": 1.0}, False),  # the cosines would be scaled by 1
        ({"mscale": 0.707, "mscale_all_dim": 1.0}, False),
        ({"mscale": 1.0}, True),  # transformers looks at both or at none
        ({"mscale": 1.0, "mscale_all_dim": 0}, True),
        ({"mscale": None, "mscale_all_dim": 1.0}, True),
        ({"mscale": 1.0, "mscale_all_dim": 1.0, "attention_factor": 0.1 * math.log(32) + 1}, True),
        ({"attention_factor": 0}, False),
    ],
)
def test_what_scales_the_cosines_is_yarns_own_factor(scales, accepted):
    fields = PUBLISHED_20B | {"rope_scaling": PUBLISHED_20B["rope_scaling"] | scales}
    if accepted:
        assert parse_config(fields) == ("huggingface", GPT_OSS_20B)
    else:
        with pytest.raises(CheckpointError, match=r"scales by [\d.]+: it must scale by 1\.34657"):
            parse_config(fields)


@pytest.mark.parametrize(
    ("length", "theta", "betas"),
    [(4, 150_000.0, (32, 1)), (1, 150_000.0, (32, 1)), (1 << 24, 1.5, (32, 1)), (60, 10_000.0, (64, 16))],
)
def test_constants_on_which_implementations_of_yarn_differ_are_refused(length, theta, betas):
    fields = ORIGINAL_120B | {"initial_context_length": length, "rope_theta": theta}
    fields |= {"rope_ntk_beta": betas[0], "rope_ntk_alpha": betas[1]}
    with pytest.raises(CheckpointError, match="no dimension turns between"):
        parse_config(fields)


def test_the_contexts_length_is_read_and_not_computed_with():
    config = parse_config(PUBLISHED_20B | {"max_position_embeddings": 65_536})[1]
    assert config == dataclasses.replace(GPT_OSS_20B, context_length=65_536)
    assert parse_config(ORIGINAL_20B | {"rope_scaling_factor": 8.0})[1].context_length == 32_768


@pytest.mark.parametrize(
    "text",
    [
        '{"num_hidden_layers": 24, "num_hidden_layers": 12, "model_type": "gpt_oss"}',
        '{"model_type": "gpt_oss", "hidden_size": NaN}',
        '{"model_type": "gpt_oss", "hidden_size": 1e999}',
        '{"model_type": "gpt_oss", "hidden_size": ' + "9" * 5000 + "}",
        '{"a": ' + "[" * 100_000 + "]" * 100_000 + "}",
        '{"a": ' + "[" * 200 + "]" * 200 + "}",
        '{"a": "\\ud800"}',
        "\ufeff{}",
        " " * (5 << 20) + "{}",
    ],
)
def test_what_only_some_programs_take_for_json_is_refused(tmp_path, text):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(CheckpointError) as error:
        read_config(tmp_path / "config.json")
    assert str(error.value).startswith(str(tmp_path / "config.json")) and "\n" not in str(error.value)
    assert len(str(error.value)) < 400


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
