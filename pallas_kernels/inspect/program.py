"""Splits a kernel's bundles into basic blocks, with their branches and loops."""

from __future__ import annotations

import dataclasses
import itertools
import re

from pallas_kernels.inspect.dump import Bundle, DumpError, Instruction, Utilization

_TARGET = re.compile(r"^target bundleno = (\d+)\b")


@dataclasses.dataclass(frozen=True)
class Block:
    """A basic block: the bundles from `start` up to but not including `stop`, and the use of its units.

    empty: how many of its bundles hold no instruction; in these the core waits for results.
    """

    number: int
    start: int
    stop: int
    depth: int
    empty: int
    use: tuple[int, ...]
    target: int | None
    """The block to which the branch at the end leads; None: there is no branch."""

    @property
    def size(self) -> int:
        """The number of bundles."""
        return self.stop - self.start


@dataclasses.dataclass(frozen=True)
class Program:
    """The bundles of one kernel, split into blocks."""

    bundles: tuple[Bundle, ...]
    blocks: tuple[Block, ...]
    units: tuple[str, ...]
    capacities: tuple[int, ...]

    def loops(self) -> list[tuple[int, int]]:
        """Every loop, in program order, as (number of its first block,
        number of the block that branches back).
        """
        return sorted(
            (block.target, block.number)
            for block in self.blocks
            if block.target is not None and block.target <= block.number
        )

    def outline(self) -> str:
        """The blocks as text: start, size, use of units, and targets of branches, indented by loop depth."""
        lines = [f"{'block':>5} {'start':>7} {'bundles':>7}  units' use"]
        heads: dict[int, int] = {}
        for head, _ in self.loops():
            heads[head] = heads.get(head, 0) + 1
        for block in self.blocks:
            use = " ".join(f"{unit}:{n}" for unit, n in zip(self.units, block.use, strict=True) if n)
            edge = "" if block.target is None else f" -> {block.target}"
            mark = "  loop" if block.number in heads else ""
            indent = "  " * block.depth
            place = f"{block.number:>5} {block.start:#7x} {block.size:>7}  "
            lines.append(f"{place}{indent}{use}{edge}{mark}")
        return "\n".join(lines)


def branch(bundle: Bundle) -> Instruction | None:
    """The branch of a bundle, or None."""
    return next((found for found in bundle.instructions if found.opcode.startswith("sbr")), None)


def target(instruction: Instruction) -> int:
    """The number of the bundle to which a branch leads."""
    for operand in instruction.operands:
        if found := _TARGET.match(operand):
            return int(found[1])
    raise DumpError(f"a branch without a target: {instruction.opcode} {', '.join(instruction.operands)}")


def build(bundles: list[Bundle], utilization: Utilization, delay_slots: int) -> Program:
    """Splits bundles into blocks: after branches and their delay slots, and at the targets of branches.

    Raises DumpError if the two dumps differ in length, if a branch leads out of the program, or if a branch
    leads into the delay slots of another one.
    """
    if len(utilization.rows) != len(bundles):
        raise DumpError(f"{len(bundles)} bundles, but units' use of {len(utilization.rows)}")
    arrivals = {0} | {bundle.index for bundle in bundles if bundle.marker}
    targets: dict[int, int] = {}
    for bundle in bundles:
        found = branch(bundle)
        if found is None:
            continue
        end = bundle.index + delay_slots + 1
        if end > len(bundles) or target(found) > len(bundles) or arrivals & {*range(bundle.index + 1, end)}:
            raise DumpError(f"the branch at {bundle.index:#x} does not have {delay_slots} delay slots")
        targets[end] = target(found)
    edges = sorted(arrivals | targets.keys() | {*targets.values()} | {len(bundles)})
    numbers = {start: number for number, start in enumerate(edges)}
    blocks = tuple(
        Block(
            number=number,
            start=start,
            stop=stop,
            depth=max(bundle.depth for bundle in bundles[start:stop]),
            empty=sum(not bundle.instructions for bundle in bundles[start:stop]),
            use=tuple(sum(column) for column in zip(*utilization.rows[start:stop], strict=True)),
            target=numbers[targets[stop]] if stop in targets else None,
        )
        for number, (start, stop) in enumerate(itertools.pairwise(edges))
    )
    return Program(tuple(bundles), blocks, utilization.units, utilization.capacities)
