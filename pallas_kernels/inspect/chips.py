"""The TPU generations in numbers, and their topologies for ahead-of-time compilation."""

from __future__ import annotations

import dataclasses
import functools

import jax
import numpy as np

from pallas_kernels.platform import CHIPS, Chip


@dataclasses.dataclass(frozen=True)
class ChipFacts:
    """One TensorCore of a generation. Bandwidth in bytes/s, clock in Hz, matrix rate in bf16 FLOP/s, sizes
    in bytes.

    Memory, bandwidth, matrix units and rates are those of jax's own TPU tables (`jax.experimental.pallas.tpu.
    get_tpu_info_for_chip`). The clock is published for no generation. For v5e and v5p it is the matrix rate
    ÷ (2 × units × size²); for v6e and 7x, where that gives twice what a vector unit can run at (each unit
    finishes two results a cycle), it is the clock that fits the compiler's own cycle estimates.

    `delay_slots`: cycles behind a branch that are executed whether or not it is taken, as the compiler
    fills them. `cores_per_device`: TensorCores that jax presents as one device, which run one program
    together: v5p has two (its grid is split only along dimensions that are declared parallel and have a
    constant size), the two cores of a 7x chip are two devices.
    """

    name: Chip
    cores_per_device: int
    memory: int
    bandwidth: float
    matrix_rate: float
    vmem: int
    clock: float
    delay_slots: int
    topology: str

    @property
    def device_bytes_per_cycle(self) -> float:
        """Bytes that the HBM of one device delivers in one cycle of its cores' clock."""
        return self.bytes_per_cycle * self.cores_per_device

    @property
    def bytes_per_cycle(self) -> float:
        """Bytes that the HBM of one TensorCore delivers in one cycle of its clock."""
        return self.bandwidth / self.clock

    @property
    def flops_per_cycle(self) -> float:
        """bf16 floating point operations of all matrix units of one TensorCore in one cycle of its clock."""
        return self.matrix_rate / self.clock


_GIB, _MIB = 1 << 30, 1 << 20

FACTS: dict[Chip, ChipFacts] = {
    "v5e": ChipFacts("v5e", 1, 16 * _GIB, 820e9, 197e12, 128 * _MIB, 1.5e9, 4, "v5e:2x2"),
    "v5p": ChipFacts("v5p", 2, 48 * _GIB, 1230e9, 229.5e12, 64 * _MIB, 1.75e9, 4, "v5p:2x2x1"),
    "v6e": ChipFacts("v6e", 1, 32 * _GIB, 1640e9, 920e12, 128 * _MIB, 1.75e9, 4, "v6e:2x2"),
    "7x": ChipFacts("7x", 1, 96 * _GIB, 3700e9, 1155e12, 64 * _MIB, 2.2e9, 6, "tpu7x:2x2x1"),
}


def facts(chip: str) -> ChipFacts:
    """The facts of a chip; ValueError, in one line, for a name that is not one of `platform.CHIPS`."""
    if chip not in FACTS:
        raise ValueError(f"chip is {chip!r}: it must be one of {', '.join(CHIPS)}")
    return FACTS[chip]  # type: ignore[index]


@functools.cache
def one_core(chip: Chip) -> jax.sharding.NamedSharding:
    """A sharding onto the first TensorCore of a described chip; loads libtpu at the first call of a
    process."""
    from jax.experimental import topologies

    topology = topologies.get_topology_desc(platform="tpu", topology_name=facts(chip).topology)
    mesh = jax.sharding.Mesh(np.array(topology.devices[:1]), ("core",))
    return jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
