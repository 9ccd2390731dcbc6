"""Block sizes of the TPU kernels for each generation, and the alternatives that were measured.

All figures are static counts by `pallas_kernels.inspect` at the published shapes: compute ÷ memory cycles,
where below 1 means memory-bound, in the order v5e, v5p, v6e, 7x. `decode_pages`, 8 sequences of 8,192 keys:

    each head's [K │ V] in a row, 1 MiB of pages a step           0.74  1.19  1.28  2.32  matrix unit's loads
    the same, rows of two heads combined in registers             0.85  1.16  1.25  2.29  lane rotations
    [K │ K], [V │ V] in memory (`layout`), no bounds checks       0.49  0.74  0.92  1.71  latencies
    2 MiB a step                                                  0.38  0.60  0.63  1.12
    4 MiB a step, on 7x only                                                        0.87

The order of operations in a step matters as much: for 1,024 keys on 7x, all scores, then all softmaxes, then
all sums take 1,531 cycles; one unit after the other takes 2,809. Writing the result in every step, instead of
in a branch that only the last step takes, is 1 % faster at 1,024 keys and 4 % slower at 8,192. `decode_ring`,
64 sequences:

    one sequence after another                                       0.86     –  1.96   3.9
    all sequences of a step at once (v6e: 2 MiB a step)              0.42  0.62  0.83  1.51
    two units' rings in one product of the 256 wide matrix units              0.56  1.03
    4 MiB a step, on 7x only                                                           0.77
    rings of 144 keys instead of 128, fewer of them a step           0.65  0.97  1.02  1.46
    a quarter more bytes a step                                      0.42  0.61  0.81  1.33
    two units' rings in one product all the same                     0.47  0.65  0.55  0.86

Short sequences are not memory-bound on 7x: a step takes at least 1,150 cycles there, in which the memory
could deliver 1.8 MiB, or 945 keys. So a step computes only as much of a block as the sequence has (all, 1/2,
1/4 or 1/8): 64 sequences of 300 keys then take 0.83 (v5e) and 2.86 (7x) instead of 1.12 and 4.73. Long
sequences take 3 % more.
"""

from __future__ import annotations

from typing import NamedTuple

from pallas_kernels.platform import Chip

VMEM_LIMIT = 48 << 20
"""Bytes: more than the compiler's default of 16 MiB, less than the 64 MiB of the smallest chip."""


class Blocks(NamedTuple):
    """The block sizes of one generation.

    page_bytes: bytes of pages per grid step. page_buffers: how many steps' pages are in VMEM at once.
    ring_bytes: bytes of rings per grid step. cores: TensorCores that share a device and its grid.
    matrix_width: columns of a matrix unit.
    """

    page_bytes: int
    page_buffers: int
    ring_bytes: int
    cores: int
    matrix_width: int


BLOCKS: dict[Chip, Blocks] = {
    "v5e": Blocks(page_bytes=2 << 20, page_buffers=3, ring_bytes=5 << 18, cores=1, matrix_width=128),
    "v5p": Blocks(page_bytes=2 << 20, page_buffers=3, ring_bytes=5 << 18, cores=2, matrix_width=128),
    "v6e": Blocks(page_bytes=2 << 20, page_buffers=3, ring_bytes=5 << 19, cores=1, matrix_width=256),
    "7x": Blocks(page_bytes=4 << 20, page_buffers=3, ring_bytes=5 << 20, cores=1, matrix_width=256),
}


class Units(NamedTuple):
    """How a grid splits the units of an entry over the cores: `split` parts of `each` units."""

    split: int
    each: int


def split_units(units: int, chip: Chip) -> Units:
    """One part per core if the cores divide the units, else one part in all."""
    split = BLOCKS[chip].cores if units % BLOCKS[chip].cores == 0 else 1
    return Units(split, units // split)
