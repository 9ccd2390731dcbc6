"""The sizes that follow from an engine's options and its mesh: slots, pages, rings, chunks. No jax."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import ml_dtypes  # noqa: F401  numpy then knows bfloat16 and the 8-bit floats by name
import numpy as np

from gptoss_jax.engine.errors import RequestError
from gptoss_jax.engine.options import ON_ACCELERATORS, EngineOptions

if TYPE_CHECKING:
    from jax.typing import DTypeLike

    from checkpoints.config import ModelConfig
    from gptoss_jax.sizes import MeshShape

_TILE = 16
"""Tokens in a tile of a TPU's memory; twice as many with an 8-bit kv_dtype."""

_SHORTEST_CHUNK = 32


class Bucket(NamedTuple):
    """The shape of a prefill step on one batch shard: `rows` sequences of `tokens` tokens each."""

    rows: int
    tokens: int


class Layout(NamedTuple):
    """The sizes of one batch shard, and of the steps that run on it.

    slots: sequences that decode at the same time.
    max_length: the longest sequence, in tokens.
    decode_steps: the most tokens that one dispatch draws for a sequence.
    buckets: the shapes of prefill steps, the shortest chunk first.
    pages, page_size: pages of the cache, and tokens in each.
    block_columns: pages of the longest sequence: the columns of the block table.
    ring: tokens in a ring of a sliding layer: the window, and the most drawn tokens that may be dropped.
    snapshots: rings in which prompt prefixes are kept for later requests.
    kv_dtype: the dtype of cached keys and values, a numpy dtype.
    """

    slots: int
    max_length: int
    decode_steps: int
    buckets: tuple[Bucket, ...]
    pages: int
    page_size: int
    block_columns: int
    ring: int
    snapshots: int
    kv_dtype: np.dtype

    @property
    def spare_ring(self) -> int:
        """The index of the ring that unused rows write to, after those of slots and snapshots."""
        return self.slots + self.snapshots

    def bucket_for(self, tokens: int) -> Bucket:
        """The bucket of a sequence that has `tokens` tokens to compute.

        It depends on nothing else, so other sequences never change how this one is split into chunks.
        """
        return next((bucket for bucket in self.buckets if bucket.tokens >= tokens), self.buckets[-1])

    def holds_window(self, window: int, position: int, last: int) -> bool:
        """Whether a ring still holds what a `window` of tokens shows at `position`, once the positions up to
        `last` were computed."""
        return last < self.ring or last - position <= self.ring - window


def lay_out(options: EngineOptions, config: ModelConfig, shape: MeshShape, dtype: DTypeLike) -> Layout:
    """Computes the layout of an engine for a model that computes in `dtype`.

    `options.max_length` must not be None. `pages` of None means as many as all slots can use, and
    `prefill_tokens` of None means 2,048.

    Raises:
        RequestError: options contradict each other.
    """
    assert options.max_length is not None
    kv_dtype = np.dtype(options.kv_dtype or dtype)
    tile = _TILE * (2 if kv_dtype.itemsize == 1 else 1)
    slots = _round_up(-(-options.slots // shape.batch_shards), shape.tensor)
    page_size = min(options.page_size, _round_up(options.max_length, tile))
    if page_size % tile:
        cached = f" for {kv_dtype} entries" if tile > _TILE else ""
        raise RequestError(f"page_size is {page_size}: it must be a multiple of {tile}{cached}")
    columns = -(-options.max_length // page_size)
    slack = _round_up(options.decode_steps, tile)
    pages = slots * columns if options.pages is None else options.pages
    if pages < columns:
        raise RequestError(
            f"pages is {pages}: the longest sequence, {options.max_length} tokens, needs {columns} of "
            f"{page_size} tokens"
        )
    return Layout(
        slots=slots,
        max_length=options.max_length,
        decode_steps=options.decode_steps,
        buckets=_buckets(options.prefill_tokens or ON_ACCELERATORS.prefill_tokens, options.max_length, slots),
        pages=pages,
        page_size=page_size,
        block_columns=columns,
        ring=min(_round_up(config.sliding_window, tile) + slack, _round_up(options.max_length, tile)),
        snapshots=options.snapshots,
        kv_dtype=kv_dtype,
    )


def _buckets(budget: int, max_length: int, slots: int) -> tuple[Bucket, ...]:
    longest = min(budget, _round_up(max_length, _TILE))
    lengths = sorted({max(min(longest, _SHORTEST_CHUNK), longest // part) for part in (1, 4, 16)})
    return tuple(Bucket(min(slots, max(1, budget // length)), length) for length in lengths)


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple
