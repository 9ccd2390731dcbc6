"""Checks and times the attention kernels with random caches at the published models' shapes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp

from gptoss_jax.bench.kernels.checks import Check
from pallas_kernels import attention
from pallas_kernels.platform import using

_ERROR = 1e-2
"""The largest ‖difference‖ / ‖reference‖ for bfloat16 queries, keys and values."""


@dataclasses.dataclass(frozen=True)
class Heads:
    """The sizes of attention, the same in both published models."""

    query: int = 64
    kv: int = 8
    size: int = 64
    window: int = 128
    page: int = 128

    @property
    def key_bytes(self) -> int:
        """Bytes of one token's keys and values in bfloat16."""
        return 2 * 2 * self.kv * self.size


PUBLISHED = Heads()
SMALL = Heads(query=4, kv=2, size=32, window=8, page=16)


@dataclasses.dataclass(frozen=True)
class Case:
    """One operation at one size.

    operation: a function of `pallas_kernels.attention`. batch: sequences. queries: query tokens per sequence.
    context: keys per sequence, the queries' own included. window: None for full attention.
    """

    operation: str
    batch: int
    queries: int
    context: int
    heads: Heads
    window: int | None = None

    @property
    def name(self) -> str:
        """The name in tables."""
        window = "" if self.window is None else f", window {self.window}"
        return f"{self.operation}, {self.context} keys{window}"

    @property
    def seen(self) -> float:
        """The keys that a query sees, on average."""
        before = self.context - self.queries
        seen = before + (self.queries + 1) / 2
        return seen if self.window is None else min(seen, self.window)

    @property
    def flops(self) -> float:
        """Useful operations: two products of each query with each key that it sees."""
        return 4 * self.batch * self.queries * self.seen * self.heads.query * self.heads.size

    @property
    def bytes(self) -> float:
        """Bytes of all keys and values that a query sees, each once, and of queries and results."""
        keys = self.context if self.window is None else min(self.context, self.window + self.queries - 1)
        tokens = 2 * 2 * self.queries * self.heads.query * self.heads.size
        return self.batch * (keys * self.heads.key_bytes + tokens)

    def inputs(self, key: jax.Array) -> tuple[jax.Array, ...]:
        """Random arguments of the operation.

        All sequences have `context` keys, and pages are in random order.
        """
        heads, batch = self.heads, self.batch
        draw = iter(jax.random.split(key, 8))

        def normal(*shape: int) -> jax.Array:
            return jax.random.normal(next(draw), shape, jnp.bfloat16)

        q = normal(batch, self.queries, heads.query, heads.size)
        sinks = normal(heads.query)
        units, rows, lanes = attention.entry_layout(heads.kv, heads.size)
        positions = jnp.broadcast_to(
            jnp.arange(self.context - self.queries, self.context, dtype=jnp.int32), (batch, self.queries)
        )
        if self.operation == "prefill":
            k, v = normal(2, batch, self.queries, heads.kv, heads.size)
            return q, k, v, positions, sinks
        if self.operation == "decode_ring":
            held = jnp.arange(heads.window, dtype=jnp.int32)
            held = self.context - 1 - (self.context - 1 - held) % heads.window
            ring = normal(batch, units, rows, heads.window, lanes)
            return q[:, 0], ring, jnp.broadcast_to(held, (batch, heads.window)), positions[:, 0], sinks
        used = -(-self.context // heads.page)
        table = jax.random.permutation(next(draw), batch * used).astype(jnp.int32).reshape(batch, used)
        pages = normal(batch * used, units, rows, heads.page, lanes)
        if self.operation == "decode_pages":
            return q[:, 0], pages, table, jnp.full(batch, self.context, jnp.int32), sinks
        return q, pages, table, positions, sinks

    def run(self, mode: str) -> Callable[..., jax.Array]:
        """The operation in a mode of `pallas_kernels.platform`."""
        options = {"window": self.window} if self.operation in ("prefill", "decode_ring") else {}

        def run(*inputs: jax.Array) -> jax.Array:
            with using(mode):
                return getattr(attention, self.operation)(*inputs, **options)

        return run

    def check(self, *, interpret: bool) -> Check:
        """Compares the kernel with the reference in float32. interpret: True runs it as plain JAX."""
        inputs = self.inputs(jax.random.key(self.batch + self.context))
        got = jax.jit(self.run("gpu-interpret" if interpret else "gpu"))(*inputs).astype(jnp.float32)
        wide = [
            each.astype(jnp.float32) if jnp.issubdtype(each.dtype, jnp.floating) else each for each in inputs
        ]
        with jax.default_matmul_precision("highest"):
            expected = jax.jit(self.run("reference"))(*wide)
        error = float(jnp.linalg.norm(got - expected) / jnp.linalg.norm(expected))
        return Check(f"{self.name}, {self.batch} of them", error, _ERROR)


def cases(heads: Heads, batches: tuple[int, ...], context: int, chunk: int) -> list[Case]:
    """Decode steps of full and sliding layers, and chunks of a prompt, first and later ones."""
    decode = [
        case
        for batch in batches
        for case in (
            Case("decode_pages", batch, 1, context, heads),
            Case("decode_ring", batch, 1, context, heads, heads.window),
        )
    ]
    return [
        *decode,
        Case("prefill_pages", 1, chunk, context, heads),
        Case("prefill", 1, chunk, chunk, heads),
        Case("prefill", 1, chunk, chunk, heads, heads.window),
    ]
