"""All cases, and the choice among them by `--kernel`."""

from __future__ import annotations

from pallas_kernels.inspect.case import Case
from pallas_kernels.inspect.cases import attention, expert_matmul, routing
from pallas_kernels.platform import Chip

OPERATIONS = ("expert_matmul", "attention", "routing")


def all_cases(chip: Chip) -> list[Case]:
    """The cases of every operation, in the order of `OPERATIONS`."""
    return [*expert_matmul.cases(chip), *attention.cases(chip), *routing.cases(chip)]


def choose_cases(cases: list[Case], kernel: str | None) -> list[Case]:
    """The cases whose `operation/model/name` contains `kernel`; None: all cases.

    Raises ValueError if none does.
    """
    if kernel is None:
        return cases
    chosen = [case for case in cases if kernel in f"{case.operation}/{case.model}/{case.name}"]
    if not chosen:
        operations = ", ".join(sorted({case.operation for case in cases}))
        raise ValueError(
            f"no case matches {kernel!r}: it must be part of operation/model/case, with {operations}"
        )
    return chosen
