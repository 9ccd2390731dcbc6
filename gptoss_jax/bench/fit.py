"""Compiles the engine's steps for TPUs on a machine without one: do they fit in memory, and what do they
copy?

The package libtpu contains the real compiler, and jax can describe a slice of TPUs to it. This module
compiles the steps that an engine runs there from the shapes of its model, cache and slots, and reads from the
compiled program how it uses memory.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import importlib.util
import json
import math
import os
import re
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from checkpoints.config import GPT_OSS_20B, GPT_OSS_120B, ModelConfig
from gptoss_jax.engine.errors import RequestError
from gptoss_jax.engine.layout import Bucket, lay_out
from gptoss_jax.engine.options import EngineOptions
from gptoss_jax.engine.shapes import EngineShapes, device_bytes
from gptoss_jax.engine.steps import Steps
from gptoss_jax.sharding import make_mesh, shape_of
from gptoss_jax.sizes import ShardingError
from pallas_kernels.expert_matmul import code_format_for
from pallas_kernels.platform import Chip, using

GIB = 2**30

LARGEST_COPY = 64 << 20
"""The largest copy in bytes that a decode step may contain; weights and caches are larger."""

MIN_SPARE = int(0.3 * GIB)
"""Bytes of a device that must remain free."""

MAX_PADDING = 0.03
"""The largest padding of a step's arguments, as a fraction of their size."""

LIMITS: dict[Chip, int] = {
    "v5e": int(15.75 * GIB),
    "v5p": int(95.73 * GIB),
    "v6e": int(31.24 * GIB),
    "7x": int(94.74 * GIB),
}
"""Bytes of a device that programs may use, as in the compiler's message for programs that need more."""

_FLAT = ("1x1", "2x2", "2x4", "4x4", "4x8", "8x8", "8x16", "16x16")
_CUBES = ("1x1x1", "2x2x1", "2x2x2", "2x2x4", "2x4x4", "4x4x4")
TOPOLOGIES: dict[str, Chip] = {
    **{f"v5e:{size}": "v5e" for size in _FLAT},
    **{f"v6e:{size}": "v6e" for size in _FLAT},
    **{f"v5p:{size}": "v5p" for size in _CUBES},
    **{f"tpu7x:{size}": "7x" for size in _CUBES},
}
"""The slices that can be rented, by the compiler's names; the compiler would accept others too."""

_ONE_HOST = {"1x1": (1, 1, 1), "2x4": (2, 4, 1), "1x1x1": (1, 1, 1)}
"""Chips per machine for slices that are one machine; the compiler would assume four."""

_ENVIRONMENT = {
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    # Any type: libtpu warns if it finds none, and the topologies described here do not depend on it.
    "TPU_ACCELERATOR_TYPE": "v5litepod-1",
}

MODELS = {"20b": GPT_OSS_20B, "120b": GPT_OSS_120B}


class Target(NamedTuple):
    """A model on a slice, and the number of slots on all its devices together."""

    model: str
    topology: str
    slots: int


TARGETS = (
    Target("20b", "v5e:1x1", 8),
    Target("20b", "v6e:1x1", 64),
    Target("120b", "v5e:2x4", 64),
    Target("120b", "v6e:2x2", 64),
    Target("120b", "v5p:1x1x1", 64),
    Target("120b", "tpu7x:1x1x1", 64),
    Target("120b", "v5e:4x4", 64),
)
"""The combinations that must fit, with sequences of 8,192 tokens. The last slice has four machines."""


class CompileError(RuntimeError):
    """The compiler is not installed, or the topology does not exist. The message is one line."""


class StepError(CompileError):
    """The compiler refuses a step. The message is one line with the reason."""


@dataclasses.dataclass(frozen=True)
class StepMemory:
    """How a compiled step uses one device's memory. All sizes are in bytes.

    arrays: the step's arguments by their shapes, this device's part. arguments: the same with the compiler's
    padding. temporaries: further memory while the step runs, the program included. outputs: outputs that do
    not reuse an argument's memory. resident: everything that an engine keeps on the device between steps.
    limit: what programs may use. copies: instructions that copy more than `LARGEST_COPY`, without those in
    `retiled`. retiled: copies that a 7x needs, because it computes with tiles of 16 rows of bfloat16 but
    receives arguments in tiles of 8. unaliased: how many donated arrays are not updated in place.
    lower_seconds, compile_seconds: processor seconds.
    """

    name: str
    arrays: int
    arguments: int
    temporaries: int
    outputs: int
    resident: int
    limit: int
    copies: tuple[str, ...]
    retiled: tuple[str, ...]
    unaliased: int
    lower_seconds: float
    compile_seconds: float

    @property
    def peak(self) -> int:
        """Bytes in use while the step runs, including arrays that the step does not read."""
        return self.resident + self.temporaries + self.outputs

    @property
    def spare(self) -> int:
        """Bytes that remain free."""
        return self.limit - self.peak

    def complaints(self) -> list[str]:
        """What is wrong with the step, one line each; empty if nothing is.

        A step must leave `MIN_SPARE` free, pad its arguments by at most `MAX_PADDING`, update donated arrays
        in place, and copy nothing large.
        """
        found = []
        if self.spare < MIN_SPARE:
            found.append(f"{self.spare / GIB:.2f} GiB are free: there must be at least {MIN_SPARE / GIB:.1f}")
        if self.arguments > (1 + MAX_PADDING) * self.arrays:
            padding = self.arguments / self.arrays - 1
            found.append(f"the arguments are padded by {padding:.1%}: at most {MAX_PADDING:.0%} is allowed")
        if self.unaliased:
            found.append(f"{self.unaliased} arrays of the cache and the slots are held twice")
        return found + [f"copies {copy}" for copy in self.copies]


def described_devices(topology: str) -> list[jax.Device]:
    """The devices of a described slice of TPUs, by its name in `TOPOLOGIES`. Raises `CompileError`."""
    if topology not in TOPOLOGIES:
        raise CompileError(f"topology is {topology!r}: it must be one of {', '.join(TOPOLOGIES)}")
    if importlib.util.find_spec("libtpu") is None:
        raise CompileError("libtpu, the TPU compiler, is not installed here: pip install libtpu")
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    return list(_devices(topology))


@functools.cache
def _devices(topology: str) -> tuple[jax.Device, ...]:
    from jax.experimental import topologies

    size = topology.partition(":")[2]
    bounds = {"chips_per_host_bounds": _ONE_HOST[size]} if size in _ONE_HOST else {}
    description = topologies.get_topology_desc(platform="tpu", topology_name=topology, **bounds)
    return tuple(description.devices)


class EngineOnTPU:
    """An engine for a described slice of TPUs that consists of shapes only and has no arrays.

    steps: the compiled functions of such an engine. layout: its sizes. Raises `CompileError`, and the errors
    of an engine whose options do not fit the model.
    """

    def __init__(self, config: ModelConfig, topology: str, options: EngineOptions):
        devices = described_devices(topology)
        self.chip = TOPOLOGIES[topology]
        mesh = make_mesh(config, devices=devices)
        self.shape = shape_of(mesh)
        self.layout = lay_out(options, config, self.shape, jnp.bfloat16)
        self.shapes = EngineShapes(config, mesh, self.layout, jnp.bfloat16, code_format_for(self.chip))
        self.steps = Steps(self.shapes.model, mesh, self.layout.decode_steps)

    def measure(self) -> Iterator[StepMemory]:
        """Compiles the decode step, then the largest prefill step. Raises `CompileError`."""
        yield self.measure_decode()
        yield self.measure_prefill(self.layout.buckets[-1])

    def measure_decode(self) -> StepMemory:
        """Compiles the decode step."""
        arguments = (self.steps.parameters, self.shapes.cache, *self.shapes.decode_inputs())
        return self._measure("decode", self.steps.decode, arguments, (1, 2), device_bytes(arguments))

    def measure_prefill(self, bucket: Bucket) -> StepMemory:
        """Compiles the prefill step of a bucket; the arrays of decoding stay in memory meanwhile."""
        arguments = (self.steps.parameters, self.shapes.cache, self.shapes.chunk(bucket))
        resident = device_bytes((arguments, self.shapes.decode_inputs()))
        name = f"prefill {bucket.rows} x {bucket.tokens}"
        return self._measure(name, self.steps.prefill, arguments, (1,), resident)

    def _measure(
        self, name: str, step: Any, arguments: tuple[object, ...], donated: tuple[int, ...], resident: int
    ) -> StepMemory:
        start = time.process_time()
        try:
            with using("tpu", self.chip):
                lowered = step.lower(*arguments)
            middle = time.process_time()
            compiled = lowered.compile()
        except jax.errors.JaxRuntimeError as error:  # the first line has the reason
            raise StepError(f"{name}: {str(error).strip().partition(chr(10))[0]}") from error
        end = time.process_time()
        memory, text = compiled.memory_analysis(), compiled.as_text()
        read, copies = _entry_bytes(text), list(large_copies(text))
        return StepMemory(
            name=name,
            arrays=read,
            arguments=memory.argument_size_in_bytes,
            temporaries=max(
                memory.temp_size_in_bytes + memory.generated_code_size_in_bytes,
                memory.peak_memory_in_bytes - memory.argument_size_in_bytes,
            ),
            outputs=memory.output_size_in_bytes - memory.alias_size_in_bytes,
            resident=resident + memory.argument_size_in_bytes - read,
            limit=LIMITS[self.chip],
            copies=tuple(copy for copy in copies if _RETILED not in copy),
            retiled=tuple(copy for copy in copies if _RETILED in copy),
            unaliased=len(jax.tree.leaves([arguments[index] for index in donated])) - _aliased(text),
            lower_seconds=middle - start,
            compile_seconds=end - middle,
        )


_TYPE_BITS = {"pred": 8, "bf16": 16, "f16": 16, "f32": 32, "f64": 64}
_ARRAY = re.compile(r"\b(pred|bf16|f\d+(?:e\w+)?|[su]\d+)\[([\d,]*)\](\{[^}]*\})?")
_COMPUTATION = re.compile(r"^(?:ENTRY )?%?([\w.\-]+) \(.*\{$")
_INSTRUCTION = re.compile(r"^\s+(ROOT )?%?([\w.\-]+) = (.*?) ([\w\-]+)\(")
_FUSED = re.compile(r" fusion\(.*?\bcalls=%?([\w.\-]+)")
_RETILED = "T(16,128)(2,1)"
_COPIES = ("copy", "copy-start", "transpose")


def _array_bytes(dtype: str, sizes: str) -> int:
    digits = re.match(r"[a-z]+(\d+)", dtype)
    bits = _TYPE_BITS.get(dtype) or int(digits[1] if digits else 8)
    return math.prod(int(size) for size in sizes.split(",") if size) * bits // 8


def _entry_bytes(text: str) -> int:
    """Bytes of a program's arguments, computed from their shapes."""
    layout = text[text.index("entry_computation_layout={(") :].partition(")->")[0]
    return sum(_array_bytes(dtype, sizes) for dtype, sizes, _ in _ARRAY.findall(layout))


def _aliased(text: str) -> int:
    """How many outputs of a program reuse the memory of an argument."""
    return len(re.findall(r"\}: \(\d+, \{\}, (?:may|must)-alias\)", text.partition("\n")[0]))


def large_copies(text: str, largest: int = LARGEST_COPY) -> Iterator[str]:
    """The instructions of a program that copy or transpose more than `largest` bytes within HBM.

    Yields each as `name type[sizes]{layout}`. Copies to the vector memory, S(1), are prefetches and do not
    count. A copy inside a fusion counts only if it is the fusion's result.
    """
    fused = set(_FUSED.findall(text))
    roots: dict[str, str] = {}
    instructions: list[tuple[str, str, str, str]] = []
    computation = ""
    for line in text.splitlines():
        if (head := _COMPUTATION.match(line)) is not None:
            computation = head[1]
        elif (match := _INSTRUCTION.match(line)) is not None:
            root, name, result, operation = match.groups()
            if root:
                roots[computation] = operation
            if computation not in fused:
                fusion = _FUSED.search(line)
                instructions.append((name, result, operation, fusion[1] if fusion else ""))
    for name, result, operation, called in instructions:
        found = _ARRAY.search(result)
        if roots.get(called, operation) not in _COPIES or found is None or "S(1)" in (found[3] or ""):
            continue
        if _array_bytes(found[1], found[2]) > largest:
            yield f"{name} {found[0]}"


def report(target: Target, options: EngineOptions) -> Iterator[dict[str, Any]]:
    """Compiles a target's steps; yields a row of the table for each. Raises the errors of `EngineOnTPU`."""
    engine = EngineOnTPU(
        MODELS[target.model], target.topology, dataclasses.replace(options, slots=target.slots)
    )
    for step in engine.measure():
        figures = dataclasses.asdict(step) | {"peak": step.peak, "spare": step.spare}
        yield {**target._asdict(), "mesh": str(engine.shape), **figures, "complaints": step.complaints()}


_COLUMNS = ("arguments", "temporaries", "peak", "limit", "spare")


def _head() -> str:
    titles = ("model", "slice", "slots", "step", *(f"{name} GiB" for name in _COLUMNS), "processor seconds")
    return f"| {' | '.join(titles)} |\n|{'---|' * len(titles)}"


def _line(row: dict[str, Any]) -> str:
    figures = (f"{row[name] / GIB:.2f}" for name in _COLUMNS)
    seconds = f"{row['lower_seconds'] + row['compile_seconds']:.0f}"
    cells = (row["model"], f"`{row['topology']}`", str(row["slots"]), row["name"], *figures, seconds)
    return f"| {' | '.join(cells)} |"


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line.

    Returns 0, or 1 if a step does not compile or has complaints, or 2 for a wrong call.
    """
    parser = argparse.ArgumentParser(
        prog="python -m gptoss_jax.bench.fit",
        description="Compile the engine's steps for TPUs, without a TPU, and print how much memory they use.",
        allow_abbrev=False,
    )
    parser.add_argument("--model", choices=tuple(MODELS), help="with --topology; default: all targets")
    parser.add_argument("--topology", help="a slice, such as v5e:2x4")
    parser.add_argument("--batch", type=int, default=64, help="slots on all devices together (default: 64)")
    parser.add_argument("--context", type=int, default=8192, help="longest sequence (default: 8192)")
    parser.add_argument("--json", action="store_true", help="print JSON, one step per line")
    options = parser.parse_args(arguments)
    jax.config.update("jax_platforms", "cpu")  # no device is used, even if there is one
    if (options.model is None) != (options.topology is None):
        return _fail("--model and --topology go together", 2)
    chosen = TARGETS if options.model is None else (Target(options.model, options.topology, options.batch),)
    status = 0
    try:
        # The default for CPUs, on which this process runs, would be shorter chunks.
        engine_options = EngineOptions(max_length=options.context, prefill_tokens=2048)
        dataclasses.replace(engine_options, slots=options.batch)
        for target in chosen:
            described_devices(target.topology)
        if not options.json:
            print(_head())
        for target in chosen:
            for row in report(target, engine_options):
                print(json.dumps(row) if options.json else _line(row), flush=True)
                for complaint in row["complaints"]:
                    status = _fail(f"{target.model} on {target.topology}, {row['name']}: {complaint}", 1)
    except StepError as error:
        return _fail(str(error), 1)
    except (CompileError, RequestError, ShardingError) as error:
        return _fail(str(error), 2)
    return status


def _fail(message: str, status: int) -> int:
    print(f"gptoss_jax.bench.fit: {message}", file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(main())
