"""Decode attention over pages and over the ring: references and kernels against attention in float64."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from attention_oracle import assert_within_bound, attention, random
from hypothesis import given, settings
from hypothesis import strategies as st

import pallas_kernels.attention
from pallas_kernels.platform import using

decode_pages = jax.jit(pallas_kernels.attention.decode_pages)
decode_ring = jax.jit(pallas_kernels.attention.decode_ring)  # its window is traced: one program for all

MODES = ["reference", "tpu-interpret"]


@dataclasses.dataclass(frozen=True)
class Pages:
    """Sequences of `lengths` keys, scattered over a pool of pages that holds NaN wherever nobody looks."""

    lengths: tuple[int, ...]
    page: int
    kv_heads: int = 2
    group: int = 3
    size: int = 32
    dtype: str = "float32"
    sink: float | None = None
    seed: int = 0
    columns: int | None = None

    def arrays(self) -> tuple[np.ndarray, ...]:
        generator = np.random.default_rng(self.seed)
        batch, heads = len(self.lengths), self.kv_heads * self.group
        q = random(generator, (batch, heads, self.size), self.dtype, scale=2.0)
        used = [-(-length // self.page) for length in self.lengths]
        columns = max(used) if self.columns is None else self.columns
        pool = np.full((batch * columns + 3, self.kv_heads, self.page, 2 * self.size), np.nan, q.dtype)
        numbers = iter(generator.permutation(len(pool)))
        # Unused entries point anywhere in the pool; every page but those of the sequences is NaN.
        table = generator.integers(0, len(pool), (batch, columns), dtype=np.int32)
        for row, length in enumerate(self.lengths):
            for first in range(0, length, self.page):
                count = min(self.page, length - first)
                table[row, first // self.page] = number = next(numbers)
                pool[number, :, :count] = random(generator, (self.kv_heads, count, 2 * self.size), self.dtype)
        sinks = generator.standard_normal(heads).astype(q.dtype)
        if self.sink is not None:
            sinks = np.full_like(sinks, self.sink)
        return q, pool, table, np.array(self.lengths, np.int32), sinks

    def check(self, mode: str) -> None:
        q, pool, table, lengths, sinks = self.arrays()
        rows = [
            [
                np.concatenate([np.zeros((0, 2 * self.size), q.dtype), *(pool[n, head] for n in table[b])])[
                    : lengths[b]
                ]
                for head in range(self.kv_heads)
            ]
            for b in range(len(lengths))
        ]
        with using(mode):
            out = np.asarray(decode_pages(*map(jnp.asarray, (q, pool, table, lengths, sinks))))
        assert out.dtype == q.dtype
        assert_within_bound(out, *attention(q, rows, sinks))
        assert not out[lengths == 0].any()


PAGES = {
    "lengths around a page's border": Pages((7, 8, 9, 0, 1, 16, 17), page=8),
    "nothing at all": Pages((0, 0), page=4, columns=3),
    "one long sequence among short ones": Pages((1, 150, 2), page=16),
    "an empty sequence first and last": Pages((0, 5, 0), page=4, columns=2),
    "head size 64, eight to a KV head": Pages((33, 64), page=16, group=8, size=64),
    "head size 128": Pages((33, 5), page=16, group=1, size=128),
    "one KV head, odd page": Pages((11, 3), page=5, kv_heads=1),
    "bfloat16": Pages((100, 31, 0, 32), page=16, group=8, size=64, dtype="bfloat16"),
    "sinks that take everything": Pages((20, 0), page=8, sink=3e4),
    "sinks that take nothing": Pages((20, 0), page=8, sink=-3e4),
    "no sinks": Pages((20, 0), page=8, sink=-np.inf),
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("case", PAGES.values(), ids=PAGES)
def test_pages_hold_exactly_the_keys_that_a_sequence_sees(case: Pages, mode: str) -> None:
    case.check(mode)


@pytest.mark.parametrize("mode", MODES)
@settings(max_examples=30, deadline=None)
@given(
    lengths=st.lists(st.integers(0, 24), min_size=4, max_size=4),
    page=st.sampled_from([3, 8]),
    dtype=st.sampled_from(["float32", "bfloat16"]),
    sink=st.sampled_from([None, -200.0, 200.0]),
    seed=st.integers(0, 1000),
)
def test_any_lengths_and_any_scattering_of_pages_give_attention(
    mode: str, lengths: list[int], page: int, dtype: str, sink: float | None, seed: int
) -> None:
    Pages(tuple(lengths), page, dtype=dtype, sink=sink, seed=seed, columns=8).check(mode)


@dataclasses.dataclass(frozen=True)
class Ring:
    """Sequences whose newest token stands at `positions`, in rings of `width` rows that began at `start`."""

    positions: tuple[int, ...]
    window: int
    width: int | None = None
    start: int = 0
    kv_heads: int = 2
    group: int = 3
    size: int = 32
    dtype: str = "float32"
    sink: float | None = None
    seed: int = 0

    def check(self, mode: str) -> None:
        generator = np.random.default_rng(self.seed)
        batch, heads, width = len(self.positions), self.kv_heads * self.group, self.width or self.window
        q = random(generator, (batch, heads, self.size), self.dtype, scale=2.0)
        ring = random(generator, (batch, self.kv_heads, width, 2 * self.size), self.dtype, scale=30.0)
        held = np.full((batch, width), -1, np.int32)
        sinks = generator.standard_normal(heads).astype(q.dtype)
        if self.sink is not None:
            sinks = np.full_like(sinks, self.sink)
        rows = []
        for row, position in enumerate(self.positions):
            written = range(max(self.start, position - width + 1), position + 1)
            keys = {at: random(generator, ring[row, :, 0].shape, self.dtype) for at in written}
            for at in written:
                ring[row, :, at % width], held[row, at % width] = keys[at], at
            seen = [keys[at] for at in written if at > position - self.window]
            rows.append(
                [
                    np.array([key[head] for key in seen], q.dtype).reshape(-1, 2 * self.size)
                    for head in range(self.kv_heads)
                ]
            )
        arrays = map(jnp.asarray, (q, ring, held, np.array(self.positions, np.int32), sinks))
        with using(mode):
            out = np.asarray(decode_ring(*arrays, window=self.window))
        assert out.dtype == q.dtype
        assert_within_bound(out, *attention(q, rows, sinks))
        assert not out[np.array(self.positions) < self.start].any()


RINGS = {
    "the published window, wrapped several times": Ring((500, 127, -1, 3), window=128, group=8, size=64),
    "a ring longer than the window": Ring((0, 6, 31, -1), window=5, width=8),
    "a slot without a sequence": Ring((-1, 3, -1), window=4),
    "a sequence that began late": Ring((40, 43, 60), window=8, start=40),
    "head size 128": Ring((20, 2, 9), window=8, size=128),
    "bfloat16": Ring((300, 5, -1, 64), window=128, group=8, size=64, dtype="bfloat16"),
    "sinks that take everything": Ring((20,), window=8, sink=3e4),
    "sinks that take nothing": Ring((20,), window=8, sink=-3e4),
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("case", RINGS.values(), ids=RINGS)
def test_a_ring_shows_a_query_the_last_keys_of_its_window(case: Ring, mode: str) -> None:
    case.check(mode)


@pytest.mark.parametrize("mode", MODES)
def test_every_window_from_1_to_129_shows_exactly_its_keys(mode: str) -> None:
    """Values are powers of two, one for each key, and scores are equal: the sum of what is seen is exact."""
    width, position = 129, 200
    ring = np.zeros((1, 1, width, 64), np.float32)
    held = np.zeros((1, width), np.int32)
    for at in range(position - width + 1, position + 1):
        ring[0, 0, at % width, 32 + (position - at) // 16] = 2.0 ** ((position - at) % 16)
        held[0, at % width] = at
    with using(mode):
        for window in range(1, width + 1):
            out = decode_ring(
                jnp.zeros((1, 1, 32)),
                jnp.asarray(ring),
                jnp.asarray(held),
                jnp.array([position]),
                jnp.zeros(1),
                window=window,
            )
            seen = np.rint(np.asarray(out)[0, 0] * (window + 1)).astype(int)
            distances = [16 * lane + bit for lane in range(32) for bit in range(16) if seen[lane] >> bit & 1]
            assert distances == list(range(window))


@pytest.mark.parametrize("mode", MODES)
@settings(max_examples=30, deadline=None)
@given(
    positions=st.lists(st.integers(-1, 60), min_size=4, max_size=4),
    window=st.integers(1, 12),
    start=st.integers(0, 20),
    dtype=st.sampled_from(["float32", "bfloat16"]),
    seed=st.integers(0, 1000),
)
def test_any_positions_in_any_ring_give_attention(
    mode: str, positions: list[int], window: int, start: int, dtype: str, seed: int
) -> None:
    Ring(tuple(positions), window, 12, start, dtype=dtype, seed=seed).check(mode)
