"""Each operation's check finds faults of that operation: what it runs is patched, its definition is not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gptoss_jax.bench.kernels.attention import SMALL, Case
from gptoss_jax.model import gpt_oss
from gptoss_jax.verify import kernels, logits, oracles
from gptoss_jax.verify.rows import Check, perform
from pallas_kernels import attention, expert_matmul, mxfp4

Patch = pytest.MonkeyPatch


def check(name: str) -> Check:
    return next(one for one in kernels.checks("float32", small=True) if one.name == name)


def failing(name: str) -> str:
    """What a check measures that must fail."""
    row = perform(check(name))
    assert row.status == "failed", row.measured
    assert "wrong on this device" in row.meaning
    return row.measured


def test_a_wrong_decoding_of_mxfp4_is_found(monkeypatch: Patch) -> None:
    assert perform(check("MXFP4")).status == "passed"
    monkeypatch.setattr(mxfp4, "decode", lambda blocks, scales: -_decode(blocks, scales))
    assert "129,0" in failing("MXFP4") or "differ" in failing("MXFP4")


_decode = mxfp4.decode


def test_a_wrong_route_is_found(monkeypatch: Patch) -> None:
    def worst(logits: jax.Array, experts_per_token: int) -> Any:
        found = _route(logits, experts_per_token)
        return found._replace(experts=found.experts[:, ::-1])

    _route = kernels.route
    monkeypatch.setattr(kernels, "route", worst)
    assert "84 of 84 choices differ" in failing("routing")


def test_an_entry_in_the_wrong_row_is_found(monkeypatch: Patch) -> None:
    def shifted(pool: jax.Array, entries: jax.Array, pages: jax.Array, rows: jax.Array) -> jax.Array:
        return pool.at[pages[:1], :, :, rows[:1] - 1].set(entries[:1])

    monkeypatch.setattr(attention, "store_entries", shifted)
    failing("storing")


FAULTS: dict[str, Callable[..., Callable[..., jax.Array]]] = {
    "the sign of a query": lambda right: lambda q, *rest, **options: right(-q, *rest, **options),
    "no sinks": lambda right: lambda *given, **options: right(*given[:4], given[4] - 1e4, **options),
    "the sink of another head": lambda right: (
        lambda *given, **options: right(*given[:4], given[4][::-1], **options)
    ),
    "a window of one key more": lambda right: lambda *given, window: right(*given, window=window + 1),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", FAULTS)
def test_a_wrong_attention_is_found(name: str, monkeypatch: Patch) -> None:
    case = Case("decode_ring", 2, 1, 19, SMALL, SMALL.window - 1)  # a ring holds one key more than is seen
    monkeypatch.setattr(kernels, "cases", lambda *_, **__: [case])
    assert perform(check("attention")).status == "passed"
    monkeypatch.setattr(attention, "decode_ring", FAULTS[name](attention.decode_ring))
    failing("attention")


@pytest.mark.slow
def test_wrong_experts_are_found(monkeypatch: Patch) -> None:
    def swapped(right: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
        def run(x: jax.Array, route: Any, gate_up: Any, down: Any, limit: float) -> jax.Array:
            return right(x, route, type(gate_up)(*(part[:, ::-1] for part in gate_up)), down, limit)

        return run

    def unclamped(right: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
        return lambda *given: right(*given[:4], 1e9)

    assert perform(check("experts")).status == "passed"
    for fault in (swapped, unclamped):
        monkeypatch.setattr(kernels, "expert_mlp", fault(expert_matmul.expert_mlp))
        failing("experts")


@pytest.mark.parametrize(
    "fault", ["plain RoPE", pytest.param("neighbours", marks=pytest.mark.slow), "no attention factor"]
)
def test_wrong_rotary_positions_are_found(fault: str, monkeypatch: Patch) -> None:
    assert perform(logits.rotary_check()).status == "passed"
    right = gpt_oss.yarn_frequencies

    def plain(config: Any) -> tuple[np.ndarray, float]:
        pairs = config.head_size // 2
        return (config.rope_theta ** -(np.arange(pairs) / pairs)).astype(np.float32), right(config)[1]

    def neighbours(x: jax.Array, cos: jax.Array, sin: jax.Array) -> jax.Array:
        cos, sin = cos[:, :, None], sin[:, :, None]
        turned = [x[..., ::2] * cos - x[..., 1::2] * sin, x[..., 1::2] * cos + x[..., ::2] * sin]
        return jnp.stack(turned, axis=-1).reshape(x.shape)

    if fault == "plain RoPE":
        monkeypatch.setattr(gpt_oss, "yarn_frequencies", plain)
    elif fault == "neighbours":
        monkeypatch.setattr(gpt_oss, "rotate", neighbours)
    else:
        monkeypatch.setattr(gpt_oss, "yarn_frequencies", lambda config: (right(config)[0], 1.0))
    assert perform(logits.rotary_check()).status == "failed"


def test_rounding_to_bfloat16_is_within_its_bound_and_beyond_that_of_float32() -> None:
    generator = np.random.default_rng(0)
    left, right = generator.standard_normal((40, 300)), generator.standard_normal((300, 50))
    expected = oracles.Expected(left @ right, np.abs(left) @ np.abs(right))
    rounded = np.asarray(jnp.asarray(left, jnp.bfloat16), np.float64) @ right
    got = np.asarray(jnp.asarray(rounded, jnp.bfloat16))
    assert 0.05 < oracles.times_the_bound(got, expected, True) <= 1
    assert oracles.times_the_bound(got, expected, False) > 10
    assert oracles.times_the_bound(np.full_like(got, np.nan), expected, True) == float("inf")
