"""The server's engine as a batch run uses it: behind all others, until it is told to stop."""

from __future__ import annotations

import dataclasses
import functools
import queue
import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from gptoss_jax.engine.engine_thread import NamedRequest
from gptoss_jax.engine.errors import RequestError, RequestFailed
from gptoss_jax.engine.feeder import Feeder
from gptoss_jax.engine.request import Completion
from gptoss_jax.engine.statistics import Statistics

if TYPE_CHECKING:
    from gptoss_jax.engine.engine_thread import Delivery, EngineLike, EngineThread
    from gptoss_jax.engine.request import Request


class Stopped(Exception):
    """A batch is to be left. `reason` says why: "cancelled", "expired", or "shutdown"."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class BackgroundEngine:
    """Runs the requests of one batch on an engine that others use too.

    The engine's thread gets a few requests ahead of those that run, so that memory is bounded. A request on
    which the engine fails is a completion with an error, as everywhere.
    """

    def __init__(self, engine: EngineLike, thread: EngineThread, name: str, deadline: float) -> None:
        """`name` tells the batch's requests from others. `deadline` is a Unix time in seconds."""
        self.max_length = engine.max_length
        self.statistics = Statistics()  # the engine's own are those of all requests
        self.compiled_programs = 0
        self._engine, self._thread = engine, thread
        self._name, self._deadline = name, deadline
        self._deliveries: queue.SimpleQueue[tuple[Request, Delivery] | None] = queue.SimpleQueue()
        self._open: dict[str, set[int]] = {}  # our id → the samples that are missing
        self._stopped: str | None = None

    @property
    def slots(self) -> int:
        """Sequences that decode at the same time."""
        return self._engine.slots

    @property
    def unfinished(self) -> int:
        """Sequences of this batch that wait or run."""
        return sum(map(len, self._open.values()))

    def check(self, request: Request) -> None:
        """Raises RequestError if the request can never run."""
        self._engine.check(request)

    def stop(self, reason: str) -> None:
        """Makes `run` and `go_on` raise `Stopped`. May be called in any thread; the first reason counts."""
        self._stopped = self._stopped or reason
        self._deliveries.put(None)

    def go_on(self) -> None:
        """Raises Stopped if the batch is to be left."""
        if self._stopped is None and time.time() >= self._deadline:
            self._stopped = "expired"
        if self._stopped is not None:
            raise Stopped(self._stopped)

    def run(self, requests: Iterable[Request]) -> Iterator[Completion]:
        """Completes every request, and yields each completion as soon as it is finished.

        Raises:
            Stopped: the batch is to be left; its requests are cancelled.
            EngineStopped: the engine failed or was closed.
        """
        feeder = Feeder(self)
        feeder.add_source(requests)
        try:
            while True:
                self.go_on()
                for request in feeder.due():
                    self._submit(request)
                if not self._open and not feeder:
                    return
                try:
                    delivered = self._deliveries.get(timeout=max(0.0, self._deadline - time.time()))
                except queue.Empty:
                    continue
                if delivered is not None:
                    yield from self._completions(*delivered)
        finally:
            self._thread.cancel([f"{self._name}-{id}" for id in self._open])

    def _submit(self, request: Request) -> None:
        self._open[request.id] = set(range(request.sampling.n))
        named = NamedRequest(dataclasses.replace(request, id=f"{self._name}-{request.id}", background=True))
        self._thread.submit([named], functools.partial(self._take, request), whole=True)

    def _take(self, request: Request, delivery: Delivery) -> None:
        """Called in the engine's thread."""
        self._deliveries.put((request, delivery))

    def _completions(self, request: Request, delivery: Delivery) -> Iterator[Completion]:
        missing = self._open[request.id]
        if isinstance(delivery, RequestError | RequestFailed):
            found = [
                Completion(request.id, [], "cancelled", len(request.prompt), sample, error=str(delivery))
                for sample in missing
            ]
        elif isinstance(delivery, Exception):
            raise delivery
        else:
            found = [
                dataclasses.replace(update.completion, id=request.id)
                for update in delivery
                if update.completion is not None
            ]
        for completion in found:
            missing.remove(completion.sample)
        if not missing:
            del self._open[request.id]
        yield from found
