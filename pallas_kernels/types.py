"""Types shared by kernels.

A reference to memory is a `jax.Ref`; docstrings give its shape, dtype and memory.
"""

from __future__ import annotations

from typing import Protocol

import jax

Index = jax.Array | int
"""An index: a traced number, or an int that is known when the kernel is traced."""


class Copy(Protocol):
    """An asynchronous copy between memories."""

    def start(self) -> None:
        """Starts the copy and returns at once."""

    def wait(self) -> None:
        """Blocks until the copy is done."""
