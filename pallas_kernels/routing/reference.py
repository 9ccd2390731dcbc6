"""Routing in plain JAX: top-k of the router's logits, and the sort that groups tokens by expert."""

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


def route(logits: jax.Array, experts_per_token: int, valid: jax.Array | None = None) -> Route:
    """Chooses each token's experts: the top logits, and a softmax over those chosen alone.

    logits [T, E] of any float dtype; `valid` bool [T] marks real tokens (None: all). Source: the router of
    the published model.
    """
    top, experts = jax.lax.top_k(logits.astype(jnp.float32), experts_per_token)
    weights = jax.nn.softmax(top, axis=-1)
    if valid is not None:
        experts = jnp.where(valid[:, None], experts, logits.shape[-1])
    return Route(experts.astype(jnp.int32), weights)


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
