"""The list of parameters against the published numbers."""

import math

import numpy as np
import pytest

from checkpoints.config import GPT_OSS_20B, GPT_OSS_120B
from checkpoints.parameters import count_parameters, parameter_specs
from checkpoints.published import published_tensors, sources
from tests.checkpoints.small_model import SMALL


@pytest.mark.parametrize(
    ("config", "total", "active"), [(GPT_OSS_20B, 20.9, 3.6), (GPT_OSS_120B, 116.8, 5.1)]
)
def test_the_counts_are_those_of_the_model_card(config, total, active):
    count = count_parameters(config)
    assert (round(count.total / 1e9, 1), round(count.active / 1e9, 1)) == (total, active)


def test_the_published_layouts_have_their_published_tensors():
    huggingface = published_tensors(GPT_OSS_20B, "huggingface")
    original = published_tensors(GPT_OSS_20B, "original")
    assert (len(huggingface), len(original)) == (24 * 19 + 3, 24 * 15 + 3)
    shapes = {name: (str(dtype), *shape) for name, (shape, dtype) in (huggingface | original).items()}
    layer, block = "model.layers.23.", "block.23."
    expected = {
        "model.embed_tokens.weight": ("bfloat16", 201088, 2880),
        "model.norm.weight": ("bfloat16", 2880),
        "lm_head.weight": ("bfloat16", 201088, 2880),
        layer + "input_layernorm.weight": ("bfloat16", 2880),
        layer + "self_attn.q_proj.weight": ("bfloat16", 4096, 2880),
        layer + "self_attn.k_proj.weight": ("bfloat16", 512, 2880),
        layer + "self_attn.v_proj.bias": ("bfloat16", 512),
        layer + "self_attn.o_proj.weight": ("bfloat16", 2880, 4096),
        layer + "self_attn.sinks": ("bfloat16", 64),
        layer + "post_attention_layernorm.weight": ("bfloat16", 2880),
        layer + "mlp.router.weight": ("bfloat16", 32, 2880),
        layer + "mlp.router.bias": ("bfloat16", 32),
        layer + "mlp.experts.gate_up_proj_blocks": ("uint8", 32, 5760, 90, 16),
        layer + "mlp.experts.gate_up_proj_scales": ("uint8", 32, 5760, 90),
        layer + "mlp.experts.gate_up_proj_bias": ("bfloat16", 32, 5760),
        layer + "mlp.experts.down_proj_blocks": ("uint8", 32, 2880, 90, 16),
        layer + "mlp.experts.down_proj_scales": ("uint8", 32, 2880, 90),
        layer + "mlp.experts.down_proj_bias": ("bfloat16", 32, 2880),
        "embedding.weight": ("bfloat16", 201088, 2880),
        "norm.scale": ("bfloat16", 2880),
        "unembedding.weight": ("bfloat16", 201088, 2880),
        block + "attn.norm.scale": ("bfloat16", 2880),
        block + "attn.qkv.weight": ("bfloat16", 5120, 2880),
        block + "attn.qkv.bias": ("bfloat16", 5120),
        block + "attn.sinks": ("bfloat16", 64),
        block + "attn.out.weight": ("bfloat16", 2880, 4096),
        block + "attn.out.bias": ("bfloat16", 2880),
        block + "mlp.norm.scale": ("bfloat16", 2880),
        block + "mlp.gate.weight": ("bfloat16", 32, 2880),
        block + "mlp.gate.bias": ("bfloat16", 32),
        block + "mlp.mlp1_weight.blocks": ("uint8", 32, 5760, 90, 16),
        block + "mlp.mlp1_weight.scales": ("uint8", 32, 5760, 90),
        block + "mlp.mlp1_bias": ("bfloat16", 32, 5760),
        block + "mlp.mlp2_weight.blocks": ("uint8", 32, 2880, 90, 16),
        block + "mlp.mlp2_weight.scales": ("uint8", 32, 2880, 90),
        block + "mlp.mlp2_bias": ("bfloat16", 32, 2880),
    }
    assert {name: shapes.get(name) for name in expected} == expected


@pytest.mark.parametrize("layout", ["huggingface", "original"])
def test_every_published_number_belongs_to_exactly_one_parameter(layout):
    covered = {
        name: np.zeros(shape, np.int8) for name, (shape, _) in published_tensors(SMALL, layout).items()
    }
    for source in sources(SMALL, layout).values():
        view = source.view(covered[source.tensor])
        assert np.shares_memory(view, covered[source.tensor])
        view += 1
    assert all((tensor == 1).all() for tensor in covered.values())
    assert sum(math.prod(spec.shape) for spec in parameter_specs(SMALL).values()) == sum(
        tensor.size for tensor in covered.values()
    )
