"""The events of a response that is made in the background: kept, and followed by any number of clients."""

from __future__ import annotations

import asyncio
import bisect
import dataclasses
import itertools
import json
import zlib
from collections.abc import AsyncIterator, Iterable, Iterator
from typing import Any

Event = dict[str, Any]

_TOGETHER = 256
"""Events that are made again for a follower at one time."""


@dataclasses.dataclass
class _Run:
    """Consecutive events that differ in their delta only, or a single other event.

    first: the sequence number of the first of them.
    event: that event.
    deltas: the deltas of all of them; None for an event without one.
    """

    first: int
    event: Event
    deltas: list[str] | None

    @classmethod
    def of(cls, event: Event) -> _Run:
        delta = event.get("delta")
        return cls(event["sequence_number"], event, [delta] if isinstance(delta, str) else None)

    def takes(self, event: Event) -> bool:
        """Whether the event goes on with this run; it belongs to it then."""
        if self.deltas is None or not _differ_in_delta(self.event, event):
            return False
        self.deltas.append(event["delta"])
        return True

    def since(self, number: int) -> Iterator[Event]:
        """Its events with at least this sequence number."""
        if self.deltas is None:
            yield self.event
            return
        for index in range(max(number - self.first, 0), len(self.deltas)):
            yield {**self.event, "sequence_number": self.first + index, "delta": self.deltas[index]}


def _differ_in_delta(one: Event, other: Event) -> bool:
    own = ("sequence_number", "delta")
    return one.keys() == other.keys() and all(one[key] == other[key] for key in one if key not in own)


class EventLog:
    """The events of one response, by sequence number, from 0.

    What it holds in memory are the texts of the deltas and a few whole events for each item, so that it grows
    with the response's tokens as the response itself does. Its methods are for one event loop.
    """

    def __init__(self) -> None:
        self._runs: list[_Run] = []
        self._next = 0
        self._ended = False
        self._grown = asyncio.Event()

    def add(self, events: Iterable[Event]) -> None:
        """Adds the next events, and wakes those who follow."""
        for event in events:
            assert event["sequence_number"] == self._next
            self._next += 1
            if not self._runs or not self._runs[-1].takes(event):
                self._runs.append(_Run.of(event))
        self._wake()

    def end(self) -> None:
        """Says that no more events come."""
        self._ended = True
        self._wake()

    def since(self, number: int) -> Iterator[Event]:
        """The events that are there with at least this sequence number."""
        begin = bisect.bisect_right(self._runs, number, key=lambda run: run.first) - 1
        for run in self._runs[max(begin, 0) :]:
            if run.deltas is not None or run.first >= number:
                yield from run.since(number)

    async def follow(self, number: int) -> AsyncIterator[Event]:
        """The events with at least this sequence number, those that are there and those that are to come."""
        while True:
            grown, ended = self._grown, self._ended
            some = list(itertools.islice(self.since(number), _TOGETHER))
            for event in some:
                number = event["sequence_number"] + 1
                yield event
            if some:
                continue
            if ended:
                return
            await grown.wait()

    def dump(self, more: Iterable[Event] = ()) -> bytes:
        """All of it as bytes, from which `load` makes it again, with `more` events behind those it has."""
        runs = [(run.event, run.deltas) for run in (*self._runs, *map(_Run.of, more))]
        return zlib.compress(json.dumps(runs, separators=(",", ":")).encode())

    @classmethod
    def load(cls, data: bytes) -> EventLog:
        """The log that was dumped, which has ended."""
        log = cls()
        for event, deltas in json.loads(zlib.decompress(data)):
            log._runs.append(_Run(event["sequence_number"], event, deltas))
            log._next = event["sequence_number"] + (1 if deltas is None else len(deltas))
        log._ended = True
        return log

    def _wake(self) -> None:
        self._grown.set()
        self._grown = asyncio.Event()
