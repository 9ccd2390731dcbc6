"""The expert computation against float64 numpy that walks over tokens and experts one by one."""

from __future__ import annotations

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from hypothesis import given, settings
from hypothesis import strategies as st

from checkpoints.config import ModelConfig
from gptoss_jax.model import gpt_oss
from pallas_kernels.expert_matmul import PackedLinear, clamped_swiglu, expert_mlp
from pallas_kernels.routing import Route

TOKENS, HIDDEN, INNER, EXPERTS, ACTIVE, LIMIT = 9, 64, 32, 5, 2, 3.0
NOWHERE = EXPERTS

_expert_mlp = jax.jit(expert_mlp, static_argnums=4)


def random_maps(seed: int) -> tuple[PackedLinear, PackedLinear]:
    """Packed gate-and-up and down maps whose activations often meet LIMIT."""
    generator = np.random.default_rng(seed)

    def packed(outputs: tuple[int, ...], inputs: int) -> PackedLinear:
        return PackedLinear(
            generator.integers(0, 256, (EXPERTS, *outputs, inputs // 2), dtype=np.uint8),
            generator.integers(121, 126, (EXPERTS, *outputs, inputs // 32), dtype=np.uint8),
            generator.standard_normal((EXPERTS, *outputs)).astype(np.float32),
        )

    return packed((2, INNER), HIDDEN), packed((HIDDEN,), INNER)


def unpack(blocks: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """MXFP4 in float64, nibble by nibble, from the format's definition."""
    values = [0, 0.5, 1, 1.5, 2, 3, 4, 6]
    table = np.array(values + [-value for value in values])
    codes = np.empty((*blocks.shape[:-1], blocks.shape[-1] * 2), np.uint8)
    codes[..., 0::2], codes[..., 1::2] = blocks % 16, blocks // 16
    return table[codes] * np.repeat(2.0 ** (scales.astype(float) - 127), 32, axis=-1)


def oracle(
    x: np.ndarray, experts: np.ndarray, weights: np.ndarray, gate_up: PackedLinear, down: PackedLinear
) -> np.ndarray:
    wide, narrow = unpack(*gate_up[:2]), unpack(*down[:2])
    out = np.zeros(x.shape)
    for token, (chosen, shares) in enumerate(zip(experts, weights, strict=True)):
        for expert, share in zip(chosen, shares, strict=True):
            if expert == NOWHERE:
                continue
            gate, up = wide[expert] @ x[token].astype(float) + gate_up.bias[expert]
            gate, up = np.minimum(gate, LIMIT), np.clip(up, -LIMIT, LIMIT)
            inner = gate / (1 + np.exp(-1.702 * gate)) * (up + 1)
            out[token] += share * (narrow[expert] @ inner + down.bias[expert])
    return out


def check(tokens: int, experts: np.ndarray, seed: int) -> np.ndarray:
    generator = np.random.default_rng(seed)
    x = generator.standard_normal((tokens, HIDDEN)).astype(np.float32)
    weights = generator.dirichlet(np.ones(experts.shape[1]), tokens).astype(np.float32)
    gate_up, down = random_maps(seed)
    result = np.asarray(_expert_mlp(x, Route(experts, weights), gate_up, down, LIMIT))
    expected = oracle(x, experts, weights, gate_up, down)
    np.testing.assert_allclose(result, expected, rtol=0, atol=1e-5 * max(1.0, np.abs(expected).max()))
    return result


choices = st.lists(
    st.permutations(range(EXPERTS)).map(lambda experts: experts[:ACTIVE]) | st.just([NOWHERE] * ACTIVE),
    min_size=TOKENS,
    max_size=TOKENS,
).map(np.int32)


@settings(max_examples=40, deadline=None)
@given(choices, st.integers(0, 100))
def test_each_token_gets_the_weighted_sum_of_its_experts_and_nothing_is_dropped(
    experts: np.ndarray, seed: int
) -> None:
    result = check(TOKENS, experts, seed)
    assert not result[experts[:, 0] == NOWHERE].any()


@pytest.mark.parametrize("tokens", [1, 2, 300])
@pytest.mark.parametrize("expert", [0, EXPERTS - 1])
def test_all_tokens_may_choose_the_same_expert(tokens: int, expert: int) -> None:
    check(tokens, np.full((tokens, 1), expert, np.int32), seed=tokens)


def test_no_token_at_all_has_work() -> None:
    assert not check(TOKENS, np.full((TOKENS, ACTIVE), NOWHERE, np.int32), seed=0).any()


def test_every_expert_may_work_on_every_token() -> None:
    check(TOKENS, np.tile(np.arange(EXPERTS, dtype=np.int32)[::-1], (TOKENS, 1)), seed=1)


def test_a_tokens_result_does_not_depend_on_where_it_stands_or_who_stands_beside_it() -> None:
    generator = np.random.default_rng(3)
    x = generator.standard_normal((TOKENS, HIDDEN)).astype(np.float32)
    experts = np.stack([generator.permutation(EXPERTS)[:ACTIVE] for _ in range(TOKENS)]).astype(np.int32)
    weights = np.full((TOKENS, ACTIVE), 0.5, np.float32)
    maps = random_maps(3)
    together = np.asarray(_expert_mlp(x, Route(experts, weights), *maps, LIMIT))
    order = generator.permutation(TOKENS)
    moved = np.asarray(_expert_mlp(x[order], Route(experts[order], weights), *maps, LIMIT))
    np.testing.assert_array_equal(moved, together[order])
    others_leave = experts.copy()
    others_leave[1:] = NOWHERE
    alone = np.asarray(_expert_mlp(x, Route(others_leave, weights), *maps, LIMIT))
    np.testing.assert_array_equal(alone[0], together[0])


@pytest.mark.parametrize("swiglu", [gpt_oss.clamped_swiglu, clamped_swiglu], ids=["plain model", "kernels"])
@pytest.mark.parametrize("gate", [-100.0, -8.0, 0.0, 2.5, 6.999, 7.0, 50.0])
@pytest.mark.parametrize("up", [-50.0, -7.0, -1.0, 0.5, 7.0, 50.0])
def test_swiglu_clamps_gate_above_only_and_up_on_both_sides(
    swiglu: Callable[..., jax.Array], gate: float, up: float
) -> None:
    kept = min(gate, 7.0)
    expected = kept / (1 + math.exp(-1.702 * kept)) * (min(max(up, -7.0), 7.0) + 1)
    got = float(swiglu(jnp.float32(gate), jnp.float32(up), 7.0))
    assert got == pytest.approx(expected, rel=1e-5, abs=1e-30)


def test_the_plain_models_experts_are_the_weighted_sum_of_each_tokens_own() -> None:
    config = ModelConfig(
        num_layers=1,
        vocabulary_size=8,
        hidden_size=HIDDEN,
        intermediate_size=INNER,
        num_heads=1,
        num_kv_heads=1,
        head_size=2,
        num_experts=EXPERTS,
        experts_per_token=ACTIVE,
        sliding_window=1,
        swiglu_limit=LIMIT,
    )
    layer = gpt_oss.Experts(config, dtype=jnp.float32, rngs=nnx.Rngs(0))
    packed = random_maps(4)
    for linear, arrays in zip((layer.gate_up, layer.down), packed, strict=True):
        linear.blocks[...], linear.scales[...], linear.bias[...] = map(jnp.asarray, arrays)
    generator = np.random.default_rng(4)
    x = generator.standard_normal((TOKENS, HIDDEN)).astype(np.float32)
    experts = np.stack([generator.permutation(EXPERTS)[:ACTIVE] for _ in range(TOKENS)]).astype(np.int32)
    weights = generator.dirichlet(np.ones(ACTIVE), TOKENS).astype(np.float32)
    expected = oracle(x, experts, weights, *packed)
    result = np.asarray(layer(jnp.asarray(x), jnp.asarray(experts), jnp.asarray(weights)))
    np.testing.assert_allclose(result, expected, rtol=0, atol=1e-5 * max(1.0, np.abs(expected).max()))
