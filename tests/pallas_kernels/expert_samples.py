"""Experts, routes and what they give in float64, by definition: the oracle of the TPU kernel."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import jax
import ml_dtypes
import numpy as np
import pytest

from pallas_kernels.expert_matmul import PackedLinear, TiledExperts, WeightLayout, tile_experts, tpu
from pallas_kernels.mxfp4.tiled import CodeFormat
from pallas_kernels.routing import Route

LIMIT = 7.0
LEAN = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
"""Compiler options for programs that take longer to compile than to run."""

CODE_VALUES = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


@contextmanager
def cut_otherwise(changes: dict[str, Any]) -> Iterator[None]:
    """The TPU kernel with another plan than the table's; programs made before or within are forgotten."""
    plan_for = tpu.plan_for
    jax.clear_caches()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tpu, "plan_for", lambda *given: plan_for(*given)._replace(**changes))
        yield
    jax.clear_caches()


@functools.partial(jax.jit, static_argnames=("form", "wide"), compiler_options=LEAN)
def tile_lean(
    gate_up: PackedLinear, down: PackedLinear, form: CodeFormat, wide: tuple[bool, bool] = (False, False)
) -> TiledExperts:
    """`tile_experts` in one program."""
    first, second = (WeightLayout(form, one) for one in wide)
    return tile_experts(gate_up, down, form, layouts=(first, second))


def codes_of(blocks: np.ndarray) -> np.ndarray:
    """uint8 [..., K/2] → uint8 [..., K]: the low nibble first."""
    blocks = np.asarray(blocks)
    return np.stack([blocks % 16, blocks // 16], axis=-1).reshape(*blocks.shape[:-1], -1)


def blocks_of(codes: np.ndarray) -> np.ndarray:
    """Inverse of `codes_of`."""
    return (codes[..., 0::2] + 16 * codes[..., 1::2]).astype(np.uint8)


def weights_of(blocks: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """MXFP4 in float64, from the format's definition: all of its numbers are numbers of float64."""
    powers = np.ldexp(1.0, np.asarray(scales).astype(np.int64) - 127)
    return CODE_VALUES[codes_of(blocks)] * np.repeat(powers, 32, axis=-1)


def random_linear(
    generator: np.random.Generator,
    outputs: tuple[int, ...],
    inputs: int,
    scales: tuple[int, int] = (118, 124),
    bias_dtype: type = ml_dtypes.bfloat16,
) -> PackedLinear:
    """All codes; scales from scales[0] up to, but not including, scales[1]."""
    return PackedLinear(
        generator.integers(0, 256, (*outputs, inputs // 2), dtype=np.uint8),
        generator.integers(*scales, (*outputs, inputs // 32), dtype=np.uint8),
        generator.standard_normal(outputs).astype(bias_dtype),
    )


def random_maps(
    generator: np.random.Generator,
    experts: int,
    hidden: int,
    inner: int,
    scales: tuple[int, int] = (118, 124),
) -> tuple[PackedLinear, PackedLinear]:
    """Maps D → (2, F) and F → D of all experts."""
    return (
        random_linear(generator, (experts, 2, inner), hidden, scales),
        random_linear(generator, (experts, hidden), inner, scales),
    )


def random_route(
    generator: np.random.Generator, tokens: int, experts: int, active: int, style: str = "any"
) -> Route:
    """Styles: *any* expert, and some tokens nowhere; *first*: all tokens to the first experts; *last*: to the
    last ones; *nowhere*: none to any; *few*: only two experts are ever chosen, and some choices are nowhere.
    """
    if style == "any":
        chosen = np.argsort(generator.random((tokens, experts)), axis=1)[:, :active]
        chosen[generator.random(tokens) < 0.2] = experts
    elif style == "few":
        chosen = np.full((tokens, active), experts)
        chosen[:, -1] = np.where(generator.random(tokens) < 0.5, experts // 2, experts - 1)
    else:
        first = {"first": 0, "last": experts - active, "nowhere": experts}[style]
        chosen = np.minimum(np.tile(first + np.arange(active), (tokens, 1)), experts)
    shares = generator.dirichlet(np.ones(active), tokens)
    return Route(chosen.astype(np.int32), shares.astype(np.float32))


class Expected(NamedTuple):
    """What the experts give, float64 [T, D], and Σ share · |weight| · |activation| of the down map."""

    values: np.ndarray
    terms: np.ndarray


def expected(
    x: np.ndarray, route: Route, gate_up: PackedLinear, down: PackedLinear, limit: float = LIMIT
) -> Expected:
    """Token by token and expert by expert."""
    first, second = weights_of(*gate_up[:2]), weights_of(*down[:2])
    first_bias, second_bias = (np.asarray(part.bias).astype(np.float64) for part in (gate_up, down))
    values, terms = np.zeros(x.shape), np.zeros(x.shape)
    for token, (chosen, shares) in enumerate(zip(*map(np.asarray, route), strict=True)):
        for expert, share in zip(chosen, shares.astype(np.float64), strict=True):
            if expert == len(first):
                continue
            gate, up = first[expert] @ x[token].astype(np.float64) + first_bias[expert]
            gate, up = np.minimum(gate, limit), np.clip(up, -limit, limit)
            activation = gate / (1 + np.exp(np.minimum(-1.702 * gate, 700.0))) * (up + 1)
            values[token] += share * (second[expert] @ activation + second_bias[expert])
            terms[token] += share * (np.abs(second[expert]) @ np.abs(activation))
    return Expected(values, terms)


def assert_close(got: np.ndarray, want: Expected) -> None:
    """Holds a result in float32 or bfloat16 to its bound.

    float32: 1e-5 of the largest result. A sum of n float32 products is off by about √n · 2⁻²⁵ of the size of
    its terms; for the n ≤ 320 of these tests that is 5e-7, once in each map, and errors of four times the
    usual size occur. Activations in bfloat16 would be a hundred times worse.

    bfloat16: activations are rounded between the maps, each by at most 2⁻⁸ of itself (a significand has 8
    bits), so the result is off by at most 2⁻⁸ · Σ |terms|; beyond that, 2 ulp of bfloat16 for its own
    rounding, and float32's bound.
    """
    got = np.asarray(got)
    assert got.shape == want.values.shape
    bound = np.full(want.values.shape, 1e-5 * np.abs(want.values).max(initial=0))
    if got.dtype == ml_dtypes.bfloat16:
        ulp = np.ldexp(1.0, np.frexp(want.values)[1] - 8)
        bound += 2.0**-8 * want.terms + 2 * ulp
    else:
        assert got.dtype == np.float32
    error = np.abs(got.astype(np.float64) - want.values)
    assert np.isfinite(error).all()
    assert (error <= bound).all(), f"{np.max(error / bound):.2f} times the bound"
