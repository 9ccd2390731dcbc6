"""The two compiled steps: prefill a chunk of some prompts, and decode many tokens of every slot."""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
from flax import nnx

from gptoss_jax.cache import EMPTY, Cache, put_rows, take_rows
from gptoss_jax.sampling import Samplers, sample


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Slots:
    """What each of B slots does next.

    `token` int32 [B] is drawn but neither emitted nor seen by the model yet, `position` int32 [B] is where it
    will stand. `remaining` int32 [B]: tokens still to be emitted, `token` included; 0 is an idle slot.
    `draws` int32 [B]: tokens drawn so far.
    """

    token: jax.Array
    position: jax.Array
    remaining: jax.Array
    draws: jax.Array
    samplers: Samplers


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Chunk:
    """The next T prompt tokens of n sequences.

    `slots` int32 [n], where they live (B: nowhere, the row is padding). `tokens`, `positions` int32 [n, T],
    EMPTY positions for padding. `fresh` bool [n]: the slot starts a new sequence. `last` int32 [n]: the index
    of the prompt's last token in this chunk, EMPTY if the prompt goes on. `remaining` int32 [n]: tokens that
    may be generated. `samplers`: those of the n sequences.
    """

    slots: jax.Array
    tokens: jax.Array
    positions: jax.Array
    fresh: jax.Array
    last: jax.Array
    remaining: jax.Array
    samplers: Samplers


def idle_slots(count: int) -> Slots:
    """`count` slots with nothing to do."""
    zeros = functools.partial(jnp.zeros, count)
    samplers = Samplers(
        seeds=jnp.zeros((count, 2), jnp.uint32),
        temperature=zeros(jnp.float32),
        top_p=jnp.ones(count, jnp.float32),
        top_k=zeros(jnp.int32),
    )
    return Slots(zeros(jnp.int32), zeros(jnp.int32), zeros(jnp.int32), zeros(jnp.int32), samplers)


@functools.partial(jax.jit, static_argnums=0, donate_argnums=(2, 3))
def prefill(
    graph: nnx.GraphDef, parameters: nnx.State, cache: Cache, slots: Slots, chunk: Chunk
) -> tuple[Cache, Slots]:
    """Runs one chunk; where a prompt ends in it, draws the first token and hands the slot to `decode`."""
    model = nnx.merge(graph, parameters)
    part = take_rows(cache, chunk.slots, fresh=chunk.fresh)
    hidden, part = model(chunk.tokens, chunk.positions, part)
    cache = put_rows(cache, chunk.slots, part)

    rows = jnp.arange(chunk.slots.size)
    last = jnp.maximum(chunk.last, 0)
    draws = jnp.zeros_like(chunk.slots)
    started = Slots(
        token=sample(model.logits(hidden[rows, last]), chunk.samplers, draws),
        position=chunk.positions[rows, last] + 1,
        remaining=chunk.remaining,
        draws=draws + 1,
        samplers=chunk.samplers,
    )
    ready = jnp.where(chunk.last >= 0, chunk.slots, slots.token.size)  # past the last slot: dropped
    return cache, jax.tree.map(lambda all_, new: all_.at[ready].set(new, mode="drop"), slots, started)


@functools.partial(jax.jit, static_argnums=(0, 5), donate_argnums=(2, 3))
def decode(
    graph: nnx.GraphDef,
    parameters: nnx.State,
    cache: Cache,
    slots: Slots,
    stop_tokens: jax.Array,
    max_steps: int,
) -> tuple[Cache, Slots, jax.Array]:
    """Decodes up to `max_steps` tokens of every slot, fewer if all fall idle.

    stop_tokens int32 [any]. The third result is int32 [max_steps, B]: each step's tokens, EMPTY where a slot
    was idle. A slot falls idle after emitting a stop token or the last token it may.
    """
    model = nnx.merge(graph, parameters)

    def running(carry: tuple[jax.Array, Cache, Slots, jax.Array]) -> jax.Array:
        step, _, slots, _ = carry
        return (step < max_steps) & (slots.remaining > 0).any()

    def step_once(
        carry: tuple[jax.Array, Cache, Slots, jax.Array],
    ) -> tuple[jax.Array, Cache, Slots, jax.Array]:
        step, cache, slots, emitted = carry
        active = slots.remaining > 0
        emitted = emitted.at[step].set(jnp.where(active, slots.token, EMPTY))
        stopped = jnp.isin(slots.token, stop_tokens)
        remaining = jnp.where(active & ~stopped, slots.remaining - 1, 0)
        active = remaining > 0
        positions = jnp.where(active, slots.position, EMPTY)
        hidden, cache = model(slots.token[:, None], positions[:, None], cache)
        token = sample(model.logits(hidden[:, 0]), slots.samplers, slots.draws)
        slots = Slots(
            token=jnp.where(active, token, slots.token),
            position=slots.position + active,
            remaining=remaining,
            draws=slots.draws + active,
            samplers=slots.samplers,
        )
        return step + 1, cache, slots, emitted

    emitted = jnp.full((max_steps, slots.token.size), EMPTY, jnp.int32)
    _, cache, slots, emitted = jax.lax.while_loop(running, step_once, (jnp.int32(0), cache, slots, emitted))
    return cache, slots, emitted
