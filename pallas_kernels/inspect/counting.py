"""Compiling one kernel for a described TPU and counting what the compiler scheduled.

What is counted: the TPU compiler schedules statically, and a TensorCore issues one bundle per cycle, in
order. So the bundles that a kernel executes are its compute cycles. Scalar code decides which bundles run;
`execution` runs it with the values of the scalar operands (grid size, prefetched schedule). The count
includes trip counts, `pl.when` branches, the delay slots of branches, and the pipeline's own code: address
computation, starting and awaiting DMAs, filling and draining. The same code starts the DMAs, so the bytes
moved are those of the program, not of a formula.

A count is not a measurement. It does not include waits for DMAs; instead, the compute cycles are compared
with the time that the bytes need at full bandwidth, and both overlap grid step by grid step. It also does not
include DMA latency, contention for VMEM, refetching of instructions for programs larger than the instruction
memory, clock changes, and the launch of the kernel.
"""

from __future__ import annotations

import atexit
import dataclasses
import functools
import glob
import importlib.util
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence

import jax
import numpy as np

from pallas_kernels.inspect import chips, dump, execution
from pallas_kernels.inspect.program import Program, build
from pallas_kernels.platform import Chip, using

_ENVIRONMENT = {
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    # libtpu warns if there is none; the described topologies do not depend on its value.
    "TPU_ACCELERATOR_TYPE": "v5litepod-1",
}
_NO_ESTIMATE = 1 << 60
_BUNDLES = re.compile(r"^\d+-(.+)-\d+-packed-bundles-post-ra\.txt$")


class CountError(RuntimeError):
    """The kernel cannot be counted: no libtpu, no such kernel in the program, or a compiler error."""


@dataclasses.dataclass(frozen=True)
class KernelCount:
    """One kernel, compiled for one chip. All cycles are static counts, never measured on a TPU.

    traces: what one call executes on each core of the device; empty without scalar values. vmem_bytes: the
    kernel's own windows and scratch. compile_seconds: processor seconds. other_cycles: the compiler's
    `estimated_cycles` of the plain operations around the kernel, by name. text: the dump of the final
    bundles.
    """

    chip: Chip
    kernel: str
    program: Program
    traces: tuple[execution.Trace, ...]
    vmem_bytes: int
    compile_seconds: float
    other_cycles: Mapping[str, int]
    text: str

    @property
    def bundles(self) -> int:
        """The length of the program in bundles."""
        return len(self.program.bundles)

    @property
    def compute_cycles(self) -> int:
        """Bundles that one call executes, on the core that executes the most."""
        return max(trace.bundles for trace in self.traces)

    @property
    def memory_bytes(self) -> int:
        """Bytes that the DMAs of one call read from and write to HBM, on all cores of the device."""
        return sum(trace.read + trace.written for trace in self.traces)

    @property
    def memory_cycles(self) -> float:
        """Cycles that those bytes need at the full bandwidth of the device."""
        return self.memory_bytes / chips.facts(self.chip).device_bytes_per_cycle

    @property
    def cycles(self) -> float:
        """Cycles of one call if each pass of the grid's loop takes the longer of its compute and its DMAs.

        Outside the loop, or in a kernel without one, compute and DMAs do not overlap. Each core has its share
        of the device's bandwidth, and the slowest core decides.
        """
        rate = chips.facts(self.chip).bytes_per_cycle

        def one_core(trace: execution.Trace) -> float:
            outside = [trace.before, trace.after] if trace.looped else trace.parts
            inside = trace.iterations if trace.looped else ()
            return sum(part.bundles + part.moved / rate for part in outside) + sum(
                max(part.bundles, part.moved / rate) for part in inside
            )

        return max(one_core(trace) for trace in self.traces)

    def use(self) -> dict[str, float]:
        """Each unit's operations in one call ÷ what it could have done in the time of `compute_cycles`."""
        parts = [part for trace in self.traces for part in trace.parts]
        available = self.compute_cycles * len(self.traces)
        return {
            unit: float(total) / (capacity * available)
            for unit, total, capacity in zip(
                self.program.units,
                np.sum([part.use for part in parts], axis=0),
                self.program.capacities,
                strict=True,
            )
        }


def count(
    fn: Callable[..., object],
    args: Sequence[object],
    chip: Chip,
    kernel: str,
    scalars: Sequence[np.ndarray | int] | None = None,
) -> KernelCount:
    """Compiles `fn(*args)` for one TensorCore of `chip` and counts the Pallas kernel named `kernel` inside
    it.

    scalars: the values of the compiled call's first operands, which are dynamic grid sizes, then prefetched
    arrays. An empty sequence if there are none; None inspects the program without executing it. The function
    is traced under `platform.using("tpu", chip)`. If the program has several kernels with that name, the
    first one is counted.

    The first call in a process loads libtpu with flags that make it write its schedules to files, so the
    process must not have used libtpu before. Raises CountError if it has, if libtpu is missing, if no kernel
    has that name, or if the compiler refuses the program. Raises ExecutionError if the program depends on
    values that `scalars` does not give.
    """
    folder = _dump_folder()
    for path in glob.glob(os.path.join(glob.escape(folder), "*")):
        os.remove(path)
    core = chips.one_core(chip)
    placed = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=core), tuple(args))
    start = time.monotonic()
    try:
        with using("tpu", chip):
            lowered = jax.jit(lambda *a: fn(*a)).lower(*placed)  # a new function, which no cache knows
        compiled = lowered.compile()
    except Exception as error:  # Pallas and XLA raise many types of errors here
        reason = str(error).strip().partition("\n")[0]
        raise CountError(f"{kernel} does not compile for {chip}: {reason}") from error
    seconds = time.monotonic() - start
    text = _read(folder, kernel, "packed-bundles-post-ra")
    utilization = dump.parse_utilization(_read(folder, kernel, "pre-delay_hlo-static-per-bundle-utilization"))
    program = build(dump.parse_bundles(text), utilization, chips.facts(chip).delay_slots)
    traces: tuple[execution.Trace, ...] = ()
    if scalars is not None:
        values = dict(enumerate(scalars))
        cores = range(chips.facts(chip).cores_per_device)
        traces = tuple(execution.execute(program, values, core) for core in cores)
    vmem = dump.vmem_bytes(_read(folder, kernel, "original"))
    return KernelCount(
        chip, kernel, program, traces, vmem, seconds, _other_cycles(compiled.as_text() or ""), text
    )


def require_compiler() -> None:
    """Raises CountError if libtpu is missing."""
    if importlib.util.find_spec("libtpu") is None:
        raise CountError("libtpu, the TPU compiler, is not installed here: pip install libtpu")


@functools.cache
def _dump_folder() -> str:
    """Makes the folder to which libtpu writes its schedules; it is removed when the process ends."""
    require_compiler()
    folder = tempfile.mkdtemp(prefix="pallas-kernels-inspect-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    flags = (
        os.environ.get("LIBTPU_INIT_ARGS", ""),
        f"--xla_jf_dump_to={folder}",
        "--xla_jf_dump_llo_text=true",
        "--xla_jf_dump_llo_pass_label_regex=(^original$|packed-bundles-post-ra|pre-delay_hlo)",
        # Without these, XLA would prefetch weights and caches into the VMEM that a program of one kernel
        # leaves free.
        *(f"--xla_{kind}_max_outstanding_prefetches=0" for kind in ("msa", "vf_vmem", "gf_vmem")),
    )
    os.environ["LIBTPU_INIT_ARGS"] = " ".join(flags).strip()
    return folder


def _read(folder: str, kernel: str, kind: str) -> str:
    """Reads the dump `kind` of the first kernel with that name."""
    pattern = re.compile(rf"^\d+-{re.escape(kernel)}(\.\w+)*-\d+-{re.escape(kind)}\.txt$")
    names = sorted(os.listdir(folder))
    for name in names:
        if pattern.match(name):
            with open(os.path.join(folder, name), encoding="utf-8") as file:
                return file.read()
    if not names:
        raise CountError(
            "libtpu wrote no schedules: this process had loaded it before, without the flags for that"
        )
    programs = {match[1] for name in names if (match := _BUNDLES.match(name))}
    present = sorted(
        name for name in programs if not name.startswith(("TLP", "<")) and "schedule" not in name
    )
    raise CountError(f"the program has no kernel {kernel!r}: it has {', '.join(present) or 'none'}")


def _other_cycles(text: str) -> dict[str, int]:
    """The compiler's cycle estimates of the program's outermost instructions, except kernels, which have
    none.

    Bodies of loops and branches are not summed, and instructions without an estimate are left out.
    """
    entry = text[text.index("\nENTRY ") :].partition("\n}")[0] if "\nENTRY " in text else ""
    found = re.findall(r"%([\w.\-]+) = [^\n]*?\"estimated_cycles\":\"(\d+)\"", entry)
    return {name: int(cycles) for name, cycles in found if int(cycles) < _NO_ESTIMATE}
