"""A kernel's bundles as basic blocks, with where each block's control flow can go and which loop holds it."""

from __future__ import annotations

import dataclasses
import itertools

from pallas_kernels.inspect.dump import Bundle, DumpError, Instruction, Utilization

DELAY_SLOTS = 4
"""Bundles after a branch that are executed whether or not it is taken (every generation from v5e to 7x)."""


@dataclasses.dataclass(frozen=True)
class Block:
    """A run of bundles that is always executed whole: first and one past the last, and its units' use."""

    number: int
    start: int
    stop: int
    depth: int
    use: tuple[int, ...]
    target: int | None
    """Number of the block that the branch at the block's end goes to if it is taken (the number of blocks:
    the program ends); None: no branch."""

    @property
    def size(self) -> int:
        """Bundles, that is, cycles where nothing waits."""
        return self.stop - self.start


@dataclasses.dataclass(frozen=True)
class Program:
    """The bundles of one kernel, cut into blocks."""

    bundles: tuple[Bundle, ...]
    blocks: tuple[Block, ...]
    units: tuple[str, ...]
    capacities: tuple[int, ...]

    def loops(self) -> list[tuple[int, int]]:
        """Every loop as (number of its first block, number of the block that branches back), in program
        order."""
        return sorted(
            (block.target, block.number)
            for block in self.blocks
            if block.target is not None and block.target <= block.number
        )

    def outline(self) -> str:
        """The blocks as text: place, size, units' use, and where branches lead, indented by loop depth."""
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
    """The branch of a bundle, if it has one."""
    return next((found for found in bundle.instructions if found.opcode.startswith("sbr")), None)


def region(instruction: Instruction) -> int:
    """The region that a branch goes to."""
    for operand in instruction.operands:
        if "$region" in operand:
            return int(operand.rpartition("$region")[2])
    raise DumpError(f"a branch without a region: {instruction.opcode} {', '.join(instruction.operands)}")


def build(bundles: list[Bundle], utilization: Utilization) -> Program:
    """Cuts bundles into blocks at branches (behind their delay slots) and wherever control can arrive.

    A region without any bundle is the one behind the kernel's end: on chips whose two cores share a
    program, the second core branches there. DumpError if the two dumps differ in length or a branch leads
    to a place that the dump does not mark.
    """
    if len(utilization.rows) != len(bundles):
        raise DumpError(f"{len(bundles)} bundles, but units' use of {len(utilization.rows)}")
    entries = {number: bundle.index for bundle in bundles if bundle.marker for number in bundle.starts}
    anywhere = {number for bundle in bundles for number in bundle.starts}
    targets: dict[int, int] = {}
    cuts = {0, len(bundles)} | {bundle.index for bundle in bundles if bundle.marker}
    for bundle in bundles:
        found = branch(bundle)
        if found is None:
            continue
        end = min(bundle.index + DELAY_SLOTS + 1, len(bundles))
        targets[end] = entries.get(region(found), len(bundles))
        if targets[end] == len(bundles) and region(found) in anywhere:
            raise DumpError(f"the branch at {bundle.index:#x} leads to a place that the dump does not mark")
        cuts |= {end, targets[end]}
    edges = sorted(cuts)
    numbers = {start: number for number, start in enumerate(edges)}
    blocks = tuple(
        Block(
            number=number,
            start=start,
            stop=stop,
            depth=max(bundle.depth for bundle in bundles[start:stop]),
            use=tuple(sum(column) for column in zip(*utilization.rows[start:stop], strict=True)),
            target=numbers[targets[stop]] if stop in targets else None,
        )
        for number, (start, stop) in enumerate(itertools.pairwise(edges))
    )
    return Program(tuple(bundles), blocks, utilization.units, utilization.capacities)
