"""Putting entries into pages: only what is meant is written, and where the attention kernels read it."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import pallas_kernels.attention
from pallas_kernels.platform import using
from tests.pallas_kernels.marks import slow

store_entries = jax.jit(pallas_kernels.attention.store_entries)


def expected(pool: np.ndarray, entries: np.ndarray, pages: np.ndarray, rows: np.ndarray) -> np.ndarray:
    out = pool.copy()
    for at in np.ndindex(pages.shape):
        if 0 <= pages[at] < len(pool):
            out[pages[at], :, :, rows[at]] = entries[at]
    return out


@pytest.mark.parametrize("mode", ["reference", "tpu-interpret", "tpu-simulate", "gpu-interpret"])
@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("length", [slow(1), slow(12), 48, slow(144)], ids="page of {}".format)
def test_one_entry_of_each_sequence_goes_to_its_row_and_nothing_else_changes(
    mode: str, dtype: type, length: int
) -> None:
    generator = np.random.default_rng(length)
    pool = generator.standard_normal((9, 2, 2, length, 32)).astype(dtype)
    for _ in range(2):
        entries = generator.standard_normal((6, 2, 2, 32)).astype(dtype)
        pages = generator.permutation(9)[:6].astype(np.int32)
        pages[2], pages[4] = -1, 9  # no token; past the pool
        rows = generator.integers(0, length, 6, dtype=np.int32)
        want = expected(pool, entries, pages, rows)
        with using(mode):
            pool = np.asarray(store_entries(*map(jnp.asarray, (pool, entries, pages, rows))))
        np.testing.assert_array_equal(pool, want)


@pytest.mark.parametrize("mode", ["reference", "tpu-interpret", "gpu-interpret"])
@pytest.mark.parametrize("form", ["decode", "chunk"])
@pytest.mark.parametrize(("dtype", "most"), [("float8_e4m3fn", 448.0), ("float8_e5m2", 57344.0)])
def test_numbers_too_large_for_8_bits_become_the_largest(
    mode: str, form: str, dtype: str, most: float
) -> None:
    numbers = np.array([1e6, -1e6, most, most + 1, -np.inf, np.inf, 1.0, -0.3], np.float32)
    entries = np.tile(numbers, (2, 1, 2, 2)).astype(ml_dtypes.bfloat16)
    where = np.array([2, 0], np.int32), np.array([31, 4], np.int32)
    with using(mode):
        chunk = form == "chunk"
        pool = store_entries(
            jnp.zeros((3, 1, 2, 32, 16), dtype), *(x[:, None] if chunk else x for x in (entries, *where))
        )
    want = np.clip(numbers, -most, most).astype(ml_dtypes.bfloat16).astype(dtype)
    for page, row in zip(*where, strict=True):
        np.testing.assert_array_equal(
            np.asarray(pool[page, 0, 1, row]).astype(np.float32), np.tile(want, 2).astype(np.float32)
        )
    assert np.count_nonzero(np.asarray(pool).astype(np.float32)) == 2 * 2 * 16


def test_the_entries_of_a_chunk_may_share_pages() -> None:
    generator = np.random.default_rng(0)
    pool = generator.standard_normal((5, 1, 1, 8, 16)).astype(np.float32)
    entries = generator.standard_normal((2, 7, 1, 1, 16)).astype(np.float32)
    pages = np.array([[3, 3, 3, 1, 1, 1, -1], [0, 0, 4, 4, -1, 5, -1]], np.int32)
    rows = np.array([[5, 6, 7, 0, 1, 2, 0], [6, 7, 0, 1, 2, 3, 4]], np.int32)
    for mode in ("reference", "tpu-interpret"):
        with using(mode):
            stored = store_entries(*map(jnp.asarray, (pool, entries, pages, rows)))
        np.testing.assert_array_equal(stored, expected(pool, entries, pages, rows))
