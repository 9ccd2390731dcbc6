"""What an engine may be told, and what follows from it on a mesh."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from checkpoints.config import ModelConfig
from gptoss_jax.cache import CacheShape
from gptoss_jax.engine.request import RequestError
from gptoss_jax.sharding import MeshShape

_TILE = 16
"""Tokens in a tile of a TPU's memory; 8-bit entries have twice as many."""

_SHORTEST_CHUNK = 32
KV_DTYPES = ("float32", "bfloat16", "float8_e4m3fn", "float8_e5m2")


@dataclasses.dataclass(frozen=True)
class EngineOptions:
    """How an engine works. The defaults serve most.

    slots: sequences that decode side by side, on all devices together; rounded up to what the mesh divides.
    max_length: the longest sequence, prompt and completion together, in tokens.
    decode_steps: the most tokens of a sequence in one dispatch.
    prefill_tokens: prompt tokens that one dispatch computes on each batch shard (None: 2048, on CPUs 512).
    page_size: tokens in a page of the cache.
    pages: pages on each batch shard (None: as many as fit in memory, at most what all slots can use; on
        CPUs all of that).
    snapshots: beginnings of prompts that are kept for later requests, on each batch shard; 0 for none.
    kv_dtype: what keys and values are stored in (None: the model's dtype).
    memory: bytes of each device that the engine may use (None: what the device has).
    """

    slots: int = 32
    max_length: int = 2048
    decode_steps: int = 16
    prefill_tokens: int | None = None
    page_size: int = 64
    pages: int | None = None
    snapshots: int = 16
    kv_dtype: str | None = None
    memory: int | None = None

    def __post_init__(self) -> None:
        for name, least in (
            *(("slots", 1), ("max_length", 2), ("decode_steps", 1), ("prefill_tokens", 1), ("page_size", 1)),
            *(("pages", 1), ("snapshots", 0), ("memory", 1)),
        ):
            value = getattr(self, name)
            if value is None:
                continue
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise RequestError(f"{name} is {value!r}: it must be a whole number from {least}")
        if self.kv_dtype is not None and self.kv_dtype not in KV_DTYPES:
            raise RequestError(f"kv_dtype is {self.kv_dtype!r}: it must be one of {', '.join(KV_DTYPES)}")


class Bucket(NamedTuple):
    """The shape of a prefill step on one batch shard: rows of so many tokens."""

    rows: int
    tokens: int


class Layout(NamedTuple):
    """What the options come to on a mesh. `slots` and the cache are those of one batch shard."""

    slots: int
    max_length: int
    decode_steps: int
    buckets: tuple[Bucket, ...]
    cache: CacheShape
    kv_dtype: Any
    page_columns: int

    def bucket_for(self, tokens: int) -> Bucket:
        """The bucket of a sequence with so many tokens to go: it depends on nothing else, so neighbours
        never change how a sequence is cut."""
        return next((bucket for bucket in self.buckets if bucket.tokens >= tokens), self.buckets[-1])


def lay_out(options: EngineOptions, config: ModelConfig, shape: MeshShape, dtype: Any) -> Layout:
    """The layout of an engine, all pages that its slots can use included."""
    kv_dtype = jnp.dtype(options.kv_dtype or dtype)
    tile = _TILE * (2 if kv_dtype.itemsize == 1 else 1)
    share = -(-options.slots // shape.batch_shards)
    slots = _up(share, shape.tensor)
    page = min(options.page_size, _up(options.max_length, tile))
    columns = -(-options.max_length // page)
    slack = _up(options.decode_steps, tile)
    if page % tile:
        cached = f" for {kv_dtype} entries" if tile > _TILE else ""
        raise RequestError(f"page_size is {page}: it must be a multiple of {tile}{cached}")
    ring = min(_up(config.sliding_window, tile) + slack, _up(options.max_length, tile))
    pages = slots * columns if options.pages is None else options.pages
    if pages < columns:
        raise RequestError(
            f"pages is {pages}: the longest sequence, {options.max_length} tokens, needs {columns} of "
            f"{page} tokens"
        )
    return Layout(
        slots=slots,
        max_length=options.max_length,
        decode_steps=options.decode_steps,
        buckets=_buckets(options, slots),
        cache=CacheShape(pages, page, slots, ring, options.snapshots),
        kv_dtype=kv_dtype,
        page_columns=columns,
    )


def _buckets(options: EngineOptions, slots: int) -> tuple[Bucket, ...]:
    budget = options.prefill_tokens or (512 if jax.default_backend() == "cpu" else 2048)
    longest = min(budget, _up(options.max_length, _TILE))
    lengths = sorted({max(min(longest, _SHORTEST_CHUNK), longest // part) for part in (1, 4, 16)})
    return tuple(Bucket(min(slots, max(1, budget // length)), length) for length in lengths)


def _up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple
