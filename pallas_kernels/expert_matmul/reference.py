"""The experts in plain JAX, one at a time. CPUs run this.

Each expert that some token chose is decoded once per call and freed before the next one, so memory holds a
single decoded expert. Every (token, expert) pair is computed: there is no capacity and nothing is dropped.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from pallas_kernels import mxfp4
from pallas_kernels.routing import Route, group_by_expert
from pallas_kernels.swiglu import SWIGLU_ALPHA

MAX_TILE = 128
"""The largest number of rows per matmul: enough to keep a matrix unit busy, yet little padding per expert."""


class PackedLinear(NamedTuple):
    """One projection of all experts, packed as published.

    blocks uint8 [E, …, out, in/2]; scales uint8 [E, …, out, in/32]; bias float [E, …, out]. The projection to
    gate and up has an axis of 2 before `out`: 0 is gate, 1 is up.
    """

    blocks: jax.Array
    scales: jax.Array
    bias: jax.Array


def clamped_swiglu(gate: jax.Array, up: jax.Array, limit: float) -> jax.Array:
    """gate · sigmoid(α · gate) · (up + 1), with gate clamped to at most `limit` and up to ±`limit`."""
    gate = jnp.minimum(gate, limit)
    up = jnp.clip(up, -limit, limit)
    return gate * jax.nn.sigmoid(SWIGLU_ALPHA * gate) * (up + 1)


def tile_rows(num_tokens: int, experts_per_token: int, num_experts: int) -> int:
    """Rows per tile: about twice an expert's average, a power of two, at most `num_tokens` and `MAX_TILE`."""
    share = max(1, 2 * num_tokens * experts_per_token // num_experts)
    return min(num_tokens, MAX_TILE, 1 << (share - 1).bit_length())


def expert_mlp(
    x: jax.Array,
    route: Route,
    gate_up: PackedLinear,
    down: PackedLinear,
    limit: float,
    num_experts: int | None = None,
) -> jax.Array:
    """See `pallas_kernels.expert_matmul.expert_mlp`; the weights are in the published layout."""
    num_tokens, hidden = x.shape
    held = gate_up.blocks.shape[0]
    experts_per_token = route.experts.shape[1]
    groups = group_by_expert(route.experts, held)
    tile = tile_rows(num_tokens, experts_per_token, num_experts or held)
    weights = route.weights.reshape(-1)

    def run_expert(index: jax.Array, out: jax.Array) -> jax.Array:
        expert = groups.active[index]
        gate_up_weight = mxfp4.decode(gate_up.blocks[expert], gate_up.scales[expert], x.dtype)
        down_weight = mxfp4.decode(down.blocks[expert], down.scales[expert], x.dtype)
        gate_up_bias = gate_up.bias[expert].astype(jnp.float32)
        down_bias = down.bias[expert].astype(jnp.float32)
        start, count = groups.starts[expert], groups.counts[expert]

        def run_tile(number: jax.Array, out: jax.Array) -> jax.Array:
            offsets = number * tile + jnp.arange(tile)
            pairs = groups.pairs[jnp.minimum(start + offsets, groups.pairs.size - 1)]
            # Rows past the group's end are computed and discarded: their token T is out of range.
            tokens = jnp.where(offsets < count, pairs // experts_per_token, num_tokens)
            rows = x.at[tokens].get(mode="fill", fill_value=0)
            gate, up = jnp.unstack(
                jnp.einsum("td,gfd->gtf", rows, gate_up_weight, preferred_element_type=jnp.float32)
                + gate_up_bias[:, None]
            )
            hidden_rows = clamped_swiglu(gate, up, limit).astype(x.dtype)
            result = jnp.einsum("tf,df->td", hidden_rows, down_weight, preferred_element_type=jnp.float32)
            result = (result + down_bias) * weights[pairs][:, None]
            return out.at[tokens].add(result, mode="drop")

        return jax.lax.fori_loop(0, (count + tile - 1) // tile, run_tile, out)

    # Experts run in ascending order, so a token's sum does not depend on the rest of the batch.
    out = jnp.zeros((num_tokens, hidden), jnp.float32)
    return jax.lax.fori_loop(0, groups.num_active, run_expert, out).astype(x.dtype)
