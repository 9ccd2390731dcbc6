"""Memory that a process of tests no longer needs."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import sys
from pathlib import Path

ENOUGH_BYTES = 2 << 30
"""A process that holds less than this keeps its programs: the next module may need them again."""


def give_memory_back() -> None:
    """Drops this process's compiled programs if it holds much, and returns what is free to the system."""
    if resident_bytes() < ENOUGH_BYTES:
        return
    if "jax" in sys.modules:
        sys.modules["jax"].clear_caches()
    gc.collect()
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):  # another C library
            ctypes.CDLL(None).malloc_trim(0)


def resident_bytes() -> int:
    """The memory that this process holds now; more than `ENOUGH_BYTES` where that cannot be known."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return ENOUGH_BYTES
    return pages * os.sysconf("SC_PAGE_SIZE")
