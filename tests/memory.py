"""Memory that a process of tests no longer needs."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import sys


def give_memory_back() -> None:
    """Drops this process's compiled programs, and returns what is free to the system."""
    if "jax" in sys.modules:
        sys.modules["jax"].clear_caches()
    gc.collect()
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):  # another C library
            ctypes.CDLL(None).malloc_trim(0)
