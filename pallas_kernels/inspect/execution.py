"""Executes the scalar part of a kernel's bundles: which blocks run, how often, and what its DMAs move.

Control flow on a TensorCore is scalar code, and so are the addresses and predicates of DMAs. This module runs
that code bundle by bundle with the values of the kernel's scalar operands (grid size, prefetched schedules),
and skips the vector instructions. The result is exact for those values: loop trip counts, `pl.when` branches,
and blocks that the pipeline does not fetch again because their index did not change.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from pallas_kernels.inspect.dump import Bundle, Instruction
from pallas_kernels.inspect.program import Program, branch

GRANULE = 32
"""Bytes per unit of a DMA's size."""

_BUNDLE_LIMIT = 2_000_000_000
_ADDRESS = re.compile(r"^\[smem:\[(.*?)\](?:\s*sm:\$\w+)?\]\s*(.*)$")
_ANNOTATION = re.compile(r"^(?:\w+=)?(?:\[resolvable:\$\w+\]\s*)?")
_ALLOCATION = re.compile(r"#allocation(\w+)")
_CORE_NUMBER = "0"  # the allocation from which a program reads its core's number
_WORDS_APART = 1 << 22
_SPILLS = 1 << 40
_OUTPUTS = 1000  # the first number of an output

Value = int | None
"""A scalar register's value.

None: unknown, because it came from a vector unit or from memory without known values.
"""


class ExecutionError(ValueError):
    """The scalar code needs a value that is unknown here, or does not end."""


@dataclasses.dataclass(frozen=True)
class Iteration:
    """One pass of the grid's loop.

    bundles: bundles executed. empty: how many of them hold no instruction. use: operations of each unit.
    read, written: bytes that DMAs read from and write to HBM.
    """

    bundles: int
    empty: int
    use: tuple[int, ...]
    read: int
    written: int
    path: tuple[int, ...]
    """Numbers of the blocks executed, each once, in program order."""

    @property
    def moved(self) -> int:
        """Bytes read and written."""
        return self.read + self.written


@dataclasses.dataclass(frozen=True)
class Trace:
    """A whole call of a kernel: before the grid's loop, each pass of the loop, and after it.

    looped: False for a kernel without a loop, which counts as one pass.
    """

    before: Iteration
    iterations: tuple[Iteration, ...]
    after: Iteration
    looped: bool = True

    @property
    def parts(self) -> tuple[Iteration, ...]:
        """All parts, in order."""
        return self.before, *self.iterations, self.after

    @property
    def bundles(self) -> int:
        """The number of executed bundles."""
        return sum(part.bundles for part in self.parts)

    @property
    def empty(self) -> int:
        """The number of executed bundles without instructions, in which the core waits for results."""
        return sum(part.empty for part in self.parts)

    @property
    def read(self) -> int:
        """Bytes that DMAs read from HBM."""
        return sum(part.read for part in self.parts)

    @property
    def written(self) -> int:
        """Bytes that DMAs write to HBM."""
        return sum(part.written for part in self.parts)


def execute(
    program: Program, operands: Mapping[int, np.ndarray | int], core: int = 0, limit: int = _BUNDLE_LIMIT
) -> Trace:
    """Runs a kernel once, on one of the cores that share the program.

    operands: the value of each scalar operand, by its position in the compiled call: first the grid sizes
    that are not constants, then the prefetched arrays; other operands need no values. core: the number of the
    core. Raises ExecutionError if control flow or a DMA depends on any other value, or after `limit` bundles.
    """
    return _Machine(program, operands, core).run(limit)


class _Code(NamedTuple):
    """The scalar code of a bundle: its branch, and groups of instructions.

    A group reads all before it writes.
    """

    bundle: int
    branch: Instruction | None
    groups: tuple[list[Instruction], ...]


def _scalar_code(bundle: Bundle) -> _Code | None:
    """The code of a bundle, if there is any.

    Vector instructions, waits and checks are left out. Instructions of a bundle read what earlier bundles
    wrote, but renamings cost nothing and are printed beside what they rename: values that arrive from
    elsewhere (`sphi`) are named before the others read them, casts follow what they cast.
    """
    groups: tuple[list[Instruction], ...] = ([], [], [])
    for instruction in bundle.instructions:
        if instruction.opcode.startswith(("v", "sbr", "shalt", "dma.done", "sfence")):
            continue
        if instruction.opcode in ("sphi", "pphi"):
            groups[0].append(instruction)
        elif instruction.opcode.startswith("int_to_ptr"):
            groups[2].append(instruction)
        else:
            groups[1].append(instruction)
    jump = branch(bundle)
    return _Code(bundle.index, jump, groups) if jump or any(groups) else None


@dataclasses.dataclass
class _Counter:
    blocks: collections.Counter[int] = dataclasses.field(default_factory=collections.Counter)
    read: int = 0
    written: int = 0

    def finished(self, program: Program) -> Iteration:
        use = [0] * len(program.units)
        bundles = empty = 0
        for number, times in self.blocks.items():
            block = program.blocks[number]
            bundles += times * block.size
            empty += times * block.empty
            use = [total + times * n for total, n in zip(use, block.use, strict=True)]
        return Iteration(bundles, empty, tuple(use), self.read, self.written, tuple(sorted(self.blocks)))


class _Machine:
    """Scalar registers, predicates and SMEM. Registers have the compiler's names: `s1815_s9` is value 1815 in
    s9.

    A value is read by its full name, so nothing depends on latencies. Where paths of control join (`sphi`),
    the value is that of the physical register.
    """

    def __init__(self, program: Program, operands: Mapping[int, np.ndarray | int], core: int):
        self.program = program
        self.operands = operands
        self.values: dict[str, Value] = {}
        self.registers: dict[str, Value] = {}
        self.memory: dict[int, Value] = {_place(_CORE_NUMBER): core}
        self.arrays: dict[int, int] = {}
        self.spaces = {
            one.result: one.opcode.rpartition(".")[2]
            for bundle in program.bundles
            for one in bundle.instructions
            if one.result and one.opcode.startswith(("scalar_lea.", "int_to_ptr.", "inlined_call_operand."))
        }
        self.counter = _Counter()
        self.code = [
            [code for code in map(_scalar_code, program.bundles[block.start : block.stop]) if code]
            for block in program.blocks
        ]

    def run(self, limit: int) -> Trace:
        """Executes from the first bundle to the last."""
        blocks = self.program.blocks
        loop = self._grid_loop()
        finished: list[Iteration] = []
        phases: list[Iteration] = []
        number, executed = 0, 0
        while number < len(blocks):
            block = blocks[number]
            if loop is not None and number == loop[0]:
                if phases:
                    finished.append(self._next_counter())
                else:
                    phases.append(self._next_counter())
            self.counter.blocks[number] += 1
            executed += block.size
            if executed > limit:
                raise ExecutionError(f"the kernel is still running after {limit:,} bundles")
            taken = self._execute(number)
            leaving = loop is not None and number == loop[1] and not taken
            number = block.target if taken and block.target is not None else number + 1
            if leaving:
                finished.append(self._next_counter())
        last = self._next_counter()
        if not phases:
            empty = _Counter().finished(self.program)
            return Trace(empty, (last,), empty, looped=False)
        return Trace(phases[0], tuple(finished), last)

    def _next_counter(self) -> Iteration:
        done = self.counter.finished(self.program)
        self.counter = _Counter()
        return done

    def _grid_loop(self) -> tuple[int, int] | None:
        """The outermost loop that spans the most bundles: the grid's, as Mosaic builds it."""
        blocks = self.program.blocks
        loops = self.program.loops()
        outer = [
            loop
            for loop in loops
            if not any(o != loop and o[0] <= loop[0] and loop[1] <= o[1] for o in loops)
        ]
        return max(outer, key=lambda loop: blocks[loop[1]].stop - blocks[loop[0]].start, default=None)

    def _execute(self, block: int) -> bool:
        """Executes a block. Returns True if its branch is taken."""
        taken = False
        for code in self.code[block]:
            if code.branch is not None:
                taken = self._holds(code.branch.condition, code.bundle)
            for group in code.groups:
                for update in [self._evaluate(instruction, code.bundle) for instruction in group]:
                    if update is not None:
                        self._write(*update)
        return taken

    def _write(self, name: str, value: Value) -> None:
        self.values[name] = value
        self.registers[name.rpartition("_")[2]] = value

    def _holds(self, condition: tuple[str, bool] | None, index: int) -> bool:
        if condition is None:
            return True
        value = self._register(condition[0])
        if value is None:
            raise ExecutionError(f"bundle {index:#x} branches on a value that is known only on the device")
        return bool(value) != condition[1]

    def _register(self, name: str) -> Value:
        if name in self.values:
            return self.values[name]
        return self.registers.get(name.rpartition("_")[2])

    def _operand(self, text: str) -> Value:
        kind, content = _parsed(text)
        if kind == "number":
            return int(content)
        if kind == "address":
            return self._address(content)
        if kind == "unknown":
            return None
        value = self._register(content)
        return value if value is None or kind == "register" else int(not value)

    def _address(self, text: str) -> Value:
        terms = self._terms(text)
        return None if None in terms else sum(term for term in terms if term is not None)

    def _terms(self, text: str) -> list[Value]:
        found = [(term, _ALLOCATION.match(term)) for term in text.split(" + ")]
        return [_place(match[1]) if match else self._operand(term) for term, match in found]

    def _evaluate(self, instruction: Instruction, index: int) -> tuple[str, Value] | None:
        """Runs an instruction and its effects on memory.

        Returns the (register, value) that it writes, or None.
        """
        opcode = instruction.opcode
        effect = opcode == "sst" or opcode.startswith("dma.")
        if instruction.condition is not None:
            if effect:
                if not self._holds(instruction.condition, index):
                    return None
            else:
                value = self._register(instruction.condition[0])
                if value is None:
                    return (instruction.result, None) if instruction.result else None
                if bool(value) == instruction.condition[1]:
                    return None
        if opcode.startswith("dma."):
            self._dma(instruction, index)
            return None
        if opcode == "sst":
            self._store(instruction, index)
            return None
        name = instruction.result
        if name is None or name[0] not in "sp":
            return None
        if opcode.startswith("inlined_call_operand"):
            return name, self._call_operand(instruction)
        if opcode == "sld":
            found = _ADDRESS.match(instruction.operands[0])
            place = self._address(found[1]) if found else None
            return name, None if place is None else self.memory.get(place)
        if opcode in ("sphi", "pphi"):
            return name, self.registers.get(name.rpartition("_")[2])
        if instruction.choice is not None:
            predicate, negated, kept = instruction.choice
            value = self._register(predicate)
            if value is None:
                return name, None
            return name, self._operand(instruction.operands[0] if bool(value) != negated else kept)
        return name, _compute(opcode, [self._operand(text) for text in instruction.operands])

    def _call_operand(self, instruction: Instruction) -> Value:
        position = next(int(t.split()[1]) for t in instruction.operands if t.startswith("index:"))
        if "kind: output" in instruction.operands:
            position += _OUTPUTS
        value = self.operands.get(position)
        if "<no memory space>" in instruction.opcode:
            return None if value is None else int(np.asarray(value).reshape(-1)[0])
        base = (position + 1) << 20
        # Addresses of DMAs are shifted by four bits where the compiler checks their bounds.
        self.arrays[base] = self.arrays[base << 4] = position
        return base

    def _store(self, instruction: Instruction, index: int) -> None:
        found = _ADDRESS.match(instruction.operands[0])
        if found is None:
            raise ExecutionError(f"bundle {index:#x} has an unknown kind of store")
        place = self._address(found[1])
        if place is None:
            self._forget(self._terms(found[1]))
        else:
            self.memory[place] = self._operand(found[2] or instruction.operands[-1])

    def _forget(self, terms: list[Value]) -> None:
        """Forgets values after a store: those of its allocation, or if that
        is unknown, all but spilled registers.
        """
        known = [term // _WORDS_APART for term in terms if term is not None and term >= _WORDS_APART]
        for place in self.memory:
            allocation = place // _WORDS_APART
            if (allocation in known) if known else (allocation < _SPILLS // _WORDS_APART):
                self.memory[place] = None

    def _dma(self, instruction: Instruction, index: int) -> None:
        named = dict(text.split("=", 1) for text in instruction.operands if "=" in text)
        if instruction.opcode == "dma.general":
            source, destination = (self.spaces.get(named.get(end, "")[1:], "") for end in ("src", "dst"))
            named |= {source: named.get("src", ""), destination: named.get("dst", "")}
        else:
            source, _, destination = instruction.opcode.removeprefix("dma.").partition("_to_")
        if not source or not destination:
            raise ExecutionError(f"bundle {index:#x} has an unknown kind of DMA: {instruction.opcode}")
        size = self._operand(named.get("size_in_granules", ""))
        if size is None:
            raise ExecutionError(f"bundle {index:#x} has a DMA whose size is known only on the device")
        self.counter.read += GRANULE * size if source == "hbm" else 0
        self.counter.written += GRANULE * size if destination == "hbm" else 0
        if destination == "smem":
            self._copy_to_smem(named.get(source, ""), named["smem"], size)

    def _copy_to_smem(self, source: str, destination: str, size: int) -> None:
        """Copies a prefetched operand; memory without given values becomes unknown."""
        start, place = self._operand(source), self._operand(destination)
        position = None if start is None else self.arrays.get(start)
        if place is None:
            return
        values: Sequence[int] = ()
        if position is not None and position in self.operands:
            values = [int(v) for v in np.asarray(self.operands[position]).reshape(-1)]
        for offset in range(size * GRANULE // 4):
            self.memory[place + offset] = values[offset] if offset < len(values) else None


@functools.cache
def _parsed(text: str) -> tuple[str, str]:
    """The kind of an operand (register, negated predicate, number or address), and its name or value."""
    text = _ANNOTATION.sub("", text)
    if text.startswith("%"):
        return "register", text[1:].split(" ")[0]
    if text.startswith("!%"):
        return "negated", text[2:].split(" ")[0]
    if text.startswith("["):
        return "address", text.strip("[]")
    try:
        return "number", str(_signed(int(text.removeprefix("$"), 0)))
    except ValueError:
        return "unknown", ""


def _place(allocation: str) -> int:
    """The address of an allocation, far from all others.

    `7` is an ordinary one; `25_spill` holds a register.
    """
    number, _, kind = allocation.partition("_")
    return (1 + int(number)) * _WORDS_APART + (_SPILLS if kind else 0)


def _signed(value: int) -> int:
    return ((value + (1 << 31)) & 0xFFFFFFFF) - (1 << 31)


def _compute(opcode: str, values: list[Value]) -> Value:
    """The result of a scalar instruction without memory access; None if it or an operand is unknown."""
    parts = opcode.split(".")
    name = parts[0]
    if name in ("por", "pand", "pnand", "pnor"):
        return _logical(name, values)
    if name == "scalar_select":
        predicate, yes, no = values
        return None if predicate is None else (yes if predicate else no)
    known = [value for value in values if value is not None]
    if len(known) != len(values) or not known:
        return None
    if name == "scmp":
        return _compare(parts[1], known, unsigned=parts[2].startswith("u")) if "f32" not in parts else None
    a, b = known[0], known[1] if len(known) > 1 else 0
    if "f32" in parts:
        return None
    match name:
        case "smov" | "int_to_ptr" | "ptr_to_int":
            return a
        case "pmov":
            return int(bool(a))
        case "pneg":
            return int(not a)
        case "pxor":
            return int(bool(a) != bool(b))
        case "sadd" | "scalar_lea":
            return _signed(a + b)
        case "ssub":
            return _signed(a - b)
        case "smul":
            return _signed(a * b) if len(parts) == 2 else None
        case "sand":
            return _signed(a & b)
        case "sor":
            return _signed(a | b)
        case "sxor":
            return _signed(a ^ b)
        case "smin":
            return min(a, b) if parts[1] == "s32" else _signed(min(a & 0xFFFFFFFF, b & 0xFFFFFFFF))
        case "smax":
            return max(a, b) if parts[1] == "s32" else _signed(max(a & 0xFFFFFFFF, b & 0xFFFFFFFF))
        case "sshll":
            return a << (b & 31)
        case "sshra":
            return a >> (b & 31)
        case "sshrl":
            return _signed((a & 0xFFFFFFFF) >> (b & 31))
    return None


def _logical(name: str, values: list[Value]) -> Value:
    """Evaluates conjunctions and disjunctions, which a single known operand can decide."""
    deciding = 1 if name in ("por", "pnor") else 0
    if any(value is not None and bool(value) == bool(deciding) for value in values):
        result = deciding
    elif any(value is None for value in values):
        return None
    else:
        result = 1 - deciding
    return result if name in ("por", "pand") else 1 - result


def _compare(relation: str, values: list[int], unsigned: bool) -> Value:
    a, b = (value & 0xFFFFFFFF for value in values) if unsigned else values
    outcomes = {"eq": a == b, "ne": a != b, "lt": a < b, "le": a <= b, "gt": a > b, "ge": a >= b}
    return int(outcomes[relation]) if relation in outcomes else None
