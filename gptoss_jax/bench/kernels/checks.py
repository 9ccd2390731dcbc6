"""Compares GPU kernels with their references on random data: exactly
where they promise it, closely elsewhere.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu

from gptoss_jax.bench.kernels.inputs import ACTIVE, LIMIT, Model, random_projections, random_tokens
from pallas_kernels import mxfp4
from pallas_kernels.expert_matmul import PackedLinear, gpu, gpu_decoding
from pallas_kernels.expert_matmul.reference import expert_mlp
from pallas_kernels.platform import using
from pallas_kernels.routing import Route, Schedule, route_and_schedule
from pallas_kernels.routing import reference as plain_routing

_BFLOAT16_ERROR = 1e-2
_FLOAT32_ERROR = 1e-5


@dataclasses.dataclass(frozen=True)
class Check:
    """One comparison. It passes if `error` is at most `limit`; 0 means equal, and a NaN error fails.

    reason: the exception that was raised instead of a result; empty if there was none.
    """

    name: str
    error: float
    limit: float
    reason: str = ""

    @property
    def passed(self) -> bool:
        """Returns True if the error is within the limit."""
        return self.error <= self.limit


def check_decoding(far: bool, *, interpret: bool) -> Check:
    """Decodes every byte with every scale; the error is the number of weights that differ in a bit."""
    last = 255 if far else gpu_decoding.LARGEST_NEAR
    scales = jnp.minimum(jnp.arange(256), last).astype(jnp.uint8)[:, None]
    scales = jnp.broadcast_to(scales, (256, 256 // gpu_decoding.BYTES_PER_BLOCK))
    blocks = jnp.broadcast_to(jnp.arange(256, dtype=jnp.uint8), (256, 256))

    def kernel(blocks: jax.Ref, scales: jax.Ref, even: jax.Ref, odd: jax.Ref) -> None:
        """blocks uint8 [256, 256], scales uint8 [256, 16]; even, odd bfloat16 [256, 256].

        In device memory.
        """
        rows = pl.program_id(0) * 16 + jnp.arange(16)[:, None]
        codes = plgpu.load(blocks.at[rows, jnp.arange(256)[None, :]])
        factors = plgpu.load(scales.at[rows, jnp.arange(16)[None, :]])
        halves = gpu_decoding.decode(codes, factors, far=far, interpret=interpret)
        for half, out in zip(halves, (even, odd), strict=True):
            plgpu.store(out.at[rows, jnp.arange(256)[None, :]], half)

    halves = pl.pallas_call(
        kernel,
        grid=(16,),
        out_shape=[jax.ShapeDtypeStruct((256, 256), jnp.bfloat16)] * 2,
        compiler_params=plgpu.CompilerParams(num_warps=4),
        interpret=interpret,
        name="decode",
    )(blocks, scales)
    expected = mxfp4.decode(blocks, scales, jnp.bfloat16)
    got = np.stack([np.asarray(half) for half in halves], axis=-1).reshape(256, 512)
    differ = got.view(np.uint16) != np.asarray(expected).view(np.uint16)
    return Check(f"decoding of every code, scales to {last}", float(differ.sum()), 0)


def check_routing(model: Model, tokens: int, *, interpret: bool) -> Check:
    """Compares experts and schedule exactly and weights closely.

    The error is that of the weights, or infinite.
    """
    logits_key, valid_key = jax.random.split(jax.random.key(tokens))
    logits = jax.random.normal(logits_key, (tokens, model.experts))
    valid = jax.random.bernoulli(valid_key, 0.9, (tokens,))
    tile = gpu.plan_for(tokens * ACTIVE, model.experts).rows

    def run(logits: jax.Array, valid: jax.Array) -> tuple[Route, Schedule]:
        with using("gpu-interpret" if interpret else "gpu"):
            return route_and_schedule(logits, ACTIVE, tile, valid)

    route, schedule = jax.jit(run)(logits, valid)
    expected_route, expected = plain_routing.route_and_schedule(logits, ACTIVE, tile, valid)
    same = jnp.array_equal(route.experts, expected_route.experts)
    for got, wanted in zip(schedule, expected, strict=True):
        same &= jnp.array_equal(got, wanted)
    error = float(jnp.max(jnp.abs(route.weights - expected_route.weights))) if same else float("inf")
    return Check(f"routing, {model.name}, {tokens} tokens", error, 1e-6)


def check_experts(model: Model, tokens: int, *, interpret: bool) -> Iterator[Check]:
    """Compares both dtypes of activations with the float32 reference.

    The error is ‖difference‖ / ‖reference‖.
    """
    maps_key, tokens_key = jax.random.split(jax.random.key(1000 + tokens))
    gate_up, down = random_projections(maps_key, model)
    x, route = random_tokens(tokens_key, model, tokens)

    def run(x: jax.Array, route: Route, gate_up: PackedLinear, down: PackedLinear) -> jax.Array:
        with using("gpu-interpret" if interpret else "gpu"):
            return gpu.expert_mlp(x, route, gate_up, down, LIMIT, interpret=interpret)

    with jax.default_matmul_precision("highest"):
        expected = jax.jit(expert_mlp, static_argnums=4)(x.astype(jnp.float32), route, gate_up, down, LIMIT)
    for dtype, limit in ((jnp.bfloat16, _BFLOAT16_ERROR), (jnp.float32, _FLOAT32_ERROR)):
        got = jax.jit(run)(x.astype(dtype), route, gate_up, down).astype(jnp.float32)
        error = float(jnp.linalg.norm(got - expected) / jnp.linalg.norm(expected))
        yield Check(f"experts, {model.name}, {tokens} tokens, {jnp.dtype(dtype).name}", error, limit)
