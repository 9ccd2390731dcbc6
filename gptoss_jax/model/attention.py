"""Attention of the served model: over pages on full layers, over rings on sliding ones."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

import jax
from flax import nnx

from gptoss_jax.model import gpt_oss
from gptoss_jax.model.gpt_oss import rotate
from gptoss_jax.model.kv_cache import DecodeMetadata, PagePool, PrefillMetadata, Rings
from gptoss_jax.model.layers import ColumnParallelLinear, RowParallelLinear
from pallas_kernels.attention import decode_pages, decode_ring, prefill, prefill_pages

Rotation = tuple[jax.Array, jax.Array]
"""cos and sin, float32 [B, T, h/2] each."""


Entries = TypeVar("Entries", PagePool, Rings)


class ServedAttention(nnx.Module, Generic[Entries]):
    """Norm, projections, rotary positions and attention of one layer, on the layer's part of the KV cache.

    On a mesh, the heads are split along the axis `tensor`.
    """

    def __init__(self, attention: gpt_oss.Attention):
        self.head_size = attention.head_size
        self.norm = attention.norm
        self.query = ColumnParallelLinear(attention.query)
        self.key = ColumnParallelLinear(attention.key)
        self.value = ColumnParallelLinear(attention.value)
        self.sinks = attention.sinks
        self.output = RowParallelLinear(attention.output)

    def project(self, x: jax.Array, rotation: Rotation) -> tuple[jax.Array, jax.Array, jax.Array]:
        """x [B, T, D] → queries [B, T, H, h], keys and values [B, T, K, h]; queries and keys are rotated."""
        x = self.norm(x)
        q, k, v = (
            linear(x).reshape(*x.shape[:2], -1, self.head_size)
            for linear in (self.query, self.key, self.value)
        )
        return rotate(q, *rotation), rotate(k, *rotation), v

    def project_out(self, mixed: jax.Array) -> jax.Array:
        """Applies the output projection: [B, T, H, h] → [B, T, D]."""
        return self.output(mixed.reshape(*mixed.shape[:2], -1))

    def prefill(
        self, x: jax.Array, rotation: Rotation, entries: Entries, chunk: PrefillMetadata
    ) -> tuple[jax.Array, Entries]:
        """Runs a chunk, x [n, T, D]. Returns [n, T, D], to be added to x, and the layer's new entries."""
        raise NotImplementedError

    def decode(
        self, x: jax.Array, rotation: Rotation, entries: Entries, step: DecodeMetadata
    ) -> tuple[jax.Array, Entries]:
        """Runs one token per slot, x [B, 1, D].

        Returns [B, 1, D], to be added to x, and the layer's new entries.
        """
        raise NotImplementedError


class FullAttention(ServedAttention[PagePool]):
    """An odd layer: a query sees all keys up to its own, which lie in pages."""

    @jax.named_scope("full_attention")
    def prefill(
        self, x: jax.Array, rotation: Rotation, entries: PagePool, chunk: PrefillMetadata
    ) -> tuple[jax.Array, PagePool]:
        """Stores the chunk's keys and values, then attends to the pages."""
        q, k, v = self.project(x, rotation)
        pool = entries.store_chunk(k, v, chunk)
        mixed = prefill_pages(q, pool.entries, chunk.block_table, chunk.positions, self.sinks[...])
        return self.project_out(mixed), pool

    @jax.named_scope("full_attention")
    def decode(
        self, x: jax.Array, rotation: Rotation, entries: PagePool, step: DecodeMetadata
    ) -> tuple[jax.Array, PagePool]:
        """Stores the tokens' keys and values, then attends."""
        q, k, v = self.project(x, rotation)
        pool = entries.store_token(k, v, step)
        lengths = step.positions + 1
        mixed = decode_pages(q[:, 0], pool.entries, step.block_table, lengths, self.sinks[...])
        return self.project_out(mixed[:, None]), pool


class SlidingAttention(ServedAttention[Rings]):
    """An even layer: a query sees the last `window` keys, its own included, which lie in a ring."""

    def __init__(self, attention: gpt_oss.Attention, window: int):
        super().__init__(attention)
        self.window = window

    @jax.named_scope("sliding_attention")
    def prefill(
        self, x: jax.Array, rotation: Rotation, entries: Rings, chunk: PrefillMetadata
    ) -> tuple[jax.Array, Rings]:
        """Attends, then stores the chunk's keys and values: its first tokens
        see entries that its last ones overwrite.
        """
        q, k, v = self.project(x, rotation)
        before = entries.read(chunk.rings)
        mixed = prefill(
            *(q, k, v, chunk.positions, self.sinks[...], before, chunk.cached_positions), window=self.window
        )
        return self.project_out(mixed), entries.store_chunk(k, v, chunk)

    @jax.named_scope("sliding_attention")
    def decode(
        self, x: jax.Array, rotation: Rotation, entries: Rings, step: DecodeMetadata
    ) -> tuple[jax.Array, Rings]:
        """Stores the tokens' keys and values, then attends."""
        q, k, v = self.project(x, rotation)
        rings = entries.store_token(k, v, step)
        mixed = decode_ring(
            *(q[:, 0], rings.entries, step.cached_positions, step.positions, self.sinks[...]),
            window=self.window,
        )
        return self.project_out(mixed[:, None]), rings


def served_attention(attention: gpt_oss.Attention) -> ServedAttention[Any]:
    """The served attention of a plain layer, with the same parameters."""
    if attention.window is None:
        return FullAttention(attention)
    return SlidingAttention(attention, attention.window)
