"""What ends rows, or a run, before their time: a row's time limit, a deadline, a signal, and errors alone."""

from __future__ import annotations

import dataclasses
import math
import threading
import time
from typing import Protocol, runtime_checkable

FEWEST_ERRORS = 100
"""A run is not ended for fewer error rows in succession, whatever `Limits.max_errors` is."""

_TICK_SECONDS = 0.1


@runtime_checkable
class CancellingEngine(Protocol):
    """An engine whose requests can be ended from another thread, such as `Engine`."""

    def cancel(self, id: str) -> None:
        """Ends a request: its completions have the finish reason "cancelled". Unknown ids are ignored."""

    def has_begun(self, id: str) -> bool:
        """True if the request has a slot: it is being computed."""


class Limits:
    """The limits of one run. `drain` may be called in any thread, at any time.

    Args:
        row_seconds: how long a row may be computed; then it becomes an error row. None for no limit. Waiting
            for the engine does not count.
        deadline: when the run ends, as `time.time()` has it; None for no such time. Rows that are not
            finished then are given back: they have no row, and the next run answers them.
        max_errors: the run ends when more than this many rows in succession became error rows, at least 100,
            and no answer came between them. None for no such end.
    """

    def __init__(
        self,
        *,
        row_seconds: float | None = None,
        deadline: float | None = None,
        max_errors: int | None = None,
    ) -> None:
        self.row_seconds, self.deadline, self.max_errors = row_seconds, deadline, max_errors
        self._stopped: str | None = None
        self._ends_at = math.inf  # by time.monotonic()

    @property
    def stopped(self) -> str | None:
        """Why the run comes to its end, as words for a sentence; None while it does not."""
        if self._stopped is None and self.deadline is not None and time.time() >= self.deadline:
            self.drain("at the deadline", 0.0)
        return self._stopped

    def drain(self, reason: str, seconds: float) -> None:
        """Ends the run: rows that are computed have this many seconds, the others are given back at once.

        `reason` is what `stopped` says from then on. The first reason counts.
        """
        if self._stopped is None:
            self._ends_at = time.monotonic() + seconds
            self._stopped = reason

    @property
    def is_over(self) -> bool:
        """True if rows that are still computed are to be given back too."""
        return self.stopped is not None and time.monotonic() >= self._ends_at


@dataclasses.dataclass
class _Open:
    """A row that the engine has. began: when it was first seen computed; None if it was not yet."""

    began: float | None = None


class Watch:
    """Ends the requests of a run by its limits, in a thread of its own. Use it as a context manager.

    late: the ids of requests that were ended because of their own time.
    """

    def __init__(self, limits: Limits, engine: object) -> None:
        self.limits = limits
        self.late: set[str] = set()
        self._engine = engine if isinstance(engine, CancellingEngine) else None
        self._open: dict[str, _Open] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="gptoss-jax batch limits", daemon=True)

    def begin(self, id: str) -> None:
        """A request goes to the engine."""
        self._open[id] = _Open()

    def end(self, id: str) -> None:
        """A request has ended."""
        self._open.pop(id, None)
        self.late.discard(id)

    def __enter__(self) -> Watch:
        if self._engine is not None:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(_TICK_SECONDS):
            self._look()

    def _look(self) -> None:
        """Ends what is due. What the engine does not have yet is ended at one of the next looks."""
        assert self._engine is not None
        now, most = time.monotonic(), self.limits.row_seconds
        draining, over = self.limits.stopped is not None, self.limits.is_over
        if most is None and not draining:
            return
        for id, row in list(self._open.items()):
            begun = self._engine.has_begun(id)
            if row.began is None and begun:
                row.began = now
            if most is not None and row.began is not None and now - row.began >= most:
                self.late.add(id)
                self._engine.cancel(id)
            elif over or (draining and row.began is None):
                self._engine.cancel(id)
