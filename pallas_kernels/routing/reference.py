"""Routing in plain JAX: top-k of the router's logits, and the sorts that group tokens by expert."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp


class Route(NamedTuple):
    """Where each token goes.

    `experts` int32 [T, A]: distinct expert ids, best first; the id E (one past the last expert) means
    *nowhere*, the row of a token that is only padding. `weights` float32 [T, A]: their shares, summing to 1.
    """

    experts: jax.Array
    weights: jax.Array


class Groups(NamedTuple):
    """The T·A (token, choice) pairs sorted by expert.

    `pairs` int32 [T·A]: pair indices t·A + a in expert order, padding last. `starts` and `counts` int32 [E]:
    each expert's slice of `pairs`. `active` int32 [E]: the ids of experts with work, ascending, then the idle
    ones. `num_active` int32 []: how many have work.
    """

    pairs: jax.Array
    starts: jax.Array
    counts: jax.Array
    active: jax.Array
    num_active: jax.Array


class Schedule(NamedTuple):
    """The order in which a grouped matmul computes (token, choice) pairs: tiles of rows, one expert each.

    Rows are grouped by expert in ascending order, in token order within an expert, and each group is padded
    to whole tiles. P = `schedule_rows(…)` rows are enough for every routing, so nothing is ever dropped.

    `destinations` int32 [T, A]: the row of each pair; P for a pair routed nowhere.
    `tokens` int32 [P]: the token of each row; T for padding.
    `tile_experts` int32 [P / tile]: the expert that each tile works for.
    `tile_counts` int32 [P / tile]: how many of a tile's rows are real; they are its first ones.
    `num_tiles` int32 []: how many tiles have work. Entries past it repeat the last tile's expert (0 if there
    is none), so that a kernel that walks on loads no new weights, with count 0.
    """

    destinations: jax.Array
    tokens: jax.Array
    tile_experts: jax.Array
    tile_counts: jax.Array
    num_tiles: jax.Array


def schedule_rows(num_pairs: int, num_experts: int, tile: int) -> int:
    """Rows that suffice for `num_pairs` however they are routed: P of a `Schedule`, a multiple of `tile`.

    The worst routing gives one row to as many experts as it can, and fills tiles of one expert with the rest.
    """
    started = min(num_pairs, num_experts)
    return (started + (num_pairs - started) // tile) * tile


def route(logits: jax.Array, experts_per_token: int, valid: jax.Array | None = None) -> Route:
    """Chooses each token's experts: the top logits, and a softmax over those chosen alone.

    logits [T, E] of any float dtype; `valid` bool [T] marks real tokens (None: all). Source: the router of
    the published model.
    """
    # top_k may order −0 below +0; they are equal here, and of equal logits the first wins. Compared as bits
    # because the CPU's arithmetic takes subnormal numbers for zeros, which top_k does not.
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
    """`route`, and the `schedule_tiles` of what it chose."""
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
    """The schedule of `experts` int32 [T, A], ids 0 … num_experts (= nowhere), in tiles of `tile` rows."""
    num_tokens, experts_per_token = experts.shape
    ids = experts.reshape(-1)
    rows = schedule_rows(ids.size, num_experts, tile)

    counts = jnp.zeros(num_experts, jnp.int32).at[ids].add(1, mode="drop")
    tiles = (counts + tile - 1) // tile
    ends = jnp.cumsum(tiles)
    first_tiles = ends - tiles

    # A pair's rank within its expert is its place in the sorted order less the place where the expert starts.
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
