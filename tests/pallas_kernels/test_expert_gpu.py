"""The GPU kernels of the experts: interpreted against float64, their PTX run in numpy, lowered for Hopper."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from gptoss_jax.bench.kernels.hopper import KERNEL_CALL, lower_for_hopper
from pallas_kernels.expert_matmul import PackedLinear, gpu, gpu_decoding
from pallas_kernels.platform import using
from pallas_kernels.routing import Route
from tests.pallas_kernels.marks import slow

LIMIT = 7.0
VALUES = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


def unpack(blocks: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """MXFP4 in float64, from the format's definition."""
    codes = np.empty((*blocks.shape[:-1], blocks.shape[-1] * 2), np.uint8)
    codes[..., 0::2], codes[..., 1::2] = blocks % 16, blocks // 16
    return VALUES[codes] * np.repeat(2.0 ** (scales.astype(float) - 127), 32, axis=-1)


def random_maps(
    generator: np.random.Generator, experts: int, hidden: int, inner: int
) -> tuple[PackedLinear, PackedLinear]:
    def packed(outputs: tuple[int, ...], inputs: int) -> PackedLinear:
        return PackedLinear(
            generator.integers(0, 256, (experts, *outputs, inputs // 2), dtype=np.uint8),
            generator.integers(118, 124, (experts, *outputs, inputs // 32), dtype=np.uint8),
            generator.standard_normal((experts, *outputs)).astype(ml_dtypes.bfloat16),
        )

    return packed((2, inner), hidden), packed((hidden,), inner)


def oracle(x: np.ndarray, route: Route, gate_up: PackedLinear, down: PackedLinear) -> tuple[np.ndarray, ...]:
    """The result, and what a relative error of one in every product's inner operand could change in it."""
    wide, narrow = unpack(*gate_up[:2]), unpack(*down[:2])
    out, doubt = np.zeros(x.shape), np.zeros(x.shape)
    for token, (chosen, shares) in enumerate(zip(route.experts, route.weights, strict=True)):
        for expert, share in zip(chosen, shares, strict=True):
            if expert == len(wide):
                continue
            gate, up = wide[expert] @ x[token].astype(float) + gate_up.bias[expert].astype(float)
            gate, up = np.minimum(gate, LIMIT), np.clip(up, -LIMIT, LIMIT)
            inner = gate / (1 + np.exp(-1.702 * gate)) * (up + 1)
            out[token] += share * (narrow[expert] @ inner + down.bias[expert].astype(float))
            doubt[token] += share * (np.abs(narrow[expert]) @ np.abs(inner))
    return out, doubt


def check(tokens: int, experts: int, active: int, hidden: int, inner: int, dtype: type, style: str) -> None:
    generator = np.random.default_rng(tokens + 1000 * experts)
    x = generator.standard_normal((tokens, hidden)).astype(dtype)
    if style == "one":
        chosen = np.tile(np.arange(active, dtype=np.int32), (tokens, 1))
    else:
        chosen = np.argsort(generator.random((tokens, experts)), axis=1)[:, :active].astype(np.int32)
        chosen[generator.random(tokens) < 0.2] = experts
    route = Route(chosen, generator.dirichlet(np.ones(active), tokens).astype(np.float32))
    gate_up, down = random_maps(generator, experts, hidden, inner)
    if style == "far":
        gate_up.scales[0, 1, 3, 1] = 131
        down.scales[-1, 5, 0] = gpu_decoding.LARGEST_NEAR + 1

    def run(*arguments: object) -> jax.Array:
        with using("reference"):
            return gpu.expert_mlp(*arguments, LIMIT, interpret=True)

    got = np.asarray(jax.jit(run)(x, route, gate_up, down), np.float64)
    expected, doubt = oracle(x, route, gate_up, down)
    if dtype == np.float32:
        np.testing.assert_allclose(
            got, expected, rtol=0, atol=1e-5 * max(1.0, np.abs(expected).max(initial=0))
        )
    else:
        # Rounding the activations and the result to bfloat16, each by at most half of 2^-7 of its size; the
        # activations' roundings are independent, so a tenth of their worst sum is already many deviations.
        assert (np.abs(got - expected) <= 2.0**-8 * (np.abs(expected) + doubt) + 1e-3).all()
    assert not got[(chosen == experts).all(axis=1)].any()


@pytest.mark.parametrize(
    ("tokens", "experts", "active", "hidden", "inner", "style", "dtype"),
    [
        (0, 4, 2, 64, 32, "any", np.float32),
        slow(1, 4, 2, 64, 32, "any", np.float32),
        (1, 4, 2, 64, 96, "any", ml_dtypes.bfloat16),
        slow(5, 128, 4, 64, 96, "any", np.float32),
        slow(9, 1, 1, 96, 64, "any", np.float32),
        slow(64, 6, 2, 32, 160, "any", ml_dtypes.bfloat16),
        slow(33, 5, 2, 288, 64, "one", ml_dtypes.bfloat16),
        slow(300, 6, 3, 64, 32, "any", np.float32),
        slow(7, 3, 2, 64, 32, "far", np.float32),
        slow(300, 2, 1, 64, 32, "any", ml_dtypes.bfloat16),
    ],
)
def test_each_token_gets_the_weighted_sum_of_its_experts(
    tokens: int, experts: int, active: int, hidden: int, inner: int, style: str, dtype: type
) -> None:
    check(tokens, experts, active, hidden, inner, dtype, style)


@pytest.mark.slow
@pytest.mark.parametrize("tokens", [1, 3])
def test_tokens_routed_nowhere_come_back_as_zeros(tokens: int) -> None:
    maps = random_maps(np.random.default_rng(0), 4, 64, 32)
    route = Route(np.full((tokens, 2), 4, np.int32), np.full((tokens, 2), 0.5, np.float32))
    with using("reference"):
        out = gpu.expert_mlp(jnp.ones((tokens, 64)), route, *maps, LIMIT, interpret=True)
    np.testing.assert_array_equal(out, np.zeros((tokens, 64)))


FAR = pytest.mark.parametrize("far", [False, True])


@FAR
def test_interpreted_decoding_is_exact_for_every_pair_of_codes_under_every_scale(far: bool) -> None:
    codes = np.arange(16, dtype=np.uint8)
    pairs = (codes[:, None] | codes[None, :] << 4).reshape(-1)
    scales = np.arange(256 if far else gpu_decoding.LARGEST_NEAR + 1).astype(np.uint8)
    blocks = np.tile(pairs.reshape(16, 16), (len(scales), 1))
    even, odd = gpu_decoding.decode(blocks, np.repeat(scales, 16)[:, None], far=far, interpret=True)
    weights = unpack(blocks, np.repeat(scales, 16)[:, None])
    with np.errstate(over="ignore"):
        expected = weights.astype(ml_dtypes.bfloat16)
    for half, got in enumerate((even, odd)):
        np.testing.assert_array_equal(
            np.asarray(got).view(np.uint16), expected[:, half::2].view(np.uint16), err_msg=str(half)
        )


def run_ptx(code: str, registers: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Runs straight-line PTX on arrays of uint32, one lane an element; knows what the decoder uses."""
    registers = dict(registers)
    words = registers["$2"]

    def value(operand: str) -> np.ndarray:
        return registers[operand] if operand in registers else np.full_like(words, int(operand, 0))

    def halves(word: np.ndarray) -> np.ndarray:
        parts = np.stack([word & 0xFFFF, word >> 16]).astype(np.uint16)
        return parts.view(ml_dtypes.bfloat16).astype(np.float64)

    def prmt(low: np.ndarray, high: np.ndarray, selector: np.ndarray) -> np.ndarray:
        source = np.asarray(low, np.uint64) | np.asarray(high, np.uint64) << np.uint64(32)
        picks = [int(selector.flat[0]) >> 4 * place & 15 for place in range(4)]
        assert max(picks) < 8  # no sign replication
        return sum(
            (source >> np.uint64(8 * pick) & np.uint64(255)) << np.uint64(8 * place)
            for place, pick in enumerate(picks)
        )

    def multiply(left: np.ndarray, right: np.ndarray) -> np.ndarray:
        with np.errstate(over="ignore"):
            low, high = (
                (halves(left) * halves(right)).astype(ml_dtypes.bfloat16).view(np.uint16).astype(np.uint32)
            )
        return low | high << 16

    operations = {
        "mov.b32": lambda a: a,
        "shl.b32": lambda a, b: a << b,
        "shr.b32": lambda a, b: a >> b,
        "and.b32": lambda a, b: a & b,
        "or.b32": lambda a, b: a | b,
        "prmt.b32": prmt,
        "mul.rn.bf16x2": multiply,
    }
    for operation, operands in re.findall(r"^([a-z0-9.]+) (.*);$", code, re.MULTILINE):
        if operation == ".reg":
            continue
        target, *sources = operands.split(", ")
        registers[target] = np.asarray(operations[operation](*map(value, sources)), np.uint32)
    return registers


@FAR
@pytest.mark.parametrize("high", [False, True])
def test_the_ptx_decodes_every_byte_under_every_scale_exactly(high: bool, far: bool) -> None:
    last = 255 if far else gpu_decoding.LARGEST_NEAR
    scales, first = np.meshgrid(np.arange(last + 1).astype(np.uint8), np.arange(256, dtype=np.uint8))
    # Four bytes a lane; every byte value comes in every place.
    blocks = np.stack([first, first ^ 0x5A, first + np.uint8(77), 255 - first], axis=-1)
    factors = np.asarray(gpu_decoding.multipliers(jnp.asarray(scales), far)).view(np.uint16).astype(np.uint32)
    words = np.ascontiguousarray(blocks).view("<u4")[..., 0].astype(np.uint32)
    registers = run_ptx(
        gpu_decoding.ptx(high, far), {"$2": words, "$3": factors * 0x10001, "$4": factors * 0x10001}
    )
    got = np.stack([registers["$0"], registers["$1"]], axis=-1).astype("<u4").view("<u2")
    codes = blocks >> 4 if high else blocks & 15
    with np.errstate(over="ignore"):
        expected = (VALUES[codes] * 2.0 ** (scales[..., None].astype(float) - 127)).astype(ml_dtypes.bfloat16)
    np.testing.assert_array_equal(got, expected.view(np.uint16))


@pytest.mark.parametrize(("tokens", "experts"), [(1, 32), (8, 128), (64, 32), (4096, 128)])
def test_the_kernels_lower_for_hopper_at_real_shapes(tokens: int, experts: int) -> None:
    hidden = inner = 2880
    shape = jax.ShapeDtypeStruct

    def packed(outputs: tuple[int, ...], inputs: int) -> PackedLinear:
        return PackedLinear(
            shape((experts, *outputs, inputs // 2), jnp.uint8),
            shape((experts, *outputs, inputs // 32), jnp.uint8),
            shape((experts, *outputs), jnp.bfloat16),
        )

    def run(*arguments: object) -> jax.Array:
        with using("gpu"):
            return gpu.expert_mlp(*arguments, LIMIT)

    text = lower_for_hopper(
        run,
        shape((tokens, hidden), jnp.bfloat16),
        Route(shape((tokens, 4), jnp.int32), shape((tokens, 4), jnp.float32)),
        packed((2, inner), hidden),
        packed((hidden,), inner),
    )
    assert text.count(KERNEL_CALL) == (2 if tokens == 1 else 3)  # one token needs no kernel for its schedule
    assert "expert_gate_up" in text and "expert_down" in text
