"""Attention of chunks of prompts: references and kernels against attention in float64."""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pallas_kernels.attention
from pallas_kernels.attention import entry_layout, pack
from pallas_kernels.platform import using
from tests.pallas_kernels.attention_oracle import assert_within_bound, attention, random, rounded
from tests.pallas_kernels.marks import named, slow

# Compiled quickly, not well: an interpreted kernel takes seconds to compile and milliseconds to run.
QUICK = {"xla_backend_optimization_level": 0}
prefill = jax.jit(pallas_kernels.attention.prefill, static_argnames="window", compiler_options=QUICK)
prefill_pages = jax.jit(pallas_kernels.attention.prefill_pages, compiler_options=QUICK)

MODES = ["reference", "tpu-interpret", "gpu-interpret"]


@dataclasses.dataclass(frozen=True)
class Chunk:
    """Rows of a batch: `counts` tokens of a chunk that is `length` wide, behind `firsts` earlier ones."""

    firsts: tuple[int, ...]
    counts: tuple[int, ...]
    length: int
    window: int | None = None
    kv_heads: int = 2
    group: int = 3
    size: int = 32
    dtype: str = "float32"
    stored: str | None = None
    sink: float | None = None
    seed: int = 0
    room: int = 72

    def tokens(self) -> tuple[np.ndarray, ...]:
        """Queries, keys, values, sinks of every token up to the last of each row: [B, any, heads, h]."""
        generator = np.random.default_rng(self.seed)
        shape = (len(self.firsts), self.room)
        q = random(generator, (*shape, self.kv_heads * self.group, self.size), self.dtype, scale=2.0)
        k, v = rounded(random(generator, (2, *shape, self.kv_heads, self.size), self.dtype), self.stored)
        sinks = generator.standard_normal(self.kv_heads * self.group).astype(q.dtype)
        return q, k, v, sinks if self.sink is None else np.full_like(sinks, self.sink)

    def chunk(self, array: np.ndarray) -> np.ndarray:
        """The chunk's part [B, T, …] of an array [B, any, …], NaN-free rubbish as padding."""
        out = np.full((len(self.firsts), self.length, *array.shape[2:]), 7, array.dtype)
        for row, (first, count) in enumerate(zip(self.firsts, self.counts, strict=True)):
            out[row, :count] = array[row, first : first + count]
        return out

    def positions(self) -> np.ndarray:
        out = np.full((len(self.firsts), self.length), -1, np.int32)
        for row, (first, count) in enumerate(zip(self.firsts, self.counts, strict=True)):
            out[row, :count] = np.arange(first, first + count)
        return out

    def check(self, out: jax.Array, seen_from: int = 0) -> None:
        """The chunk's result [B, T, H, h] is attention to all keys from `seen_from` within the window."""
        q, k, v, sinks = self.tokens()
        positions = self.positions()
        actual = np.asarray(out)
        assert not actual[positions < 0].any()
        rows, queries = [], []
        for row, column in np.argwhere(positions >= 0):
            last = positions[row, column]
            first = seen_from if self.window is None else max(seen_from, last - self.window + 1)
            keys = [np.concatenate([x[row, first : last + 1] for x in (k, v)], axis=-1)][0]
            rows.append([keys[:, head] for head in range(self.kv_heads)])
            queries.append(q[row, last])
        if rows:
            assert_within_bound(actual[positions >= 0], *attention(np.stack(queries), rows, sinks))


def run_pages(case: Chunk, page: int, mode: str) -> None:
    """The chunk's and all earlier keys stand in pages of which everything else is NaN."""
    q, k, v, sinks = case.tokens()
    layout = entry_layout(case.kv_heads, case.size)
    columns = -(-k.shape[1] // page)
    generator = np.random.default_rng(case.seed)
    pool = np.full((len(q) * columns + 2, *layout[:2], page, layout.lanes), np.nan, case.stored or q.dtype)
    table = generator.permutation(len(pool))[: len(q) * columns].reshape(len(q), columns)
    entries = np.asarray(pack(k, v, layout))
    for row, (first, count) in enumerate(zip(case.firsts, case.counts, strict=True)):
        for at in range(first + count):
            pool[table[row, at // page], :, :, at % page] = entries[row, at]
    with using(mode):
        out = prefill_pages(
            *map(jnp.asarray, (case.chunk(q), pool, table.astype(np.int32), case.positions(), sinks))
        )
    assert out.dtype == q.dtype
    case.check(out)


# Most have the same shapes, and so share a program.
PAGES = {
    "a whole prompt, and one that ends early": Chunk((0, 0), (40, 17), 40),
    "behind prefixes that end within a page": Chunk((9, 30), (12, 5), 40),
    "behind a prefix that ends with a page": Chunk((16, 24), (12, 40), 40),
    "a row without tokens": Chunk((0, 21), (0, 3), 40),
    "sinks that take everything": Chunk((3, 0), (9, 30), 40, sink=3e4),
    "sinks that take nothing": Chunk((3, 0), (9, 30), 40, sink=-3e4),
    "one token": Chunk((33, 0), (1, 1), 1),
    "bfloat16, head size 64": Chunk((37, 0), (33, 8), 33, group=8, size=64, dtype="bfloat16"),
    "8 bits": Chunk((37, 0), (33, 8), 33, group=8, size=64, dtype="bfloat16", stored="float8_e4m3fn"),
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("case", named(PAGES, {"one token", "8 bits", "a row without tokens"}))
def test_a_chunk_sees_the_pages_before_it_and_itself(case: Chunk, mode: str) -> None:
    run_pages(case, 8, mode)


@pytest.mark.parametrize("mode", MODES)
@settings(max_examples=10, deadline=None)
@given(
    firsts=st.lists(st.integers(0, 30), min_size=2, max_size=2),
    counts=st.lists(st.integers(0, 40), min_size=2, max_size=2),
    seed=st.integers(0, 1000),
)
def test_any_chunk_behind_any_prefix_gives_attention_over_pages(
    mode: str, firsts: list[int], counts: list[int], seed: int
) -> None:
    run_pages(Chunk(tuple(firsts), tuple(counts), 40, seed=seed), 8, mode)


def run_ring(case: Chunk, width: int, mode: str, taken_back: int = 0) -> None:
    """The last `width` keys before each chunk stand in a ring, rubbish elsewhere in it, and at later
    positions, of tokens that were `taken_back`.
    """
    q, k, v, sinks = case.tokens()
    layout = entry_layout(case.kv_heads, case.size)
    generator = np.random.default_rng(case.seed)
    ring = random(generator, (len(q), *layout[:2], width, layout.lanes), case.dtype, scale=30.0)
    ring = ring.astype(case.stored or ring.dtype)
    held = np.full((len(q), width), -1, np.int32)
    entries = np.asarray(pack(k, v, layout))
    for row, first in enumerate(case.firsts):
        for at in range(max(0, first - width), first):
            ring[row, :, :, at % width], held[row, at % width] = entries[row, at], at
        for at in range(first, first + taken_back):
            ring[row, :, :, at % width], held[row, at % width] = 5, at
    arrays = map(jnp.asarray, (*map(case.chunk, (q, k, v)), case.positions(), sinks, ring, held))
    with using(mode):
        out = prefill(*arrays, window=case.window)
    assert out.dtype == q.dtype
    case.check(out)


RINGS = {
    "the published window": (
        Chunk((0, 100, 300), (20, 20, 3), 20, window=128, group=8, size=64, room=304),
        128,
    ),
    "a chunk longer than the window": (Chunk((50, 3), (140, 130), 140, window=8, room=200), 8),
    "a window of one, and a ring for more": (Chunk((5, 0), (4, 3), 4, window=1), 3),
    "a window longer than a block": (Chunk((400, 10), (9, 9), 9, window=129, room=410), 140),
    "a row without tokens": (Chunk((12, 0), (0, 5), 5, window=4), 4),
    "bfloat16": (Chunk((70, 0), (30, 12), 30, window=16, size=64, dtype="bfloat16", room=101), 16),
    "8 bits": (
        Chunk((70, 0), (30, 12), 30, window=16, size=64, dtype="bfloat16", stored="float8_e4m3fn", room=101),
        32,
    ),
}

SLOW_RINGS = {
    "the published window",
    "8 bits",
    "a chunk longer than the window",
    "a window longer than a block",
    "a row without tokens",
    "bfloat16",
    "a window of one, and a ring for more",
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("case", "width"), named(RINGS, SLOW_RINGS))
def test_a_chunk_sees_the_ring_before_it_and_itself(case: Chunk, width: int, mode: str) -> None:
    run_ring(case, width, mode)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("taken_back", [slow(0), slow(3), 16])
def test_a_chunk_sees_its_window_of_a_longer_ring_and_nothing_that_was_taken_back(
    mode: str, taken_back: int
) -> None:
    case = Chunk((5, 100, 300), (20, 20, 3), 20, window=128, group=8, size=64, room=304)
    run_ring(case, 144, mode, taken_back)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("window", [slow(None), 5, slow(1), slow(129)])
def test_tokens_without_a_cache_see_each_other_within_the_window(window: int | None, mode: str) -> None:
    case = Chunk((0, 0), (150, 3), 150, window=window, room=150)
    q, k, v, sinks = case.tokens()
    with using(mode):
        out = prefill(
            *map(jnp.asarray, (*map(case.chunk, (q, k, v)), case.positions(), sinks)), window=window
        )
    case.check(out)


@pytest.mark.parametrize("mode", MODES)
def test_padding_may_stand_before_the_tokens_where_there_is_no_ring(mode: str) -> None:
    case = Chunk((0, 0), (12, 7), 12, window=4)
    q, k, v, sinks = case.tokens()
    shift = functools.partial(np.roll, shift=5, axis=1)
    case_shifted = [shift(case.chunk(x)) for x in (q, k, v)]
    positions = case.positions()
    positions[0, 7:] = -1  # what would wrap around
    with using(mode):
        out = prefill(*map(jnp.asarray, (*case_shifted, shift(positions), sinks)), window=4)
    expected = prefill(*map(jnp.asarray, (*map(case.chunk, (q, k, v)), positions, sinks)), window=4)
    np.testing.assert_allclose(np.roll(out, -5, axis=1), expected, rtol=0, atol=1e-5)


def test_the_simulator_finds_no_race_and_no_read_out_of_bounds_in_chunks_over_pages() -> None:
    run_pages(Chunk((5, 0), (4, 2), 8, room=16), 4, "tpu-simulate")
