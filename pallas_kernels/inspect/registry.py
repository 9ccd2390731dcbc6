"""Which operations have cases, and how `--kernel` chooses among them."""

from __future__ import annotations

import importlib
import importlib.util

from pallas_kernels.inspect.case import Case
from pallas_kernels.platform import Chip

OPERATIONS = ("expert_matmul", "attention", "routing")


def all_cases(chip: Chip) -> list[Case]:
    """The cases of every operation that has a `cases` module, in the order of `OPERATIONS`."""
    found: list[Case] = []
    for operation in OPERATIONS:
        name = f"pallas_kernels.{operation}.cases"
        if importlib.util.find_spec(name) is not None:
            found += importlib.import_module(name).cases(chip)
    return found


def choose_cases(cases: list[Case], kernel: str | None) -> list[Case]:
    """The cases whose `operation/name` contains `kernel`; ValueError, in one line, if none does."""
    if kernel is None:
        return cases
    chosen = [case for case in cases if kernel in f"{case.operation}/{case.model}/{case.name}"]
    if not chosen:
        operations = ", ".join(sorted({case.operation for case in cases}))
        raise ValueError(
            f"no case matches {kernel!r}: it must be part of operation/model/case, with {operations}"
        )
    return chosen
