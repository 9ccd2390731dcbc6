"""The compiled steps: prefill a chunk of some sequences, and decode many tokens of every slot.

Each is one program for the whole mesh, inside `jax.shard_map`. Arrays of B rows, and a chunk's of n, hold the
rows of all batch shards one after the other; the numbers of pages and rings in them are local to their shard.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from gptoss_jax import cache as caches
from gptoss_jax.cache import EMPTY, Cache, cache_split
from gptoss_jax.engine.request import MOST_TOP_LOGPROBS
from gptoss_jax.model import Transformer
from gptoss_jax.sampling import Samplers, count_prompt, count_tokens, sample
from gptoss_jax.sharding import AXES, DATA, EXPERT, TENSOR, axis_size, parameter_split, split


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Slots:
    """What each of B slots does next.

    `token` int32 [B] is fed next, at `position` int32 [B]. `remaining` int32 [B]: how many more tokens may be
    drawn; 0 is an idle slot. `counts` uint16 [B, V]: of each token, whether it stands in the prompt and how
    often in the completion, for the penalties; kept only for rows that have some.
    """

    token: jax.Array
    position: jax.Array
    remaining: jax.Array
    counts: jax.Array


class Rows(NamedTuple):
    """What stays the same while a sequence is in its slot.

    `origin` int32 [B]: the prompt's length. `stop_tokens` int32 [B, any], EMPTY for none. `samplers`: how
    each row samples.
    """

    origin: jax.Array
    stop_tokens: jax.Array
    samplers: Samplers


class Masks(NamedTuple):
    """The tokens allowed next under a grammar: `words` uint32 [B, ⌈V/32⌉], where `masked` bool [B]."""

    words: jax.Array
    masked: jax.Array


class Chunk(NamedTuple):
    """The next T tokens of n sequences.

    `tokens`, `positions` int32 [n, T], positions consecutive, EMPTY behind a row's tokens. `table` int32
    [n, M]. `slots` int32 [n]: the ring of each sequence, the last one for rows that have nothing to do.
    `fresh` bool [n]: the sequence starts here.
    """

    tokens: jax.Array
    positions: jax.Array
    table: jax.Array
    slots: jax.Array
    fresh: jax.Array


class Drawn(NamedTuple):
    """What a dispatch drew, step by step: `tokens` int32 [K, B], EMPTY where a slot was idle; `logprobs`
    float32 [K, B]; `top_ids` int32 and `top_logprobs` float32 [K, B, 20]."""

    tokens: jax.Array
    logprobs: jax.Array
    top_ids: jax.Array
    top_logprobs: jax.Array


class Steps:
    """The compiled functions of one model on one mesh; nothing is compiled before it is first called.

    Attributes:
        prefill: (parameters, cache, chunk) → cache.
        decode: (parameters, cache, slots, patch, table, rows, masks, steps) → (cache, slots, drawn).
        copy_rings: (cache, sources, targets) → cache.
        count: (slots, row, prompt, completion) → slots.
    """

    def __init__(self, model: Transformer, mesh: Mesh, most_steps: int):
        graph, state = nnx.split(model)
        self.parameters = state
        self.mesh = mesh
        self.most_steps = most_steps
        batch, config = split("batch"), model.config
        self.parameter_splits = _parameter_splits(state)
        self.cache_splits = cache_split(config)
        self.slot_splits = Slots(batch, batch, batch, split("sampled"))  # type: ignore[arg-type]
        rows = Rows(batch, batch, split("sampled"))  # type: ignore[arg-type]
        everywhere = PartitionSpec()
        compile_ = functools.partial(_spread, mesh)
        self.prefill = compile_(
            functools.partial(prefill, graph),
            (self.parameter_splits, self.cache_splits, batch),
            self.cache_splits,
            donated=(1,),
        )
        self.decode = compile_(
            functools.partial(decode, graph, config.vocabulary_size, most_steps),
            (
                *(self.parameter_splits, self.cache_splits, self.slot_splits),
                *(batch, batch, rows, split("sampled"), everywhere),
            ),
            (self.cache_splits, self.slot_splits, everywhere),
            donated=(1, 2),
        )
        self.copy_rings = compile_(
            caches.copy_rings, (self.cache_splits, batch, batch), self.cache_splits, donated=(0,)
        )
        self.count = compile_(
            count, (self.slot_splits, everywhere, everywhere, everywhere), self.slot_splits, donated=(0,)
        )

    @property
    def compiled_programs(self) -> int:
        """How many programs the calls so far needed."""
        steps = (self.prefill, self.decode, self.copy_rings, self.count)
        return sum(step._cache_size() for step in steps)  # type: ignore[attr-defined]


def _spread(
    mesh: Mesh, step: Callable, in_splits: Any, out_splits: Any, *, donated: tuple[int, ...]
) -> jax.stages.Wrapped:
    spread = jax.shard_map(step, mesh=mesh, in_specs=in_splits, out_specs=out_splits, check_vma=False)
    # Said in so many words: left to itself, jax writes the same sharding in another way if an axis has size
    # 1, and then compiles again for it.
    return jax.jit(spread, donate_argnums=donated, out_shardings=shardings_of(mesh, out_splits))


def shardings_of(mesh: Mesh, splits: Any) -> Any:
    """The shardings of a tree of partitions."""
    return jax.tree.map(
        functools.partial(NamedSharding, mesh),
        splits,
        is_leaf=lambda leaf: isinstance(leaf, PartitionSpec),
    )


def _parameter_splits(state: nnx.State) -> nnx.State:
    """The partition of every parameter, in its place."""
    return nnx.from_flat_state(
        [
            (path, leaf.replace(parameter_split(".".join(map(str, path)))))
            for path, leaf in nnx.to_flat_state(state)
        ]
    )


def idle_slots(count: int, vocabulary: int) -> Slots:
    """`count` slots with nothing to do, for a vocabulary padded to so many rows."""
    zeros = jnp.zeros(count, jnp.int32)
    return Slots(zeros, zeros, zeros, jnp.zeros((count, vocabulary), jnp.uint16))


def prefill(graph: nnx.GraphDef, parameters: nnx.State, cache: Cache, chunk: Chunk) -> Cache:
    """The cache with a chunk in it. Nothing is sampled: a sequence's last token is fed by `decode`."""
    model: Transformer = nnx.merge(graph, parameters)
    return model.prefill(
        chunk.tokens, chunk.positions, cache, chunk.table, chunk.slots.astype(jnp.int32), chunk.fresh
    )[1]


def decode(
    graph: nnx.GraphDef,
    vocabulary: int,
    most_steps: int,
    parameters: nnx.State,
    cache: Cache,
    slots: Slots,
    patch: jax.Array,
    table: jax.Array,
    rows: Rows,
    masks: Masks,
    steps: jax.Array,
) -> tuple[Cache, Slots, Drawn]:
    """Draws up to `steps`, int32 [], tokens of every slot, fewer if all fall idle.

    patch int32 [B, 4]: whether the host changes the slot, and if so its token, position and remaining tokens.
    table int32 [B, M]. Masks hold for the first token of the dispatch. A slot falls idle after a stop token
    or the last token that it may draw.
    """
    model: Transformer = nnx.merge(graph, parameters)
    changed = patch[:, 0] != 0
    slots = dataclasses.replace(
        slots,
        token=jnp.where(changed, patch[:, 1], slots.token),
        position=jnp.where(changed, patch[:, 2], slots.position),
        remaining=jnp.where(changed, patch[:, 3], slots.remaining),
    )
    batch, sampled = slots.token.size, masks.masked.size
    own = functools.partial(_own_rows, sampled)

    def unfinished(carry: tuple[jax.Array, jax.Array, Cache, Slots, Drawn]) -> jax.Array:
        step, alive, *_ = carry
        return (step < steps) & alive

    def step_once(
        carry: tuple[jax.Array, jax.Array, Cache, Slots, Drawn],
    ) -> tuple[jax.Array, jax.Array, Cache, Slots, Drawn]:
        step, _, cache, slots, drawn = carry
        active = slots.remaining > 0
        hidden, cache = model.decode(slots.token, jnp.where(active, slots.position, EMPTY), cache, table)
        one = sample(
            _whole_rows(model.logits(hidden)),
            rows.samplers,
            own(slots.position + 1 - rows.origin),
            slots.counts,
            masks.words,
            masks.masked & (step == 0),
            vocabulary=vocabulary,
        )
        tokens = _gather(one.tokens, TENSOR)
        stopped = (tokens[:, None] == rows.stop_tokens).any(axis=1)
        remaining = jnp.where(active & ~stopped, slots.remaining - 1, 0)
        drawn = Drawn(
            drawn.tokens.at[step].set(jnp.where(active, tokens, EMPTY)),
            drawn.logprobs.at[step].set(one.logprobs),
            drawn.top_ids.at[step].set(one.top_ids),
            drawn.top_logprobs.at[step].set(one.top_logprobs),
        )
        slots = Slots(
            token=jnp.where(active, tokens, slots.token),
            position=slots.position + active,
            remaining=remaining,
            counts=count_tokens(slots.counts, one.tokens, own(active)),
        )
        return step + 1, _any_shard(remaining > 0), cache, slots, drawn

    nothing = Drawn(
        jnp.full((most_steps, batch), EMPTY, jnp.int32),
        jnp.zeros((most_steps, sampled), jnp.float32),
        jnp.zeros((most_steps, sampled, MOST_TOP_LOGPROBS), jnp.int32),
        jnp.zeros((most_steps, sampled, MOST_TOP_LOGPROBS), jnp.float32),
    )
    carry = (jnp.int32(0), _any_shard(slots.remaining > 0), cache, slots, nothing)
    _, _, cache, slots, drawn = jax.lax.while_loop(unfinished, step_once, carry)
    everyone = Drawn(
        _gather(drawn.tokens, DATA, EXPERT, dimension=1),
        *(_gather(array, *AXES, dimension=1) for array in drawn[1:]),
    )
    return cache, slots, everyone


def count(slots: Slots, row: jax.Array, prompt: jax.Array, completion: jax.Array) -> Slots:
    """Counts a sequence's tokens anew: row int32 [] of all slots; prompt, completion int32 [any], EMPTY for
    none."""
    rows = slots.counts.shape[0]
    local = row - jax.lax.axis_index(AXES) * rows
    own = jnp.where((local >= 0) & (local < rows), local, EMPTY)  # of no row, nothing is counted
    return dataclasses.replace(slots, counts=count_prompt(slots.counts, own, prompt, completion))


def _whole_rows(logits: jax.Array) -> jax.Array:
    """Logits of all rows and some of the vocabulary → of some rows and the whole vocabulary."""
    if axis_size(TENSOR) == 1:
        return logits
    return jax.lax.all_to_all(logits, TENSOR, split_axis=0, concat_axis=1, tiled=True)


def _own_rows(count: int, x: jax.Array) -> jax.Array:
    """The rows of a batch shard that this device samples."""
    if count == x.shape[0]:
        return x
    return jax.lax.dynamic_slice_in_dim(x, jax.lax.axis_index(TENSOR) * count, count)


def _gather(x: jax.Array, *axes: str, dimension: int = 0) -> jax.Array:
    """The parts of all devices along some mesh axes, put together."""
    named = tuple(axis for axis in axes if axis_size(axis) > 1)
    return jax.lax.all_gather(x, named, axis=dimension, tiled=True) if named else x


def _any_shard(flags: jax.Array) -> jax.Array:
    """Whether any flag is set on any device: all must agree on when to stop."""
    found = flags.any()
    named = tuple(axis for axis in (DATA, EXPERT) if axis_size(axis) > 1)
    return jax.lax.psum(found.astype(jnp.int32), named) > 0 if named else found
