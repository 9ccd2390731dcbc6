"""Which sequence runs where: slots, pages, prefixes that are reused, and who must give way. Plain Python."""

from __future__ import annotations

import bisect
import heapq
from collections.abc import Iterator
from typing import NamedTuple

from gptoss_jax.engine.options import Bucket, Layout
from gptoss_jax.engine.pages import PageStore
from gptoss_jax.engine.sequence import Sequence

_LOOK_AHEAD = 64
"""Waiting sequences that are considered while the first of them waits for others to compute its prefix."""


class Copy(NamedTuple):
    """Rings of a batch shard that are to be copied from one row to another."""

    shard: int
    source: int
    target: int


class Part(NamedTuple):
    """The next tokens of a sequence that one prefill step computes."""

    sequence: Sequence
    begin: int
    end: int


class _Shard:
    """One part of the batch: its slots and its pages."""

    def __init__(self, layout: Layout):
        self.store = PageStore(layout.cache.pages, layout.cache.page_size, layout.cache.snapshots)
        self.free = list(range(layout.slots))  # a heap: low slots first
        self.running: list[Sequence] = []
        self.prefixes: set[tuple[int, ...]] = set()  # that are being computed, to be saved for others


class Scheduler:
    """Keeps the books of an engine. It is told what happened and says what is to be done.

    Sequences are served in their order. One that runs keeps its slot until it is finished, unless the pages
    of its shard run out: then the last in order gives its own away and is computed again later.
    """

    def __init__(self, layout: Layout, shards: int):
        self._layout = layout
        self._shards = [_Shard(layout) for _ in range(shards)]
        self._waiting: list[Sequence] = []  # in order

    @property
    def unfinished(self) -> int:
        """Sequences that wait or run."""
        return len(self._waiting) + sum(len(shard.running) for shard in self._shards)

    def running(self) -> Iterator[Sequence]:
        """All sequences that have a slot."""
        for shard in self._shards:
            yield from shard.running

    def waiting(self) -> tuple[Sequence, ...]:
        """All sequences that have none, in order."""
        return tuple(self._waiting)

    def add(self, sequence: Sequence) -> None:
        """Queues a sequence."""
        for shard in self._shards:
            shard.store.announce(sequence.tokens)
        self._queue(sequence)

    def remove(self, sequence: Sequence) -> None:
        """Takes a sequence out, finished or not; what it computed stays findable for others."""
        if sequence.shard < 0:
            self._waiting.remove(sequence)
        else:
            self._leave(sequence)
        for shard in self._shards:
            shard.store.forget(sequence.request.prompt)

    def admit(self) -> list[Copy]:
        """Gives slots and pages to waiting sequences, as many as there is room for.

        Returns the rings that must be copied before the next step: the snapshots from which some start.
        """
        copies: list[Copy] = []
        passed: list[Sequence] = []
        while self._waiting and len(passed) < _LOOK_AHEAD and any(shard.free for shard in self._shards):
            sequence = self._waiting.pop(0)
            outcome = self._try(sequence, copies)
            if outcome == "later":
                passed.append(sequence)
            elif outcome == "full":
                passed.append(sequence)
                break
        for sequence in passed:
            self._queue(sequence)
        return copies

    def parts(self) -> dict[Bucket, list[Part]]:
        """The next prefill steps: the parts of sequences that each bucket computes, at most its rows on each
        shard; of the buckets only the one that the first in order needs, so that decoding waits for one step.
        """
        pending = sorted(
            (sequence for sequence in self.running() if not sequence.decodes), key=lambda one: one.order
        )
        if not pending:
            return {}
        bucket = self._bucket(pending[0])
        parts: list[Part] = []
        taken = [0] * len(self._shards)
        for sequence in pending:
            if taken[sequence.shard] < bucket.rows and self._bucket(sequence) == bucket:
                taken[sequence.shard] += 1
                parts.append(Part(sequence, sequence.computed, self._end(sequence, bucket)))
        return {bucket: parts}

    def computed(self, parts: list[Part]) -> list[Copy]:
        """Notes that parts were sent to the device. Returns the rings that must be copied next: snapshots."""
        copies = []
        for sequence, _, end in parts:
            shard = self._shards[sequence.shard]
            sequence.computed, sequence.fresh = end, False
            self._register(sequence)
            if sequence.boundary and end == sequence.boundary:
                row = shard.store.save(sequence.tokens, end)
                if row is not None:
                    copies.append(Copy(sequence.shard, sequence.slot, self._layout.slots + row))
                shard.prefixes.discard(tuple(sequence.tokens[:end]))
                self._aim(shard, sequence)
        return copies

    def reserve(self, steps: int) -> list[Sequence]:
        """Makes sure that every decoding sequence has pages for its next steps.

        Returns those that had to give way: they have lost their slot, and wait.
        """
        size = self._layout.cache.page_size
        preempted: list[Sequence] = []
        for shard in self._shards:
            for sequence in sorted(shard.running, key=lambda one: one.order):
                if sequence.shard < 0 or not sequence.decodes:
                    continue
                further = min(sequence.flying + steps, sequence.control.allowance())
                missing = -(-(sequence.computed + further) // size) - len(sequence.pages)
                while missing > 0 and sequence.shard >= 0:
                    pages = shard.store.allocate(missing)
                    if pages is not None:
                        sequence.pages += pages
                        break
                    victim = max(shard.running, key=lambda one: one.order)
                    self._leave(victim)
                    victim.restart()
                    self._queue(victim)
                    preempted.append(victim)
        return preempted

    def _queue(self, sequence: Sequence) -> None:
        bisect.insort(self._waiting, sequence, key=lambda one: one.order)

    def _try(self, sequence: Sequence, copies: list[Copy]) -> str:
        """Starts a sequence: "started", "full" if there is no room, "later" if another is computing what it
        could reuse."""
        index = max(
            (number for number, shard in enumerate(self._shards) if shard.free),
            key=lambda number: (len(self._shards[number].free), self._shards[number].store.available),
        )
        shard = self._shards[index]
        prefix = shard.store.match(sequence.tokens)
        boundary = _next_boundary(shard, sequence, prefix.length)
        if boundary and tuple(sequence.tokens[:boundary]) in shard.prefixes:
            shard.store.release(prefix.pages)
            return "later"
        whole = -(-len(sequence.tokens) // self._layout.cache.page_size)
        # A page for each that decodes: what is admitted into the last pages would soon have to leave again.
        needed, spare = whole - len(prefix.pages), len(shard.running)
        pages = shard.store.allocate(needed) if needed + spare <= shard.store.available else None
        if pages is None:
            shard.store.release(prefix.pages)
            return "full"
        sequence.shard, sequence.slot = index, heapq.heappop(shard.free)
        sequence.pages = prefix.pages + pages
        sequence.computed, sequence.fresh = prefix.length, prefix.snapshot is None
        sequence.cached = max(sequence.cached, prefix.length) if not sequence.generated else sequence.cached
        self._aim(shard, sequence)
        if prefix.snapshot is not None:
            copies.append(Copy(index, self._layout.slots + prefix.snapshot, sequence.slot))
        shard.running.append(sequence)
        return "started"

    def _aim(self, shard: _Shard, sequence: Sequence) -> None:
        """Sets the next prefix of a sequence that is to be saved for others."""
        sequence.boundary = _next_boundary(shard, sequence, sequence.computed)
        if sequence.boundary:
            shard.prefixes.add(tuple(sequence.tokens[: sequence.boundary]))

    def _leave(self, sequence: Sequence) -> None:
        """Takes slot and pages from a sequence."""
        shard = self._shards[sequence.shard]
        self._register(sequence)
        shard.store.release(sequence.pages)
        shard.running.remove(sequence)
        heapq.heappush(shard.free, sequence.slot)
        if sequence.boundary:
            shard.prefixes.discard(tuple(sequence.tokens[: sequence.boundary]))

    def _register(self, sequence: Sequence) -> None:
        size = self._layout.cache.page_size
        whole = sequence.computed // size
        self._shards[sequence.shard].store.register(sequence.tokens[: whole * size], sequence.pages[:whole])

    def _left(self, sequence: Sequence) -> int:
        end = sequence.boundary or len(sequence.tokens) - 1
        return end - sequence.computed

    def _bucket(self, sequence: Sequence) -> Bucket:
        return self._layout.bucket_for(self._left(sequence))

    def _end(self, sequence: Sequence, bucket: Bucket) -> int:
        return sequence.computed + min(bucket.tokens, self._left(sequence))


def _next_boundary(shard: _Shard, sequence: Sequence, computed: int) -> int:
    """The next place after `computed` tokens where prompts part, for others to go on from there; or 0."""
    return min(shard.store.boundaries(sequence.tokens, computed), default=0)
