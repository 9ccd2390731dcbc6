"""Standard output as the output of a batch run."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Set
from types import MappingProxyType
from typing import TYPE_CHECKING

from gptoss_jax.batch.errors import BatchError, cannot
from gptoss_jax.batch.line_set import LineSet
from gptoss_jax.batch.row_lines import encoded_row

if TYPE_CHECKING:
    from harmony.json_types import Json


class StandardOutput:
    """The rows of one run on standard output. No earlier run can be continued."""

    def __init__(self, run: Mapping[str, Json]):
        if sys.stdout is None:
            raise BatchError("cannot write standard output: it is closed")
        self.run = dict(run)
        self.done = LineSet()
        self.failed: Set[int] = frozenset()

    def begin(self, settled: Mapping[str, Json] = MappingProxyType({})) -> None:
        """Adds the values of settings that were None."""
        self.run.update(settled)

    def known_ids(self) -> Iterator[tuple[bytes, int]]:
        """None: no earlier run is continued."""
        return iter(())

    def append(self, line: int, row: Mapping[str, Json]) -> None:
        """Writes the row of an input line, unbuffered.

        Raises:
            BrokenPipeError: the reader of standard output has closed it.
            BatchError: the disk behind standard output is full or fails.
        """
        # Without Python's buffer: after an error, Python would try to write its contents again at exit.
        out = getattr(sys.stdout.buffer, "raw", sys.stdout.buffer)
        left = memoryview(encoded_row(line, row))
        try:
            while left:
                left = left[out.write(left) :]
        except BrokenPipeError:
            raise
        except OSError as error:
            raise cannot("write", "standard output", error) from None
        self.done.add(line)

    def close(self) -> None:
        """Does nothing: standard output stays open."""
