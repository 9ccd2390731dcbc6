"""Random inputs at the published models' shapes, made on the device."""

from __future__ import annotations

import dataclasses
import math

import jax
import jax.numpy as jnp

from pallas_kernels.expert_matmul import PackedLinear
from pallas_kernels.routing import Route, reference

ACTIVE = 4
LIMIT = 7.0


@dataclasses.dataclass(frozen=True)
class Model:
    """The sizes of a model's expert layers."""

    name: str
    experts: int
    hidden: int = 2880
    inner: int = 2880

    @property
    def expert_bytes(self) -> int:
        """Bytes of one expert: codes, scales and bfloat16 biases of its three projections."""
        weights = 3 * self.inner * self.hidden
        return weights // 2 + weights // 32 + 2 * (2 * self.inner + self.hidden)

    @property
    def pair_flops(self) -> int:
        """Useful operations of one (token, expert) pair, 2 a multiply-add."""
        return 2 * 3 * self.inner * self.hidden


MODELS = (Model("20b", 32), Model("120b", 128))
SMALL = Model("small", 6, hidden=96, inner=64)
"""The sizes that run without a GPU."""


def random_projections(key: jax.Array, model: Model) -> tuple[PackedLinear, PackedLinear]:
    """gate_up and down of one layer, with random codes and scales."""

    def packed(key: jax.Array, outputs: tuple[int, ...], inputs: int) -> PackedLinear:
        codes, scales, bias = jax.random.split(key, 3)
        shape = (model.experts, *outputs)
        # Scales that make outputs about as large as inputs: the root mean square of the codes is 2.7.
        middle = 127 - round(math.log2(2.7 * math.sqrt(inputs)))
        return PackedLinear(
            jax.random.bits(codes, (*shape, inputs // 2), jnp.uint8),
            jax.random.randint(scales, (*shape, inputs // 32), middle - 2, middle + 2).astype(jnp.uint8),
            jax.random.normal(bias, shape, jnp.bfloat16),
        )

    gate_up, down = jax.random.split(key)
    return packed(gate_up, (2, model.inner), model.hidden), packed(down, (model.hidden,), model.inner)


def random_tokens(key: jax.Array, model: Model, tokens: int) -> tuple[jax.Array, Route]:
    """x [T, D] bfloat16 and a route of random logits."""
    x, logits = jax.random.split(key)
    route = reference.route(jax.random.normal(logits, (tokens, model.experts)), ACTIVE)
    return jax.random.normal(x, (tokens, model.hidden), jnp.bfloat16), route
