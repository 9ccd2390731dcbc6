"""Choosing the next token of every slot, on device."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Samplers:
    """How each of B slots samples.

    `seeds` uint32 [B, 2], the key of the slot's own random stream; `temperature` float32 [B], 0 for greedy;
    `top_p` float32 [B], 1 for all; `top_k` int32 [B], 0 for all.
    """

    seeds: jax.Array
    temperature: jax.Array
    top_p: jax.Array
    top_k: jax.Array


def sample(logits: jax.Array, samplers: Samplers, draws: jax.Array) -> jax.Array:
    """One token id per slot: logits float32 [B, V], `draws` int32 [B] → int32 [B].

    Greedy slots take the largest logit. The others scale by temperature, keep the `top_k` largest, of those
    the fewest whose probabilities reach `top_p`, and draw from what is left with the random number that
    belongs to (the slot's seed, `draws`, the number of tokens drawn before): so a draw does not depend on the
    slot or on what the other slots do.
    """
    greedy = jnp.argmax(logits, axis=-1).astype(jnp.int32)
    random = samplers.temperature > 0

    def draw(logits: jax.Array) -> jax.Array:
        scaled = logits / jnp.where(random, samplers.temperature, 1.0)[:, None]
        restricted = random & ((samplers.top_p < 1) | (samplers.top_k > 0))
        scaled = jax.lax.cond(restricted.any(), lambda x: _restrict(x, samplers), lambda x: x, scaled)
        keys = jax.random.wrap_key_data(samplers.seeds, impl="threefry2x32")
        drawn = jax.vmap(lambda key, n, row: jax.random.categorical(jax.random.fold_in(key, n), row))(
            keys, draws, scaled
        )
        return jnp.where(random, drawn.astype(jnp.int32), greedy)

    return jax.lax.cond(random.any(), draw, lambda _: greedy, logits)


def _restrict(logits: jax.Array, samplers: Samplers) -> jax.Array:
    """Logits [B, V] with those outside each slot's top-k and top-p at -inf; ties break by token id."""
    vocabulary = logits.shape[-1]
    order = jnp.argsort(-logits, axis=-1, stable=True)
    ordered = jnp.take_along_axis(logits, order, axis=-1)
    top_k = jnp.where(samplers.top_k > 0, samplers.top_k, vocabulary)[:, None]
    ordered = jnp.where(jnp.arange(vocabulary) < top_k, ordered, -jnp.inf)
    shares = jax.nn.softmax(ordered, axis=-1)
    before = jnp.cumsum(shares, axis=-1) - shares
    # The first token always stays; sums of float32 may miss 1, so a top-p of 1 keeps all by its own test.
    kept = (before < samplers.top_p[:, None]) | (samplers.top_p >= 1)[:, None]
    ordered = jnp.where(kept, ordered, -jnp.inf)
    rows = jnp.arange(logits.shape[0])[:, None]
    return jnp.full_like(logits, -jnp.inf).at[rows, order].set(ordered)
