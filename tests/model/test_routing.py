"""Routing laws: which experts, with what weight, and how the pairs are grouped."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from pallas_kernels.routing import group_by_expert, route

TOKENS, EXPERTS, ACTIVE = 11, 6, 3

_route = jax.jit(route, static_argnums=1)
_group = jax.jit(group_by_expert, static_argnums=1)

logits = st.lists(
    st.lists(st.floats(-30, 30, width=32), min_size=EXPERTS, max_size=EXPERTS, unique=True),
    min_size=TOKENS,
    max_size=TOKENS,
).map(np.float32)
flags = st.lists(st.booleans(), min_size=TOKENS, max_size=TOKENS).map(np.array)
choices = st.lists(
    st.permutations(range(EXPERTS)).map(lambda experts: experts[:ACTIVE]) | st.just([EXPERTS] * ACTIVE),
    min_size=TOKENS,
    max_size=TOKENS,
).map(np.int32)


@settings(max_examples=50, deadline=None)
@given(logits, flags)
def test_the_largest_logits_win_and_share_by_a_softmax_over_them_alone(
    logits: np.ndarray, valid: np.ndarray
) -> None:
    routed = _route(logits, ACTIVE, valid)
    for token in range(TOKENS):
        best = sorted(range(EXPERTS), key=lambda expert: -logits[token, expert])[:ACTIVE]
        powers = np.exp(logits[token, best].astype(np.float64) - logits[token].max())
        expected = best if valid[token] else [EXPERTS] * ACTIVE
        assert routed.experts[token].tolist() == expected
        np.testing.assert_allclose(routed.weights[token], powers / powers.sum(), rtol=1e-5, atol=1e-30)


def test_without_a_mask_every_token_goes_somewhere() -> None:
    routed = route(jnp.eye(EXPERTS), 1)
    assert routed.experts[:, 0].tolist() == list(range(EXPERTS))
    assert routed.weights.tolist() == [[1.0]] * EXPERTS


def test_of_equal_logits_the_first_experts_win() -> None:
    routed = route(jnp.zeros((2, EXPERTS), jnp.bfloat16), ACTIVE)
    assert routed.experts.tolist() == [[0, 1, 2]] * 2


@settings(max_examples=50, deadline=None)
@given(choices)
def test_groups_hold_every_pair_once_by_expert_in_token_order(experts: np.ndarray) -> None:
    groups = _group(experts, EXPERTS)
    pairs = np.asarray(groups.pairs)
    flat = experts.reshape(-1)
    for expert in range(EXPERTS):
        start, count = int(groups.starts[expert]), int(groups.counts[expert])
        assert pairs[start : start + count].tolist() == np.flatnonzero(flat == expert).tolist()
    assert sorted(pairs.tolist()) == list(range(TOKENS * ACTIVE))
    assert (flat[pairs[int(groups.counts.sum()) :]] == EXPERTS).all()
    working = sorted(set(flat.tolist()) - {EXPERTS})
    assert int(groups.num_active) == len(working)
    assert groups.active.tolist() == working + [e for e in range(EXPERTS) if e not in working]
