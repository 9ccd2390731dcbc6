"""Figures from counts: one row per kernel and shape, and the sum of a whole decode step."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from pallas_kernels.inspect import chips
from pallas_kernels.inspect.case import STEP_BATCHES, STEP_CONTEXT, Case, Model
from pallas_kernels.inspect.counting import CountError, KernelCount
from pallas_kernels.platform import Chip


@dataclasses.dataclass(frozen=True)
class Row:
    """The figures of one case on one chip. Cycles are static counts, never measured on a TPU.

    bundles_per_step, bytes_per_step: those of a call, filling and draining included, ÷ its grid steps.
    compute_over_memory: bundles ÷ the cycles that the moved bytes need at full bandwidth; at most 1 is
    memory-bound. bandwidth_fraction: min(1, memory ÷ compute). overlapped_fraction: memory cycles ÷ cycles if
    compute and DMAs overlap only within a grid step. Expect at best the
        smaller one of these two fractions.
    bytes_over_floor: bytes moved ÷ bytes that must move.
    matrix_fraction: useful operations ÷ the capacity of the matrix units during the call.
    use: each unit's operations ÷ its capacity during the executed bundles.
    """

    chip: Chip
    operation: str
    case: str
    model: Model
    kernel: str
    program_bundles: int
    grid_steps: int
    bundles_per_step: float
    bytes_per_step: float
    memory_cycles_per_step: float
    compute_over_memory: float | None
    bandwidth_fraction: float
    overlapped_fraction: float
    bytes_over_floor: float | None
    matrix_fraction: float
    weights_per_cycle: float
    stalled_fraction: float
    use: dict[str, float]
    vmem_bytes: int
    cycles: float
    microseconds: float
    other_cycles: int
    idle_cores: int


def row(chip: Chip, case: Case, count: KernelCount) -> Row:
    """The figures of a counted case. Raises CountError if it executed fewer grid steps than
    `case.grid_steps`.
    """
    executed = sum(len(trace.iterations) for trace in count.traces)
    if executed < case.grid_steps:
        raise CountError(
            f"the grid's loop ran {executed} times, but the case has {case.grid_steps} grid steps"
        )
    facts = chips.facts(chip)
    compute, memory, steps = count.compute_cycles, count.memory_cycles, case.grid_steps
    peak = facts.flops_per_cycle * facts.cores_per_device
    return Row(
        chip=chip,
        operation=case.operation,
        case=case.name,
        model=case.model,
        kernel=case.kernel,
        program_bundles=count.bundles,
        grid_steps=steps,
        bundles_per_step=compute / steps,
        bytes_per_step=count.memory_bytes / steps,
        memory_cycles_per_step=memory / steps,
        compute_over_memory=compute / memory if memory else None,
        bandwidth_fraction=min(1.0, memory / compute),
        overlapped_fraction=memory / count.cycles,
        bytes_over_floor=count.memory_bytes / case.floor_bytes if case.floor_bytes else None,
        matrix_fraction=case.flops / (count.cycles * peak),
        weights_per_cycle=case.weights / compute,
        stalled_fraction=sum(t.empty for t in count.traces) / sum(t.bundles for t in count.traces),
        use={unit: share for unit, share in count.use().items() if share},
        vmem_bytes=count.vmem_bytes,
        cycles=count.cycles,
        microseconds=1e6 * count.cycles / facts.clock,
        other_cycles=sum(count.other_cycles.values()),
        idle_cores=sum(1 for trace in count.traces if not trace.read and len(count.traces) > 1),
    )


@dataclasses.dataclass(frozen=True)
class _Sizes:
    """The published sizes of a model that its plain matmuls depend on (D, H·h, K·h, E, V)."""

    layers: int
    experts: int
    hidden: int = 2880
    queries: int = 64 * 64
    keys: int = 8 * 64
    vocabulary: int = 201_088
    window: int = 128

    @property
    def plain_weights(self) -> int:
        """Weights outside the experts that a decode step reads: attention, router and unembedding."""
        attention = self.hidden * (2 * self.queries + 2 * self.keys)
        return self.layers * (attention + self.hidden * self.experts) + self.hidden * self.vocabulary

    @property
    def bytes(self) -> int:
        """All parameters as stored: bf16, and 4.25 bits for each expert weight."""
        experts = self.layers * self.experts * 3 * self.hidden * self.hidden
        return experts * 17 // 32 + 2 * (self.plain_weights + self.hidden * self.vocabulary)

    def cache_bytes(self, batch: int, context: int) -> int:
        """Bytes of keys and values of `batch` sequences in bfloat16.

        Every second layer keeps only the window.
        """
        rows = self.layers // 2 * (context + self.window)
        return batch * rows * 2 * self.keys * 2


SIZES: dict[Model, _Sizes] = {"20b": _Sizes(24, 32), "120b": _Sizes(36, 128)}
_NEEDED = ("expert_matmul", "attention", "routing")
_COUNTS_SOLD = (1, 2, 4, 8, 16)
_USABLE = 0.95
"""The fraction of a device's memory for weights and cache; the rest is for the runtime and activations."""


@dataclasses.dataclass(frozen=True)
class Step:
    """A decode step of a model with `batch` sequences of `context` keys, as the sum of its parts.

    parts: microseconds of all calls of each kernel; of `others`, the plain operations around them, by the
    compiler's
        estimate; and of `matmuls`, the plain ones, assuming their weights are read at full bandwidth.
    missing: operations without cases, which the sum does not include.
    devices: how many devices the weights and the cache need.
    milliseconds: the sum on one device, even if it cannot hold the model.
    best_milliseconds: the sum divided by `devices`, without any communication.
    """

    chip: Chip
    model: Model
    batch: int
    context: int
    parts: dict[str, float]
    missing: tuple[str, ...]
    devices: int
    milliseconds: float
    best_milliseconds: float
    floor_milliseconds: float
    tokens_per_second: float


def steps(chip: Chip, results: Sequence[tuple[Case, Row]]) -> list[Step]:
    """The decode steps that can be summed from the counted cases of one chip."""
    found = []
    for model, sizes in SIZES.items():
        for batch in STEP_BATCHES:
            chosen = [(c, r) for c, r in results if c.step_calls and (c.model, c.batch) == (model, batch)]
            if chosen:
                found.append(_step(chip, model, batch, sizes, chosen))
    return found


def _step(chip: Chip, model: Model, batch: int, sizes: _Sizes, chosen: Sequence[tuple[Case, Row]]) -> Step:
    facts = chips.facts(chip)
    bandwidth = facts.bandwidth * facts.cores_per_device
    parts: dict[str, float] = {}
    around = 0.0
    for case, figures in chosen:
        name = case.kernel
        parts[name] = parts.get(name, 0.0) + case.step_calls * figures.microseconds
        around += case.step_calls * 1e6 * figures.other_cycles / facts.clock
    parts["others"] = around
    plain_bytes = 2 * sizes.plain_weights
    parts["matmuls"] = 1e6 * plain_bytes / bandwidth
    total = sum(parts.values()) / 1e3
    floor = plain_bytes + sum(case.step_calls * case.floor_bytes for case, _ in chosen)
    needed = sizes.bytes + sizes.cache_bytes(batch, STEP_CONTEXT)
    memory = facts.memory * facts.cores_per_device
    devices = next((n for n in _COUNTS_SOLD if n * memory * _USABLE >= needed), _COUNTS_SOLD[-1])
    present = {case.operation for case, _ in chosen}
    return Step(
        chip=chip,
        model=model,
        batch=batch,
        context=STEP_CONTEXT,
        parts=parts,
        missing=tuple(name for name in _NEEDED if name not in present),
        devices=devices,
        milliseconds=total,
        best_milliseconds=total / devices,
        floor_milliseconds=1e3 * floor / bandwidth,
        tokens_per_second=1e3 * batch / (total / devices),
    )
