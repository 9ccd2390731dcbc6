"""The compiled steps: prefill a chunk of some sequences, and decode many tokens of every slot.

Each step is one program for the whole mesh, inside `jax.shard_map`. Arrays of B rows, or of a chunk's n rows,
hold the rows of all batch shards one after the other. The page and ring numbers in them are local to a shard.
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

from checkpoints.config import ModelConfig
from gptoss_jax.engine.layout import Layout
from gptoss_jax.engine.request import MAX_TOP_LOGPROBS
from gptoss_jax.engine.sampling import Samplers, count_prompt, count_tokens, sample
from gptoss_jax.model import Transformer
from gptoss_jax.model.kv_cache import EMPTY, KVCache, cache_split, copy_rings, new_cache
from gptoss_jax.sharding import axis_size, parameter_split, split
from gptoss_jax.sizes import AXES, DATA, EXPERT, TENSOR, CacheShape, MeshShape


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Slots:
    """The state of B slots between decode steps.

    token: int32 [B], the token that the next step feeds.
    position: int32 [B], its position in the sequence.
    remaining: int32 [B], how many more tokens may be drawn; 0 for an idle slot.
    counts: uint16 [B, V], the token counts for the penalties (see `count_tokens`); only valid in rows that
        have a penalty.
    """

    token: jax.Array
    position: jax.Array
    remaining: jax.Array
    counts: jax.Array


class Rows(NamedTuple):
    """What stays the same while a sequence is in its slot.

    origin: int32 [B], the length of the prompt.
    stop_tokens: int32 [B, any], EMPTY for none.
    samplers: the sampling settings of each row.
    """

    origin: jax.Array
    stop_tokens: jax.Array
    samplers: Samplers


class Masks(NamedTuple):
    """The tokens that grammars allow next.

    words: uint32 [B, ⌈V/32⌉], bit id % 32 of word id // 32.
    masked: bool [B], True for rows with a grammar; the words of other rows are ignored.
    """

    words: jax.Array
    masked: jax.Array


class Chunk(NamedTuple):
    """The next T tokens of n sequences.

    tokens: int32 [n, T].
    positions: int32 [n, T], consecutive in a row; EMPTY for padding, after a row's tokens.
    table: int32 [n, M], the block table.
    slots: int32 [n], the ring of each sequence; the spare ring for unused rows.
    starts: bool [n], True if the chunk is its sequence's first: the ring still holds another sequence.
    """

    tokens: jax.Array
    positions: jax.Array
    table: jax.Array
    slots: jax.Array
    starts: jax.Array


class DecodedTokens(NamedTuple):
    """What the K steps of a dispatch drew, as in `SampledTokens`.

    tokens: int32 [K, B], EMPTY where a slot was idle.
    logprobs: float32 [K, B].
    top_ids: int32 [K, B, 20].
    top_logprobs: float32 [K, B, 20].
    """

    tokens: jax.Array
    logprobs: jax.Array
    top_ids: jax.Array
    top_logprobs: jax.Array


class Steps:
    """The compiled functions of one model on one mesh. Each is compiled at its first call.

    Attributes:
        prefill: (parameters, cache, chunk) → cache.
        decode: (parameters, cache, slots, patch, table, rows, masks, steps) → (cache, slots, drawn).
        copy_rings: (cache, sources, targets) → cache.
        count: (slots, row, prompt, completion) → slots.
    """

    def __init__(self, model: Transformer, mesh: Mesh, max_steps: int):
        graph, state = nnx.split(model)
        self.parameters = state
        self.mesh = mesh
        self.max_steps = max_steps
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
            functools.partial(decode, graph, config.vocabulary_size, max_steps),
            (
                *(self.parameter_splits, self.cache_splits, self.slot_splits),
                *(batch, batch, rows, split("sampled"), everywhere),
            ),
            (self.cache_splits, self.slot_splits, everywhere),
            donated=(1, 2),
            compiler_options=_decode_options(state, mesh),
        )
        self.copy_rings = compile_(
            copy_rings, (self.cache_splits, batch, batch), self.cache_splits, donated=(0,)
        )
        self.count = compile_(
            count, (self.slot_splits, everywhere, everywhere, everywhere), self.slot_splits, donated=(0,)
        )

    @property
    def compiled_programs(self) -> int:
        """How many programs were compiled so far."""
        steps = (self.prefill, self.decode, self.copy_rings, self.count)
        return sum(step._cache_size() for step in steps)  # type: ignore[attr-defined]


def _decode_options(parameters: nnx.State, mesh: Mesh) -> dict[str, str] | None:
    """The compiler options of the decode step; None for the defaults.

    On CPUs XLA multiplies by float32 copies of bfloat16 weights. By default it makes all copies before the
    loop, or early in each step, and keeps them: 4.6 GiB for 20b. With these options it holds one at a time.
    """
    narrow = any(leaf.dtype == jnp.bfloat16 for leaf in jax.tree.leaves(parameters))
    if narrow and mesh.devices.flat[0].platform == "cpu":
        return {
            "xla_disable_hlo_passes": "while-loop-invariant-code-motion",
            "xla_cpu_scheduler_type": "CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED",
        }
    return None


def _spread(
    mesh: Mesh,
    step: Callable,
    in_splits: Any,
    out_splits: Any,
    *,
    donated: tuple[int, ...],
    compiler_options: dict[str, str] | None = None,
) -> jax.stages.Wrapped:
    spread = jax.shard_map(step, mesh=mesh, in_specs=in_splits, out_specs=out_splits, check_vma=False)
    # Given explicitly: by default jax writes the same sharding differently if an axis has size 1, and then
    # compiles a second time.
    return jax.jit(
        spread,
        donate_argnums=donated,
        out_shardings=shardings_of(mesh, out_splits),
        compiler_options=compiler_options,
    )


def shardings_of(mesh: Mesh, splits: Any) -> Any:
    """The `NamedSharding`s of a tree of `PartitionSpec`s."""
    return jax.tree.map(
        functools.partial(NamedSharding, mesh),
        splits,
        is_leaf=lambda leaf: isinstance(leaf, PartitionSpec),
    )


def _parameter_splits(state: nnx.State) -> nnx.State:
    """The `PartitionSpec` of every parameter, in a tree like `state`."""
    return nnx.from_flat_state(
        [
            (path, leaf.replace(parameter_split(".".join(map(str, path)))))
            for path, leaf in nnx.to_flat_state(state)
        ]
    )


def empty_cache(config: ModelConfig, layout: Layout, shape: MeshShape) -> KVCache:
    """The empty KV cache of all shards of a mesh."""
    sizes = CacheShape(layout.pages, layout.page_size, layout.slots, layout.ring, layout.snapshots)
    return new_cache(
        config, sizes, layout.kv_dtype, batch_shards=shape.batch_shards, head_shards=shape.tensor
    )


def idle_slots(count: int, vocabulary: int) -> Slots:
    """The state of `count` idle slots, for a vocabulary that is padded to `vocabulary` rows."""
    zeros = jnp.zeros(count, jnp.int32)
    return Slots(zeros, zeros, zeros, jnp.zeros((count, vocabulary), jnp.uint16))


@jax.named_scope("prefill")
def prefill(graph: nnx.GraphDef, parameters: nnx.State, cache: KVCache, chunk: Chunk) -> KVCache:
    """Returns the cache with a chunk's keys and values. Samples nothing: `decode` feeds the last token."""
    model: Transformer = nnx.merge(graph, parameters)
    return model.prefill(
        chunk.tokens, chunk.positions, cache, chunk.table, chunk.slots.astype(jnp.int32), chunk.starts
    )[1]


@jax.named_scope("decode")
def decode(
    graph: nnx.GraphDef,
    vocabulary: int,
    max_steps: int,
    parameters: nnx.State,
    cache: KVCache,
    slots: Slots,
    patch: jax.Array,
    table: jax.Array,
    rows: Rows,
    masks: Masks,
    steps: jax.Array,
) -> tuple[KVCache, Slots, DecodedTokens]:
    """Draws up to `steps` tokens for every slot.

    A slot becomes idle after a stop token or the last token that it may draw. The loop ends early if all
    slots are idle.

    Args:
        graph, parameters: the model, split by `nnx.split`.
        vocabulary: the number of tokens without padding.
        max_steps: the most steps, K: the size of the returned arrays.
        cache: the KV cache.
        slots: the state of the slots.
        patch: int32 [B, 4], the host's changes: 1 to change the slot or 0, then its new token, position and
            remaining tokens.
        table: int32 [B, M], the block table.
        rows: the slots' settings.
        masks: the grammars' masks, for the first token of the dispatch.
        steps: int32 [], how many steps to run, at most `max_steps`.
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

    def unfinished(carry: tuple[jax.Array, jax.Array, KVCache, Slots, DecodedTokens]) -> jax.Array:
        step, alive, *_ = carry
        return (step < steps) & alive

    def step_once(
        carry: tuple[jax.Array, jax.Array, KVCache, Slots, DecodedTokens],
    ) -> tuple[jax.Array, jax.Array, KVCache, Slots, DecodedTokens]:
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
        drawn = DecodedTokens(
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

    nothing = DecodedTokens(
        jnp.full((max_steps, batch), EMPTY, jnp.int32),
        jnp.zeros((max_steps, sampled), jnp.float32),
        jnp.zeros((max_steps, sampled, MAX_TOP_LOGPROBS), jnp.int32),
        jnp.zeros((max_steps, sampled, MAX_TOP_LOGPROBS), jnp.float32),
    )
    carry = (jnp.int32(0), _any_shard(slots.remaining > 0), cache, slots, nothing)
    _, _, cache, slots, drawn = jax.lax.while_loop(unfinished, step_once, carry)
    everyone = DecodedTokens(
        _gather(drawn.tokens, DATA, EXPERT, dimension=1),
        *(_gather(array, *AXES, dimension=1) for array in drawn[1:]),
    )
    return cache, slots, everyone


@jax.named_scope("count_tokens")
def count(slots: Slots, row: jax.Array, prompt: jax.Array, completion: jax.Array) -> Slots:
    """Replaces the token counts of one slot.

    row: int32 [], the slot among those of all shards.
    prompt, completion: int32 [any], the sequence's tokens; EMPTY is padding.
    """
    rows = slots.counts.shape[0]
    local = row - jax.lax.axis_index(AXES) * rows
    own = jnp.where((local >= 0) & (local < rows), local, EMPTY)  # EMPTY: the row is on another device
    return dataclasses.replace(slots, counts=count_prompt(slots.counts, own, prompt, completion))


def _whole_rows(logits: jax.Array) -> jax.Array:
    """Logits of all rows and a part of the vocabulary → of a part of the rows and the whole vocabulary."""
    if axis_size(TENSOR) == 1:
        return logits
    return jax.lax.all_to_all(logits, TENSOR, split_axis=0, concat_axis=1, tiled=True)


def _own_rows(count: int, x: jax.Array) -> jax.Array:
    """The rows of a batch shard that this device samples."""
    if count == x.shape[0]:
        return x
    return jax.lax.dynamic_slice_in_dim(x, jax.lax.axis_index(TENSOR) * count, count)


def _gather(x: jax.Array, *axes: str, dimension: int = 0) -> jax.Array:
    """The concatenated parts of all devices along some mesh axes."""
    named = tuple(axis for axis in axes if axis_size(axis) > 1)
    return jax.lax.all_gather(x, named, axis=dimension, tiled=True) if named else x


def _any_shard(flags: jax.Array) -> jax.Array:
    """True if any flag is set on any device. All devices must agree on when the loop ends."""
    found = flags.any()
    named = tuple(axis for axis in (DATA, EXPERT) if axis_size(axis) > 1)
    return jax.lax.psum(found.astype(jnp.int32), named) > 0 if named else found
