"""Routing in plain JAX: top-k of the router's logits, and the sorts that group tokens by expert."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp


class Route(NamedTuple):
    """The experts of each token.

    experts int32 [T, A]: distinct expert ids, highest logit first; the id E (one past the last expert) means
    no expert, as for padding tokens. weights float32 [T, A]: the experts' weights, which sum to 1.
    """

    experts: jax.Array
    weights: jax.Array


class Groups(NamedTuple):
    """The T·A (token, choice) pairs sorted by expert.

    pairs int32 [T·A]: pair indices t·A + a in expert order, those without an expert last. starts, counts
    int32 [E]: each expert's slice of `pairs`. active int32 [E]: the ids of experts with pairs, ascending,
    then the others. num_active int32 []: how many experts have pairs.
    """

    pairs: jax.Array
    starts: jax.Array
    counts: jax.Array
    active: jax.Array
    num_active: jax.Array


class Schedule(NamedTuple):
    """The order in which a grouped matmul computes (token, choice) pairs: tiles of rows, one expert each.

    Rows are grouped by expert in ascending order, in token order within an expert, and each group is padded
    to whole tiles. P = `schedule_rows(…)` rows are enough for every route, so nothing is ever dropped.

    destinations int32 [T, A]: the row of each pair; P for a pair without an expert.
    tokens int32 [P]: the token of each row; T for padding.
    tile_experts int32 [P / tile]: the expert of each tile.
    tile_counts int32 [P / tile]: how many of a tile's rows are real; they come first.
    num_tiles int32 []: how many tiles have rows. Tiles past it have the last tile's expert (0 without any)
    and count
        0, so a kernel that visits them loads no other weights.
    """

    destinations: jax.Array
    tokens: jax.Array
    tile_experts: jax.Array
    tile_counts: jax.Array
    num_tiles: jax.Array


def schedule_rows(num_pairs: int, num_experts: int, tile: int) -> int:
    """P of a `Schedule`: rows that suffice for `num_pairs` under every route, a multiple of `tile`.

    The worst route gives one pair to each of as many experts as possible, and the rest to one expert.
    """
    started = min(num_pairs, num_experts)
    return (started + (num_pairs - started) // tile) * tile


def route(logits: jax.Array, experts_per_token: int, valid: jax.Array | None = None) -> Route:
    """See `pallas_kernels.routing.route`."""
    # top_k may order −0 below +0, but equal logits must keep their order, so −0 becomes +0. The comparison
    # is of bits, since the CPU's float comparison would also take subnormal numbers for zeros.
    logits = logits.astype(jnp.float32)
    logits = jnp.where(jax.lax.bitcast_convert_type(logits, jnp.uint32) == jnp.uint32(1 << 31), 0.0, logits)
    top, experts = jax.lax.top_k(logits, experts_per_token)
    weights = jax.nn.softmax(top, axis=-1)
    if valid is not None:
        experts = jnp.where(valid[:, None], experts, logits.shape[-1])
    return Route(experts.astype(jnp.int32), weights)


def route_and_schedule(
    logits: jax.Array, experts_per_token: int, tile: int, valid: jax.Array | None = None
) -> tuple[Route, Schedule]:
    """See `pallas_kernels.routing.route_and_schedule`."""
    routed = route(logits, experts_per_token, valid)
    return routed, schedule_tiles(routed.experts, logits.shape[-1], tile)


def group_by_expert(experts: jax.Array, num_experts: int) -> Groups:
    """Sorts the pairs of `experts` int32 [T, A] by expert, keeping token order within each expert."""
    ids = experts.reshape(-1)
    counts = jnp.zeros(num_experts, jnp.int32).at[ids].add(1, mode="drop")
    return Groups(
        pairs=jnp.argsort(ids, stable=True).astype(jnp.int32),
        starts=jnp.cumsum(counts) - counts,
        counts=counts,
        active=jnp.argsort(counts == 0, stable=True).astype(jnp.int32),
        num_active=jnp.count_nonzero(counts).astype(jnp.int32),
    )


def schedule_tiles(experts: jax.Array, num_experts: int, tile: int) -> Schedule:
    """See `pallas_kernels.routing.schedule_tiles`."""
    num_tokens, experts_per_token = experts.shape
    ids = experts.reshape(-1)
    rows = schedule_rows(ids.size, num_experts, tile)

    counts = jnp.zeros(num_experts, jnp.int32).at[ids].add(1, mode="drop")
    tiles = (counts + tile - 1) // tile
    ends = jnp.cumsum(tiles)
    first_tiles = ends - tiles

    # A pair's rank within its expert is its index in the sorted order minus the index where the expert
    # starts.
    order = jnp.argsort(ids, stable=True)
    shifts = first_tiles * tile - (jnp.cumsum(counts) - counts)
    shifts = shifts.at[ids[order]].get(mode="fill", fill_value=0)
    sorted_rows = jnp.where(ids[order] < num_experts, jnp.arange(ids.size) + shifts, rows)
    destinations = jnp.zeros(ids.size, jnp.int32).at[order].set(sorted_rows.astype(jnp.int32))

    token_ids = jnp.arange(ids.size, dtype=jnp.int32) // max(1, experts_per_token)
    tokens = jnp.full(rows, num_tokens, jnp.int32).at[destinations].set(token_ids, mode="drop")

    numbers = jnp.arange(rows // tile, dtype=jnp.int32)
    last = jnp.max(jnp.where(counts > 0, jnp.arange(num_experts), 0))
    tile_experts = jnp.minimum(jnp.searchsorted(ends, numbers, side="right"), last).astype(jnp.int32)
    tile_counts = jnp.clip(counts[tile_experts] - (numbers - first_tiles[tile_experts]) * tile, 0, tile)
    return Schedule(
        destinations=destinations.reshape(num_tokens, experts_per_token),
        tokens=tokens,
        tile_experts=tile_experts,
        tile_counts=tile_counts.astype(jnp.int32),
        num_tiles=ends[-1].astype(jnp.int32),
    )
