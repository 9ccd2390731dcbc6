"""Marks for cases that only the slow run takes."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import pytest

from pallas_kernels.platform import CHIPS, Chip

QUICK: Chip = "v5e"
"""The TPU generation that the quick run compiles kernels for; the slow run takes the others. Its layout of
weights is that of v5p and v6e, and its matrix unit the smallest."""


def slow(*values: Any) -> Any:
    """A case that only the slow run takes."""
    return pytest.param(*values, marks=pytest.mark.slow)


def named(cases: Mapping[str, Any], slow_ones: Collection[str]) -> list[Any]:
    """Parametrized cases with their names as ids; a tuple is several arguments."""
    assert set(slow_ones) <= set(cases)
    return [
        pytest.param(
            *(case if isinstance(case, tuple) else (case,)),
            id=name,
            marks=[pytest.mark.slow] if name in slow_ones else [],
        )
        for name, case in cases.items()
    ]


EVERY_CHIP = [chip if chip == QUICK else slow(chip) for chip in CHIPS]
