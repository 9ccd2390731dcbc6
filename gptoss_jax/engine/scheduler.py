"""Assigns slots, pages and cached prefixes to sequences, and preempts sequences. Plain Python."""

from __future__ import annotations

import bisect
import heapq
from collections.abc import Iterator
from typing import NamedTuple

from gptoss_jax.engine.layout import Bucket, Layout
from gptoss_jax.engine.pages import PageStore
from gptoss_jax.engine.sequence import Placement, Sequence, State
from gptoss_jax.engine.statistics import Occupancy

_LOOK_AHEAD = 64
"""How many sequences `admit` passes over, at most, because another one is still computing their prefix."""


class Copy(NamedTuple):
    """A copy of the rings of one batch shard from row `source` to row `target`."""

    shard: int
    source: int
    target: int


class Part(NamedTuple):
    """The tokens `begin` to `end` of a sequence, which one prefill step computes."""

    sequence: Sequence
    begin: int
    end: int


class _Shard:
    """The slots and pages of one batch shard."""

    def __init__(self, layout: Layout):
        self.store = PageStore(layout.pages, layout.page_size, layout.snapshots)
        self.free = list(range(layout.slots))  # free slots, a heap: low numbers first
        self.running: list[Sequence] = []
        self.prefixes: set[tuple[int, ...]] = set()  # prefixes that a running sequence computes for others


class Scheduler:
    """Decides which sequences run. The engine reports what happened and does what the scheduler returns.

    Sequences are served in order of arrival, those in the background behind all others. A running sequence
    keeps its slot until it is finished, with two exceptions: if the pages of its shard run out, the one that
    comes last in this order is preempted; and one in the background makes room for others that wait. A
    preempted sequence loses its slot and pages, and is computed again later.
    """

    def __init__(self, layout: Layout, shards: int):
        self._layout = layout
        self._shards = [_Shard(layout) for _ in range(shards)]
        self._waiting: list[Sequence] = []  # in order

    @property
    def unfinished(self) -> int:
        """Sequences that wait or run."""
        return len(self._waiting) + sum(len(shard.running) for shard in self._shards)

    def occupancy(self) -> Occupancy:
        """What is in use. May be called in any thread: figures of a moment may be those of two."""
        used, cached, free = map(sum, zip(*(shard.store.counts for shard in self._shards), strict=True))
        busy = sum(len(shard.running) for shard in self._shards)
        return Occupancy(busy, len(self._waiting), used, cached, free)

    def running(self) -> Iterator[Sequence]:
        """All sequences that have a slot."""
        for shard in self._shards:
            yield from shard.running

    def waiting(self) -> tuple[Sequence, ...]:
        """All sequences without a slot, in the order in which they are served."""
        return tuple(self._waiting)

    def add(self, sequence: Sequence) -> None:
        """Queues a sequence."""
        for shard in self._shards:
            shard.store.announce(sequence.tokens)
        self._queue(sequence)

    def remove(self, sequence: Sequence) -> None:
        """Removes a sequence, finished or not. Its pages stay in the prefix cache."""
        if sequence.state is State.WAITING:
            self._waiting.remove(sequence)
        else:
            self._leave(sequence)
        for shard in self._shards:
            shard.store.forget(sequence.request.prompt)

    def admit(self) -> tuple[list[Copy], list[Sequence]]:
        """Gives slots and pages to as many waiting sequences as there is room for.

        Returns the copies that must run before the next step, snapshots into the rings of the slots; and the
        sequences in the background that were preempted. They have lost their slots and wait.
        """
        copies: list[Copy] = []
        passed: list[Sequence] = []
        preempted: list[Sequence] = []
        while self._waiting and len(passed) < _LOOK_AHEAD:
            sequence = self._waiting[0]
            outcome = self._try(sequence, copies)
            while outcome == "full" and (victim := self._in_background(sequence)) is not None:
                self.requeue(victim)
                preempted.append(victim)
                outcome = self._try(sequence, copies)
            if outcome == "full":
                break
            self._waiting.remove(sequence)
            if outcome == "later":
                passed.append(sequence)
        for sequence in passed:
            self._queue(sequence)
        return copies, preempted

    def _in_background(self, waiting: Sequence) -> Sequence | None:
        """The running sequence that makes room for one that waits: the last one in the background, if any."""
        if waiting.request.background:
            return None
        found = [one for one in self.running() if one.request.background]
        return max(found, key=lambda one: one.rank, default=None)

    def parts(self) -> dict[Bucket, list[Part]]:
        """The next prefill step: its bucket, and the part of each sequence that it computes.

        The bucket is the one that the first sequence needs; other sequences join if they need the same. There
        is one bucket at most, so that decoding waits for one prefill step only. Empty if nothing is left to
        prefill.
        """
        pending = sorted(
            (one for one in self.running() if one.state is State.PREFILLING), key=lambda one: one.rank
        )
        if not pending:
            return {}
        bucket = self._bucket(pending[0])
        parts: list[Part] = []
        taken = [0] * len(self._shards)
        for sequence in pending:
            shard = sequence.placed.shard
            if taken[shard] < bucket.rows and self._bucket(sequence) == bucket:
                taken[shard] += 1
                parts.append(Part(sequence, sequence.computed, self._end(sequence, bucket)))
        return {bucket: parts}

    def computed(self, parts: list[Part]) -> list[Copy]:
        """Records that parts were sent to the device. Returns the copies to run next: new snapshots."""
        copies = []
        for sequence, _, end in parts:
            placement = sequence.placed
            shard = self._shards[placement.shard]
            sequence.computed, placement.ring_is_own = end, True
            self._register(sequence)
            if placement.snapshot_at and end == placement.snapshot_at:
                row = shard.store.save(sequence.tokens, end)
                if row is not None:
                    copies.append(Copy(placement.shard, placement.slot, self._layout.slots + row))
                shard.prefixes.discard(tuple(sequence.tokens[:end]))
                self._plan_snapshot(shard, sequence)
        return copies

    def reserve(self, steps: int) -> list[Sequence]:
        """Allocates the pages that every decoding sequence needs for its next `steps` tokens.

        Returns the sequences that were preempted for it. They have lost their slots and wait.
        """
        size = self._layout.page_size
        preempted: list[Sequence] = []
        for shard in self._shards:
            for sequence in sorted(shard.running, key=lambda one: one.rank):
                if sequence.state is not State.DECODING:  # it may have been preempted just now
                    continue
                further = min(sequence.in_flight + steps, sequence.processor.allowance())
                missing = -(-(sequence.computed + further) // size) - len(sequence.placed.pages)
                while missing > 0 and sequence.placement is not None:
                    pages = shard.store.allocate(missing)
                    if pages is not None:
                        sequence.placement.pages += pages
                        break
                    victim = max(shard.running, key=lambda one: one.rank)
                    self.requeue(victim)
                    preempted.append(victim)
        return preempted

    def requeue(self, sequence: Sequence) -> None:
        """Takes slot and pages from a running sequence: it waits, and is computed again."""
        self._leave(sequence)
        sequence.restart()
        self._queue(sequence)

    def _queue(self, sequence: Sequence) -> None:
        bisect.insort(self._waiting, sequence, key=lambda one: one.rank)

    def _try(self, sequence: Sequence, copies: list[Copy]) -> str:
        """Tries to start a sequence.

        Returns "started"; "full" if there is no room; or "later" if another sequence is computing a prefix
        that this one can reuse.
        """
        index = max(
            range(len(self._shards)),
            key=lambda number: (len(self._shards[number].free), self._shards[number].store.available),
        )
        shard = self._shards[index]
        if not shard.free:
            return "full"
        prefix = shard.store.match(sequence.tokens)
        boundary = _next_boundary(shard, sequence, prefix.length)
        if boundary and tuple(sequence.tokens[:boundary]) in shard.prefixes:
            shard.store.release(prefix.pages)
            return "later"
        whole = -(-len(sequence.tokens) // self._layout.page_size)
        # A spare page for each running sequence: one admitted into the last pages would soon be preempted.
        needed, spare = whole - len(prefix.pages), len(shard.running)
        pages = shard.store.allocate(needed) if needed + spare <= shard.store.available else None
        if pages is None:
            shard.store.release(prefix.pages)
            return "full"
        slot, ring_is_own = heapq.heappop(shard.free), prefix.snapshot is not None
        sequence.placement = Placement(index, slot, prefix.pages + pages, ring_is_own)
        sequence.computed = prefix.length
        sequence.cached = max(sequence.cached, prefix.length) if not sequence.generated else sequence.cached
        self._plan_snapshot(shard, sequence)
        if prefix.snapshot is not None:
            copies.append(Copy(index, self._layout.slots + prefix.snapshot, slot))
        shard.running.append(sequence)
        return "started"

    def _plan_snapshot(self, shard: _Shard, sequence: Sequence) -> None:
        """Chooses the sequence's next prefix to save for others."""
        end = sequence.placed.snapshot_at = _next_boundary(shard, sequence, sequence.computed)
        if end:
            shard.prefixes.add(tuple(sequence.tokens[:end]))

    def _leave(self, sequence: Sequence) -> None:
        """Takes the slot and pages from a sequence. Its full pages stay in the prefix cache."""
        placement = sequence.placed
        shard = self._shards[placement.shard]
        self._register(sequence)
        shard.store.release(placement.pages)
        shard.running.remove(sequence)
        heapq.heappush(shard.free, placement.slot)
        if placement.snapshot_at:
            shard.prefixes.discard(tuple(sequence.tokens[: placement.snapshot_at]))
        sequence.placement = None

    def _register(self, sequence: Sequence) -> None:
        size = self._layout.page_size
        whole = sequence.computed // size
        placement = sequence.placed
        store = self._shards[placement.shard].store
        store.register(sequence.tokens[: whole * size], placement.pages[:whole])

    def _left(self, sequence: Sequence) -> int:
        end = sequence.placed.snapshot_at or len(sequence.tokens) - 1
        return end - sequence.computed

    def _bucket(self, sequence: Sequence) -> Bucket:
        return self._layout.bucket_for(self._left(sequence))

    def _end(self, sequence: Sequence, bucket: Bucket) -> int:
        return sequence.computed + min(bucket.tokens, self._left(sequence))


def _next_boundary(shard: _Shard, sequence: Sequence, computed: int) -> int:
    """The next position after `computed` where a snapshot would help other prompts; 0 for none."""
    return min(shard.store.boundaries(sequence.tokens, computed), default=0)
