"""Block sizes of the TPU kernels, one row for each generation."""

from __future__ import annotations

from typing import NamedTuple

from pallas_kernels.platform import Chip

VMEM_LIMIT = 48 << 20
"""More than the compiler's default of 16 MiB, less than the 64 MiB of the smallest chip."""


class Blocks(NamedTuple):
    """What one grid step takes: bytes of pages, and how many steps' pages are in VMEM; bytes of rings.

    `cores` is how many TensorCores share a device and its grid, `matrix_width` the columns of a matrix unit.
    """

    page_bytes: int
    page_buffers: int
    ring_bytes: int
    cores: int
    matrix_width: int


BLOCKS: dict[Chip, Blocks] = {
    "v5e": Blocks(page_bytes=2 << 20, page_buffers=3, ring_bytes=1 << 20, cores=1, matrix_width=128),
    "v5p": Blocks(page_bytes=2 << 20, page_buffers=3, ring_bytes=1 << 20, cores=2, matrix_width=128),
    "v6e": Blocks(page_bytes=2 << 20, page_buffers=3, ring_bytes=2 << 20, cores=1, matrix_width=256),
    "7x": Blocks(page_bytes=4 << 20, page_buffers=3, ring_bytes=4 << 20, cores=1, matrix_width=256),
}


class Units(NamedTuple):
    """How a grid shares out the units of an entry: `split` parts of `each` units, one for each core."""

    split: int
    each: int


def split_units(units: int, chip: Chip) -> Units:
    """One part for each core where that is possible."""
    split = BLOCKS[chip].cores if units % BLOCKS[chip].cores == 0 else 1
    return Units(split, units // split)
