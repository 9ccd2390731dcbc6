"""Parses libtpu's dumps of a kernel: its scheduled bundles, the use of its units, its allocations.

A bundle is one very long instruction word; the core issues one per cycle. `*-packed-bundles-post-ra.txt`
has one line per bundle, empty ones included: an address, a marker where control can arrive, the nesting
depth in loops as `>`, the instructions between braces. (`*-final_bundles.txt` is shorter, because a later
pass folds empty bundles into delays of the one before; they are cycles all the same.)
`*-pre-delay_hlo-static-per-bundle-utilization.txt` has, for the same bundles, the units that are busy,
under a header with their names and capacities, whose order differs between versions of libtpu.
"""

from __future__ import annotations

import dataclasses
import re

_COMMENT = re.compile(r"/\*(.*?)\*/", re.DOTALL)
_OPERAND_NAME = re.compile(r"\s*(\w+=)\s*")
_BUNDLE = re.compile(r"^\s*(0x[0-9a-f]+|0)\s*((?:[A-Z]{2} ?)*):([\s>]*)\{(.*)$")
_INSTRUCTION = re.compile(r"^(?:%(\w+) = )?([a-z][\w.<>]*(?: memory space>)?)\s*(.*)$", re.DOTALL)
_PREDICATE = re.compile(r"^(?:\[[^\]]*\]\s*)*\((!?)%(\w+)\),?\s*")
_TRAILING_PREDICATE = re.compile(r"\s*\((!?)%(\w+)\)\s*$")
_CHOICE = re.compile(r"^\((!?)%(\w+), ([^)]*)\),\s*")
_ALLOCATION = re.compile(r"#allocation(\w+) \[shape = '([^']*)', space=(\w+), size = (0x[0-9a-f]+)")


class DumpError(ValueError):
    """A dump cannot be parsed: it is missing, or its form is that of another version of libtpu."""


@dataclasses.dataclass(frozen=True)
class Instruction:
    """One slot of a bundle. condition: the predicate (name, negated) under which it takes effect; None:
    always.

    choice: only for the select form `op (p, x), y`, whose value is y if the predicate holds, else x.
    """

    result: str | None
    opcode: str
    operands: tuple[str, ...]
    condition: tuple[str, bool] | None = None
    choice: tuple[str, bool, str] | None = None


@dataclasses.dataclass(frozen=True)
class Bundle:
    """The instructions of one cycle. marker: not empty if a branch can
    lead here. depth: how many loops contain it.
    """

    index: int
    marker: str
    depth: int
    instructions: tuple[Instruction, ...]


@dataclasses.dataclass(frozen=True)
class Utilization:
    """The units' names, the operations that a bundle can hold for each, and those that each bundle holds."""

    units: tuple[str, ...]
    capacities: tuple[int, ...]
    rows: tuple[tuple[int, ...], ...]


def parse_bundles(text: str) -> list[Bundle]:
    """Parses a `*-packed-bundles-post-ra.txt`.

    Raises DumpError if it has no bundles or they are out of order.
    """
    bundles: list[Bundle] = []
    for line in _COMMENT.sub(_keep_operand_names, text).splitlines():
        match = _BUNDLE.match(line)
        if match is None:
            continue
        address, marker, depth, rest = match.groups()
        if int(address, 16) != len(bundles):
            raise DumpError(f"bundle {address} follows bundle {len(bundles) - 1:#x} in the dump")
        body = rest.rpartition("}")[0]
        instructions = tuple(parse_instruction(part) for part in body.split(" ;; ") if part.strip())
        bundles.append(Bundle(len(bundles), marker.strip(), depth.count(">"), instructions))
    if not bundles:
        raise DumpError("the dump of bundles holds none")
    return bundles


def _keep_operand_names(comment: re.Match[str]) -> str:
    """Keeps a comment that names an operand (`/*hbm=*/`) and removes all others."""
    name = _OPERAND_NAME.fullmatch(comment[1])
    return name[1] if name else ""


def parse_instruction(text: str) -> Instruction:
    """Parses one instruction of the dump, without comments."""
    match = _INSTRUCTION.match(text.strip())
    if match is None:
        raise DumpError(f"cannot read the instruction {text.strip()[:80]!r}")
    result, opcode, rest = match.groups()
    condition = choice = None
    if found := _CHOICE.match(rest):
        choice = (found[2], bool(found[1]), found[3])
        rest = rest[found.end() :]
    elif found := _PREDICATE.match(rest):
        condition = (found[2], bool(found[1]))
        rest = rest[found.end() :]
    elif found := _TRAILING_PREDICATE.search(rest):
        condition = (found[2], bool(found[1]))
        rest = rest[: found.start()]
    operands = tuple(part.strip() for part in rest.split(", ") if part.strip())
    return Instruction(result, opcode, operands, condition, choice)


def parse_utilization(text: str) -> Utilization:
    """Parses a `*-static-per-bundle-utilization.txt`; units keep the order of its header."""
    head, separator, body = text.partition("UTILIZATION:")
    lines = [line for line in head.splitlines() if line.strip() and not line.startswith("==")]
    if not separator or len(lines) != 2:
        raise DumpError("the dump of units' use has no header with capacities")
    units = tuple(name.strip() for name in lines[0].split(","))
    capacities = tuple(int(value) for value in lines[1].split())
    rows = tuple(tuple(int(value) for value in line.split()) for line in body.splitlines() if line.strip())
    if len(units) != len(capacities) or any(len(row) != len(units) for row in rows):
        raise DumpError("the dump of units' use has rows that do not fit its header")
    return Utilization(units, capacities, rows)


def vmem_bytes(text: str) -> int:
    """Bytes of VMEM of a kernel's own allocations (windows, scratch), from any LLO dump that lists them."""
    sizes = {match[1]: int(match[4], 16) for match in _ALLOCATION.finditer(text) if match[3] == "vmem"}
    return sum(sizes.values())
