"""The thread that owns the engine. Callers submit requests to it and receive updates."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import dataclasses
import queue
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from gptoss_jax.engine.errors import NotStarted, RequestError, RequestFailed, ends_process, one_line
from gptoss_jax.engine.feeder import Feeder

if TYPE_CHECKING:
    from gptoss_jax.engine.request import Request, Update

EXIT_SECONDS = 5.0
"""How long the interpreter waits at exit for the current step, in seconds. The thread is a daemon."""


class EngineStopped(RuntimeError):
    """The engine failed or was closed, and takes no more requests. `__cause__` is the failure, if any."""


class EngineLike(Protocol):
    """The part of `gptoss_jax.engine.Engine` that the thread uses."""

    max_length: int

    @property
    def slots(self) -> int:
        """Sequences that decode at the same time."""

    @property
    def unfinished(self) -> int:
        """Sequences that wait or run."""

    @property
    def is_leader(self) -> bool:
        """True in the process that takes requests: the first of several."""

    def check(self, request: Request) -> None:
        """Raises RequestError if the request can never run, and RequestFailed if the engine's code fails."""

    def add(self, request: Request) -> None:
        """Queues a request."""

    def cancel(self, id: str) -> None:
        """Cancels a request; does nothing for an unknown id."""

    def step(self) -> list[Update]:
        """Runs one turn. Returns the updates that it brought."""

    def follow(self) -> None:
        """Runs the same steps as the first process until that one closes."""

    def close(self) -> None:
        """Ends the engine."""


@dataclasses.dataclass(frozen=True)
class NamedRequest:
    """A request, and its name in error messages, such as "prompts[3]"; "" if it is the only one."""

    request: Request
    name: str = ""


Delivery = list["Update"] | Exception
"""Updates of a caller's requests, or the exception that ended them. Nothing follows an exception."""


@dataclasses.dataclass(eq=False)
class _Submission:
    """The requests of one call.

    requests: all of them.
    deliver: receives the deliveries.
    whole: True to deliver only updates with a completion.
    open: the id of each unfinished request → how many of its samples are missing.
    begun: the ids of the requests that the engine has or had.
    """

    requests: Sequence[NamedRequest]
    deliver: Callable[[Delivery], None]
    whole: bool
    open: dict[str, int] = dataclasses.field(default_factory=dict)
    begun: set[str] = dataclasses.field(default_factory=set)

    def named(self, id: str) -> NamedRequest:
        """The request with an id."""
        return next(named for named in self.requests if named.request.id == id)


@dataclasses.dataclass(frozen=True)
class _Cancellation:
    ids: Sequence[str]


@dataclasses.dataclass(frozen=True)
class _End:
    id: str


class _Close:
    pass


class EngineThread:
    """Runs `engine.step()` in a thread of its own while there are unfinished requests.

    All methods are thread-safe.
    """

    def __init__(self, engine: EngineLike, name: str) -> None:
        self._engine = engine
        self._commands: queue.SimpleQueue[_Submission | _Cancellation | _End | _Close] = queue.SimpleQueue()
        self._lock = threading.Lock()  # guards `_ended`: nothing may be submitted after it is set
        self._ended: str | None = None  # why no more requests are taken; None while they are
        self._cause: BaseException | None = None
        # Only the thread uses these: each request's submission, and the requests that wait for the engine.
        self._routes: dict[str, _Submission] = {}
        self._background: set[str] = set()  # requests in the background that the engine has
        self._feeder = Feeder(engine)
        self._thread = threading.Thread(target=self._run, name=f"gptoss-jax {name}", daemon=True)
        atexit.register(self._exit)
        self._thread.start()

    def submit(
        self, requests: Sequence[NamedRequest], deliver: Callable[[Delivery], None], *, whole: bool
    ) -> None:
        """Submits requests. If the engine refuses one of them, none of them runs.

        Args:
            requests: the requests.
            deliver: called with each `Delivery`, in the engine's thread; it must not block. If the requests
                end early it gets an exception: `RequestError` if the engine refuses one, `RequestFailed` if
                the engine's code fails on one, `EngineStopped` if the engine stops.
            whole: True delivers only updates with a completion, False all updates.

        Raises:
            EngineStopped: the engine failed or was closed.
        """
        with self._lock:
            if self._ended is not None:
                raise self._stopped()
            self._commands.put(_Submission(requests, deliver, whole))

    def cancel(self, ids: Sequence[str]) -> None:
        """Cancels requests. Nothing more is delivered for them. Ids of finished requests are ignored."""
        if ids:
            self._commands.put(_Cancellation(ids))

    def end(self, id: str) -> None:
        """Ends a request as it is: its completions, as far as they have come, are delivered as cancelled.

        `NotStarted` is delivered instead if the engine has not begun with it. The id of a finished request is
        ignored.
        """
        self._commands.put(_End(id))

    def close(self, timeout: float | None = None) -> None:
        """Ends the thread and the engine after the current step. Waiting callers get `EngineStopped`.

        `timeout`: how long to wait for the thread, in seconds; None for as long as it takes.
        """
        atexit.unregister(self._exit)
        self._commands.put(_Close())
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout)

    def _exit(self) -> None:
        self.close(EXIT_SECONDS)

    def _stopped(self) -> EngineStopped:
        error = EngineStopped(self._ended)
        error.__cause__ = self._cause
        return error

    # In the thread

    def _run(self) -> None:
        ended = "the engine was closed"
        try:
            while self._take_commands():
                self._feed()
                self._hand_out(self._engine.step())
        except BaseException as error:  # of any kind: waiting callers must get it
            ended, self._cause = f"the engine failed: {one_line(error)}", error
        try:
            self._engine.close()
        except BaseException as error:
            if self._cause is None:
                ended, self._cause = f"the engine failed to close: {one_line(error)}", error
        with self._lock:
            self._ended = ended
        waiting = set(self._routes.values())
        while not self._commands.empty():
            command = self._commands.get()
            if isinstance(command, _Submission):
                waiting.add(command)
        self._routes.clear()
        self._feeder.clear()
        for submission in waiting:
            self._deliver(submission, self._stopped())

    def _take_commands(self) -> bool:
        """Carries out the queued commands; waits for one if the engine is idle. Returns False to end."""
        wait = not self._engine.unfinished and not self._feeder
        while True:
            try:
                command = self._commands.get(block=wait)
            except queue.Empty:
                return True
            wait = False
            if isinstance(command, _Close):
                return False
            if isinstance(command, _Submission):
                self._begin(command)
            elif isinstance(command, _End):
                self._end(command.id)
            else:
                for request_id in command.ids:
                    self._give_up(request_id)

    def _begin(self, submission: _Submission) -> None:
        """Accepts a submission if the engine can run all its requests; else its caller gets the error."""
        for named in submission.requests:
            try:
                self._engine.check(named.request)
            except BaseException as error:
                self._deliver(submission, _refusal(error, named))
                return
        for named in submission.requests:
            submission.open[named.request.id] = named.request.sampling.n
            self._routes[named.request.id] = submission
        requests = [named.request for named in submission.requests]
        self._feeder.add_source(requests, background=all(request.background for request in requests))

    def _feed(self) -> None:
        """Gives the engine the requests that it can run soon."""
        self._background &= self._routes.keys()
        in_background = sum(self._routes[id].open[id] for id in self._background)
        for request in self._feeder.due(in_background):
            submission = self._routes.get(request.id)
            if submission is None:  # cancelled
                continue
            try:
                self._engine.add(request)
            except BaseException as error:
                self._abandon(submission, _refusal(error, submission.named(request.id)))
            else:
                submission.begun.add(request.id)
                if request.background:
                    self._background.add(request.id)

    def _end(self, id: str) -> None:
        submission = self._routes.get(id)
        if submission is None:
            return
        if id in submission.begun:
            self._engine.cancel(id)
        else:
            self._abandon(submission, NotStarted("the request was ended before it began"))

    def _abandon(self, submission: _Submission, error: Exception) -> None:
        """Cancels all requests of a submission, and delivers the error to its caller."""
        for request_id in list(submission.open):
            self._give_up(request_id)
        self._deliver(submission, error)

    def _deliver(self, submission: _Submission, delivery: Delivery) -> None:
        """Calls a submission's `deliver`. If that raises, its requests are cancelled; others are not."""
        try:
            submission.deliver(delivery)
        except Exception:
            for request_id in list(submission.open):
                self._give_up(request_id)

    def _give_up(self, request_id: str) -> None:
        submission = self._routes.pop(request_id, None)
        if submission is not None:
            del submission.open[request_id]
            self._engine.cancel(request_id)

    def _hand_out(self, updates: Sequence[Update]) -> None:
        """Delivers the updates, one delivery for each submission: waking a caller is what costs time."""
        batches: dict[_Submission, list[Update]] = {}
        for update in updates:
            submission = self._routes.get(update.id)
            if submission is None:  # cancelled
                continue
            if update.completion is not None:
                submission.open[update.id] -= 1
                if not submission.open[update.id]:
                    del submission.open[update.id], self._routes[update.id]
            elif submission.whole:
                continue
            batches.setdefault(submission, []).append(update)
        for submission, batch in batches.items():
            failed = next((update for update in batch if update.completion and update.completion.error), None)
            if failed is not None and failed.completion is not None:
                error = RequestFailed(failed.completion.error)
                self._abandon(submission, _refusal(error, submission.named(failed.id)))
            else:
                self._deliver(submission, batch)


def _refusal(error: BaseException, named: NamedRequest) -> Exception:
    """The exception that a caller gets for an error with one of its requests.

    Raises the error itself if it ends the process.
    """
    if ends_process(error):
        raise error
    name = f"{named.name}: " if named.name else ""
    refusal: Exception
    if isinstance(error, RequestError | RequestFailed):
        refusal = type(error)(f"{name}{error}")
        refusal.__cause__ = error.__cause__
    else:
        refusal = RequestFailed(f"{name}the engine cannot take the request: {one_line(error)}")
        refusal.__cause__ = error
    return refusal


class Mailbox:
    """Receives the deliveries of a caller that waits in a thread."""

    def __init__(self) -> None:
        self._deliveries: queue.SimpleQueue[Delivery] = queue.SimpleQueue()
        self.deliver = self._deliveries.put

    def get(self) -> list[Update]:
        """Waits for updates. Raises what was delivered instead of them."""
        delivery = self._deliveries.get()
        if isinstance(delivery, Exception):
            raise delivery
        return delivery


class AsyncMailbox:
    """Receives the deliveries of a caller in an event loop. Must be made while that loop runs."""

    def __init__(self) -> None:
        self._deliveries: asyncio.Queue[Delivery] = asyncio.Queue()
        self._loop = asyncio.get_running_loop()

    def deliver(self, delivery: Delivery) -> None:
        """Takes a delivery. Called in the engine's thread."""
        with contextlib.suppress(RuntimeError):  # the loop is closed, so nobody waits
            self._loop.call_soon_threadsafe(self._deliveries.put_nowait, delivery)

    async def get(self) -> list[Update]:
        """Waits for updates. Raises what was delivered instead of them."""
        delivery = await self._deliveries.get()
        if isinstance(delivery, Exception):
            raise delivery
        return delivery
