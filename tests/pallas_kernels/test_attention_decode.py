"""Decode attention over pages and over the ring: references and kernels against attention in float64."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pallas_kernels.attention
from pallas_kernels.attention import entry_layout, pack, unpack
from pallas_kernels.platform import using
from tests.pallas_kernels.attention_oracle import assert_within_bound, attention, random, rounded
from tests.pallas_kernels.marks import named

# Compiled quickly, not well: an interpreted kernel takes seconds to compile and milliseconds to run.
QUICK = {"xla_backend_optimization_level": 0}
decode_pages = jax.jit(pallas_kernels.attention.decode_pages, compiler_options=QUICK)
decode_ring = jax.jit(pallas_kernels.attention.decode_ring, compiler_options=QUICK)  # any window

MODES = ["reference", "tpu-interpret", "gpu-interpret"]


@dataclasses.dataclass(frozen=True)
class Pages:
    """Sequences of `lengths` keys, scattered over a pool of pages that holds NaN everywhere else."""

    lengths: tuple[int, ...]
    page: int = 8
    columns: int = 8
    kv_heads: int = 2
    group: int = 3
    size: int = 32
    dtype: str = "float32"
    stored: str | None = None
    sink: float | None = None
    seed: int = 0

    def check(self, mode: str) -> None:
        generator = np.random.default_rng(self.seed)
        batch, heads = len(self.lengths), self.kv_heads * self.group
        q = random(generator, (batch, heads, self.size), self.dtype, scale=2.0)
        layout = entry_layout(self.kv_heads, self.size)
        pool = np.full(
            (batch * self.columns + 3, *layout[:2], self.page, layout.lanes), np.nan, self.stored or q.dtype
        )
        numbers = iter(generator.permutation(len(pool)))
        # Unused entries point anywhere in the pool; every page but those of the sequences is NaN.
        table = generator.integers(0, len(pool), (batch, self.columns), dtype=np.int32)
        rows = []
        for row, length in enumerate(self.lengths):
            keys, values = random(generator, (2, length, self.kv_heads, self.size), self.dtype)
            keys, values = rounded(keys, self.stored), rounded(values, self.stored)
            rows.append([np.concatenate([keys[:, k], values[:, k]], axis=-1) for k in range(self.kv_heads)])
            entries = np.asarray(pack(keys, values, layout))
            for first in range(0, length, self.page):
                table[row, first // self.page] = number = next(numbers)
                part = entries[first : first + self.page]
                pool[number, :, :, : len(part)] = np.moveaxis(part, 0, 2)
        sinks = generator.standard_normal(heads).astype(q.dtype)
        if self.sink is not None:
            sinks = np.full_like(sinks, self.sink)
        lengths = np.array(self.lengths, np.int32)
        with using(mode):
            out = np.asarray(decode_pages(*map(jnp.asarray, (q, pool, table, lengths, sinks))))
        assert out.dtype == q.dtype
        assert_within_bound(out, *attention(q, rows, sinks))
        assert not out[lengths == 0].any()


# Most have the same shapes, and so share a program.
PAGES = {
    "lengths around a page's border": Pages((7, 8, 9, 0)),
    "lengths around a later border": Pages((1, 15, 16, 17)),
    "nothing at all": Pages((0, 0, 0, 0)),
    "a whole block, a half and a quarter": Pages((64, 33, 32, 17)),
    "an empty sequence first and last": Pages((0, 5, 3, 0)),
    "sinks that take everything": Pages((20, 3, 0, 48), sink=3e4),
    "sinks that take nothing": Pages((20, 3, 0, 48), sink=-3e4),
    "no sinks": Pages((20, 0, 3, 48), sink=-np.inf),
    "head size 64, eight to a KV head": Pages((33, 64), page=16, columns=5, group=8, size=64),
    "head size 128": Pages((33, 5), page=16, columns=3, group=1, size=128),
    "one KV head, odd page": Pages((11, 3), page=5, columns=3, kv_heads=1),
    "one KV head of 64 and eight queries": Pages((21, 40), page=16, columns=3, kv_heads=1, group=8, size=64),
    "two units of two heads": Pages((21, 40), page=16, columns=3, kv_heads=4, group=2, size=64),
    "bfloat16, the published heads": Pages(
        (100, 31, 0, 32), page=16, columns=7, group=8, size=64, dtype="bfloat16"
    ),
    "8 bits": Pages(
        (100, 31, 0, 32), page=32, columns=4, group=8, size=64, dtype="bfloat16", stored="float8_e4m3fn"
    ),
    "8 bits and float32": Pages((7, 8, 9, 0), stored="float8_e4m3fn"),
    "8 bits, more exponent": Pages((7, 8, 9, 0), dtype="bfloat16", stored="float8_e5m2"),
}

SLOW_PAGES = {
    "head size 64, eight to a KV head",
    "head size 128",
    "one KV head, odd page",
    "bfloat16, the published heads",
    "one KV head of 64 and eight queries",
    "two units of two heads",
    "8 bits and float32",
    "8 bits, more exponent",
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("case", named(PAGES, SLOW_PAGES))
def test_pages_hold_exactly_the_keys_that_a_sequence_sees(case: Pages, mode: str) -> None:
    case.check(mode)


@pytest.mark.parametrize("mode", MODES)
@settings(max_examples=12, deadline=None)
@given(
    lengths=st.lists(st.integers(0, 64), min_size=4, max_size=4),
    sink=st.sampled_from([None, -200.0, 200.0]),
    seed=st.integers(0, 1000),
)
def test_any_lengths_and_any_scattering_of_pages_give_attention(
    mode: str, lengths: list[int], sink: float | None, seed: int
) -> None:
    Pages(tuple(lengths), sink=sink, seed=seed).check(mode)


@dataclasses.dataclass(frozen=True)
class Ring:
    """Sequences whose newest token stands at `positions`, in rings of `width` rows that began at `start`.

    taken_back: how many later tokens were written and taken back. Rings without a sequence hold NaN.
    """

    positions: tuple[int, ...]
    window: int
    width: int = 8
    start: int = 0
    taken_back: int = 0
    kv_heads: int = 2
    group: int = 3
    size: int = 32
    dtype: str = "float32"
    stored: str | None = None
    sink: float | None = None
    seed: int = 0

    def check(self, mode: str) -> None:
        generator = np.random.default_rng(self.seed)
        batch, heads, width = len(self.positions), self.kv_heads * self.group, self.width
        q = random(generator, (batch, heads, self.size), self.dtype, scale=2.0)
        layout = entry_layout(self.kv_heads, self.size)
        ring = random(generator, (batch + 2, *layout[:2], width, layout.lanes), self.dtype, scale=30.0)
        ring = ring.astype(self.stored or ring.dtype)
        ring[batch:] = np.nan
        held = np.full((batch, width), -1, np.int32)
        sinks = generator.standard_normal(heads).astype(q.dtype)
        if self.sink is not None:
            sinks = np.full_like(sinks, self.sink)
        rows = []
        for row, position in enumerate(self.positions):
            end = position + 1 + (self.taken_back if position >= 0 else 0)
            written = range(max(self.start, end - width), end)
            keys, values = random(generator, (2, len(written), self.kv_heads, self.size), self.dtype)
            keys, values = rounded(keys, self.stored), rounded(values, self.stored)
            entries = np.asarray(pack(keys, values, layout))
            for at, entry in zip(written, entries, strict=True):
                ring[row, :, :, at % width], held[row, at % width] = entry, at
            stop = max(position + 1 - written.start, 0)
            seen = slice(max(0, stop - self.window), stop)
            rows.append(
                [np.concatenate([keys[seen, k], values[seen, k]], axis=-1) for k in range(self.kv_heads)]
            )
        arrays = map(jnp.asarray, (q, ring, held, np.array(self.positions, np.int32), sinks))
        with using(mode):
            out = np.asarray(decode_ring(*arrays, window=self.window))
        assert out.dtype == q.dtype
        assert_within_bound(out, *attention(q, rows, sinks))
        assert not out[np.array(self.positions) < self.start].any()


RINGS = {
    "a ring longer than the window": Ring((0, 6, 31, -1), window=5),
    "slots without a sequence": Ring((-1, 3, -1, 9), window=4),
    "a sequence that began late": Ring((40, 43, 60, 47), window=8, start=40),
    "sinks that take everything": Ring((20, 3, -1, 8), window=8, sink=3e4),
    "sinks that take nothing": Ring((20, 3, -1, 8), window=8, sink=-3e4),
    "head size 128": Ring((20, 2, 9), window=8, size=128),
    "the published window, wrapped several times": Ring(
        (500, 127, -1, 3), window=128, width=128, kv_heads=4, group=8, size=64
    ),
    "bfloat16": Ring((300, 5, -1, 64), window=128, width=128, group=8, size=64, dtype="bfloat16"),
    "tokens taken back": Ring((20, 3, -1, 7), window=5, taken_back=3),
    "the engine's ring": Ring(
        (500, 127, -1, 3), 128, 144, taken_back=16, kv_heads=4, group=8, size=64, dtype="bfloat16"
    ),
    "8 bits": Ring((500, 127, -1, 3), 128, 160, group=8, size=64, dtype="bfloat16", stored="float8_e4m3fn"),
    "8 bits and float32": Ring((20, 3, -1, 7), window=5, stored="float8_e4m3fn"),
    "8 bits, more exponent": Ring((20, 3, -1, 7), window=5, dtype="bfloat16", stored="float8_e5m2"),
}

SLOW_RINGS = {
    "slots without a sequence",
    "head size 128",
    "8 bits",
    "the published window, wrapped several times",
    "bfloat16",
    "8 bits and float32",
    "8 bits, more exponent",
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("case", named(RINGS, SLOW_RINGS))
def test_a_ring_shows_a_query_the_last_keys_of_its_window(case: Ring, mode: str) -> None:
    case.check(mode)


@pytest.mark.parametrize("mode", MODES)
def test_every_window_from_1_to_129_shows_exactly_its_keys(mode: str) -> None:
    """Values are powers of two, one for each key, and scores are equal: the sum of what is seen is exact."""
    width, position = 129, 200
    values = np.zeros((1, width, 1, 32), np.float32)
    held = np.zeros((1, width), np.int32)
    for at in range(position - width + 1, position + 1):
        values[0, at % width, 0, (position - at) // 16] = 2.0 ** ((position - at) % 16)
        held[0, at % width] = at
    entries = pack(jnp.zeros_like(values), jnp.asarray(values), entry_layout(1, 32))
    ring = jnp.moveaxis(entries, 1, 3)
    with using(mode):
        for window in range(1, width + 1):
            out = decode_ring(
                jnp.zeros((1, 1, 32)),
                ring,
                jnp.asarray(held),
                jnp.array([position]),
                jnp.zeros(1),
                window=window,
            )
            seen = np.rint(np.asarray(out)[0, 0] * (window + 1)).astype(int)
            distances = [16 * lane + bit for lane in range(32) for bit in range(16) if seen[lane] >> bit & 1]
            assert distances == list(range(window))


@pytest.mark.parametrize("mode", MODES)
@settings(max_examples=12, deadline=None)
@given(
    positions=st.lists(st.integers(-1, 60), min_size=4, max_size=4),
    window=st.integers(1, 8),
    start=st.integers(0, 20),
    seed=st.integers(0, 1000),
)
def test_any_positions_in_any_ring_give_attention(
    mode: str, positions: list[int], window: int, start: int, seed: int
) -> None:
    Ring(tuple(positions), window, 8, start, 8 - window, seed=seed).check(mode)


@pytest.mark.parametrize(
    ("kv_heads", "size", "shards", "expected"),
    [
        (8, 64, 1, (4, 2, 128)),  # the published models: two heads to a row
        (8, 64, 4, (4, 2, 128)),
        (8, 64, 8, (8, 1, 128)),  # one head to a device: its keys beside its values
        (8, 128, 8, (8, 2, 128)),
        (8, 32, 1, (2, 2, 128)),
        (3, 64, 1, (3, 1, 128)),
        (6, 16, 1, (1, 2, 96)),
        (1, 256, 1, (1, 2, 256)),
    ],
)
def test_an_entry_wastes_no_lane_that_its_heads_could_fill(
    kv_heads: int, size: int, shards: int, expected: tuple[int, int, int]
) -> None:
    layout = entry_layout(kv_heads, size, shards)
    assert layout == expected
    keys, values = np.random.default_rng(0).standard_normal((2, 3, kv_heads, size))
    entries = pack(jnp.asarray(keys), jnp.asarray(values), layout)
    assert entries.shape == (3, *layout)
    for kept, given_ in zip(unpack(entries, size), (keys, values), strict=True):
        np.testing.assert_array_equal(kept, given_.astype(np.float32))
    joint = kv_heads // layout.units
    for head in range(kv_heads):
        unit, place = divmod(head, joint)
        where = (0, 1) if layout.rows == 1 else (place, place)
        for row, column, array in zip((0, layout.rows - 1), where, (keys, values), strict=True):
            found = entries[:, unit, row, column * size : (column + 1) * size]
            np.testing.assert_array_equal(found, array[:, head].astype(np.float32))


def test_heads_that_cannot_be_shared_out_are_refused() -> None:
    with pytest.raises(ValueError, match="kv_heads is 6: it must be a multiple of the number of shards, 4"):
        entry_layout(6, 64, 4)
