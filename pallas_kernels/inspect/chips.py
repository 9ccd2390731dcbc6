"""Figures of the TPU generations, and their topologies for ahead-of-time compilation."""

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

    Memory, bandwidth, matrix units and rates are from jax's own TPU tables (`jax.experimental.pallas.tpu.
    get_tpu_info_for_chip`). No clock is published. For v5e and v5p it is derived: matrix rate ÷ (2 × units ×
    size²). For v6e and 7x that would be twice the possible clock of a vector unit (each matrix unit finishes
    two results per cycle), so theirs is the clock that fits the compiler's own cycle estimates.

    delay_slots: cycles after a branch that execute whether or not it is taken. cores_per_device: TensorCores
    that jax presents as one device and that run one program together. v5p has two; its grid is split only
    along dimensions that are declared parallel and have a constant size. The two cores of a 7x chip are two
    devices.
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
        """Bytes per clock cycle from the HBM of one device."""
        return self.bytes_per_cycle * self.cores_per_device

    @property
    def bytes_per_cycle(self) -> float:
        """Bytes per clock cycle from the HBM of one TensorCore."""
        return self.bandwidth / self.clock

    @property
    def flops_per_cycle(self) -> float:
        """bfloat16 operations per clock cycle of all matrix units of one TensorCore."""
        return self.matrix_rate / self.clock


_GIB, _MIB = 1 << 30, 1 << 20

FACTS: dict[Chip, ChipFacts] = {
    "v5e": ChipFacts("v5e", 1, 16 * _GIB, 820e9, 197e12, 128 * _MIB, 1.5e9, 4, "v5e:2x2"),
    "v5p": ChipFacts("v5p", 2, 48 * _GIB, 1230e9, 229.5e12, 64 * _MIB, 1.75e9, 4, "v5p:2x2x1"),
    "v6e": ChipFacts("v6e", 1, 32 * _GIB, 1640e9, 920e12, 128 * _MIB, 1.75e9, 4, "v6e:2x2"),
    "7x": ChipFacts("7x", 1, 96 * _GIB, 3700e9, 1155e12, 64 * _MIB, 2.2e9, 6, "tpu7x:2x2x1"),
}


def facts(chip: str) -> ChipFacts:
    """The facts of a chip. Raises ValueError if `chip` is not one of `platform.CHIPS`."""
    if chip not in FACTS:
        raise ValueError(f"chip is {chip!r}: it must be one of {', '.join(CHIPS)}")
    return FACTS[chip]  # type: ignore[index]


@functools.cache
def one_core(chip: Chip) -> jax.sharding.NamedSharding:
    """A sharding onto the first TensorCore of a described chip. The first call in a process loads libtpu."""
    from jax.experimental import topologies

    topology = topologies.get_topology_desc(platform="tpu", topology_name=facts(chip).topology)
    mesh = jax.sharding.Mesh(np.array(topology.devices[:1]), ("core",))
    return jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
