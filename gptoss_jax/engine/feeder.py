"""Decides which request the engine gets next, and when."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from gptoss_jax.engine.request import Request

BACKLOG = 2
"""The engine gets at most this many sequences for each of its slots: one runs, one waits."""

WINDOW = 4
"""Requests that are read ahead, for each slot, from a source of unknown length."""


class FedEngine(Protocol):
    """What the feeder needs to know of an engine."""

    max_length: int

    @property
    def slots(self) -> int:
        """Sequences that decode at the same time."""

    @property
    def unfinished(self) -> int:
        """Sequences that wait or run."""


class Feeder:
    """Holds requests back until the engine can run them soon.

    Each caller is a source of requests. The engine gets one request of each source in turn, so a caller with
    one request does not wait for another caller's thousands. Within a source the longest requests go first.
    A list is sorted as a whole; any other iterable, such as the lines of a file, is sorted in windows of
    `WINDOW` requests for each slot.

    Sources in the background come behind all others: one of their requests is due only where a slot is free
    and no other source has any left.
    """

    def __init__(self, engine: FedEngine) -> None:
        self._engine = engine
        self._sources: deque[Iterator[Request]] = deque()
        self._background: deque[Iterator[Request]] = deque()

    def __bool__(self) -> bool:
        """False if every request was handed out. May be True for empty sources until `due` is called."""
        return bool(self._sources or self._background)

    def add_source(self, requests: Iterable[Request], *, background: bool = False) -> None:
        """Adds a caller's requests; `background` says whether they come behind those of others."""
        (self._background if background else self._sources).append(self._longest_first(requests))

    def due(self, in_background: int = 0) -> Iterator[Request]:
        """Yields the requests to add to the engine now.

        The caller adds or drops each one before it takes the next: the engine's load decides when to stop.
        `in_background` is how many of the engine's sequences are in the background: they hold up no others.
        """
        engine = self._engine
        while self._sources and engine.unfinished - in_background < BACKLOG * engine.slots:
            if (request := _next_of(self._sources)) is not None:
                yield request
        while self._background and not self._sources and engine.unfinished < engine.slots:
            if (request := _next_of(self._background)) is not None:
                yield request

    def clear(self) -> None:
        """Drops all sources."""
        self._sources.clear()
        self._background.clear()

    def _longest_first(self, requests: Iterable[Request]) -> Iterator[Request]:
        size = len(requests) if isinstance(requests, Sequence) else WINDOW * self._engine.slots
        rest = iter(requests)
        while window := list(itertools.islice(rest, size)):
            yield from sorted(window, key=self._length, reverse=True)

    def _length(self, request: Request) -> int:
        """The most tokens that a request's sequence can have, prompt included."""
        limit, max_tokens = self._engine.max_length, request.sampling.max_tokens
        return limit if max_tokens is None else min(len(request.prompt) + max_tokens, limit)


def _next_of(sources: deque[Iterator[Request]]) -> Request | None:
    """The next request of the source whose turn it is; None if that source has no more, and is dropped."""
    source = sources.popleft()
    request = next(source, None)
    if request is not None:
        sources.append(source)
    return request
