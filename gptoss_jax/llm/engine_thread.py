"""The one thread that owns the engine. Callers hand it requests; it hands them updates."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import dataclasses
import queue
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from gptoss_jax.engine.request import Request, Update
    from gptoss_jax.llm.collector import NamedRequest

EXIT_SECONDS = 5.0
"""How long the interpreter's exit waits for a step in progress; as a daemon, the thread cannot hold it up."""


class EngineStopped(RuntimeError):
    """The engine failed or was closed: it answers nothing any more. The cause, if any, is `__cause__`."""


class EngineLike(Protocol):
    """What the thread needs of `gptoss_jax.engine.Engine`."""

    max_length: int

    @property
    def slots(self) -> int:
        """Sequences that decode side by side."""

    @property
    def unfinished(self) -> int:
        """Sequences not finished."""

    @property
    def speaks(self) -> bool:
        """Whether this process hands in the requests: of several, the first does."""

    def check(self, request: Request) -> None:
        """Raises RequestError if the request can never run."""

    def add(self, request: Request) -> None:
        """Queues a request."""

    def cancel(self, id: str) -> None:
        """Ends a request; one that is not there is left alone."""

    def step(self) -> list[Update]:
        """One turn."""

    def follow(self) -> None:
        """Takes part in the steps of the process that speaks, until that closes."""

    def close(self) -> None:
        """Frees what the engine holds."""


BACKLOG = 2
"""Sequences that the engine is given for each of its slots: as many wait there as run."""

Delivery = list["Update"] | Exception
"""What a caller is handed: updates of its requests, or what ended them; after an exception nothing comes."""


@dataclasses.dataclass(eq=False)
class _Submission:
    """Requests of one caller. `pending`: those that the engine was not given yet; `open`: all that are not
    finished, with the number of samples to come."""

    requests: Sequence[NamedRequest]
    deliver: Callable[[Delivery], None]
    whole: bool
    pending: deque[NamedRequest] = dataclasses.field(default_factory=deque)
    open: dict[str, int] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class _Cancellation:
    ids: Sequence[str]


class _Close:
    pass


class EngineThread:
    """Runs `engine.step()` while there is something to do, in a thread of its own.

    All methods may be called from any thread.
    """

    def __init__(self, engine: EngineLike, name: str) -> None:
        self._engine = engine
        self._commands: queue.SimpleQueue[_Submission | _Cancellation | _Close] = queue.SimpleQueue()
        self._lock = threading.Lock()  # held while something is submitted or the thread ends
        self._ended: str | None = None  # why nothing more is taken
        self._cause: BaseException | None = None
        # The thread's own: whose each request is, and who has requests that the engine was not given yet.
        self._routes: dict[str, _Submission] = {}
        self._hungry: deque[_Submission] = deque()
        self._thread = threading.Thread(target=self._run, name=f"gptoss-jax {name}", daemon=True)
        atexit.register(self._exit)
        self._thread.start()

    def submit(
        self, requests: Sequence[NamedRequest], deliver: Callable[[Delivery], None], *, whole: bool
    ) -> None:
        """Hands over requests, all of them or, if the engine refuses one, none.

        `deliver` is called in the engine's thread and must not block; with `whole` only for updates that
        carry a completion.

        Raises:
            EngineStopped: the engine failed or was closed.
        """
        with self._lock:
            if self._ended is not None:
                raise self._stopped()
            self._commands.put(_Submission(requests, deliver, whole))

    def cancel(self, ids: Sequence[str]) -> None:
        """Ends requests; nothing more is delivered for them. Ids of finished ones are ignored."""
        if ids:
            self._commands.put(_Cancellation(ids))

    def close(self, timeout: float | None = None) -> None:
        """Ends the thread after the step in progress, and the engine with it; waiting callers are told."""
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
        except BaseException as error:  # whatever it is, those who wait must hear of it
            ended, self._cause = f"the engine failed: {_one_line(error)}", error
        try:
            self._engine.close()
        except Exception as error:
            if self._cause is None:
                ended, self._cause = f"the engine failed to close: {_one_line(error)}", error
        with self._lock:
            self._ended = ended
        waiting = set(self._routes.values())
        while not self._commands.empty():
            command = self._commands.get()
            if isinstance(command, _Submission):
                waiting.add(command)
        self._routes.clear()
        self._hungry.clear()
        for submission in waiting:
            submission.deliver(self._stopped())

    def _take_commands(self) -> bool:
        """Does what callers asked for, waiting for it if there is nothing else to do; False to end."""
        wait = not self._engine.unfinished and not self._hungry
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
            else:
                for request_id in command.ids:
                    self._give_up(request_id)

    def _begin(self, submission: _Submission) -> None:
        """Takes a submission if the engine can run all of it."""
        for named in submission.requests:
            try:
                self._engine.check(named.request)
            except ValueError as error:  # RequestError: the request's fault, and no one else's business
                submission.deliver(_named(error, named))
                return
        longest_first = sorted(submission.requests, key=self._length, reverse=True)
        submission.pending.extend(longest_first)
        for named in submission.requests:
            submission.open[named.request.id] = named.request.sampling.n
            self._routes[named.request.id] = submission
        self._hungry.append(submission)

    def _length(self, named: NamedRequest) -> int:
        prompt, most = len(named.request.prompt), named.request.sampling.max_tokens
        return self._engine.max_length if most is None else min(prompt + most, self._engine.max_length)

    def _feed(self) -> None:
        """Gives the engine what it can soon run, a request of each caller in turn: so that nobody waits until
        the thousands of another are done, and the engine need not know them all."""
        while self._hungry and self._engine.unfinished < BACKLOG * self._engine.slots:
            submission = self._hungry.popleft()
            if not submission.pending:
                continue
            named = submission.pending.popleft()
            self._hungry.append(submission)
            if named.request.id not in submission.open:  # cancelled
                continue
            try:
                self._engine.add(named.request)
            except ValueError as error:
                for request_id in list(submission.open):
                    self._give_up(request_id)
                submission.deliver(_named(error, named))

    def _give_up(self, request_id: str) -> None:
        submission = self._routes.pop(request_id, None)
        if submission is not None:
            del submission.open[request_id]
            self._engine.cancel(request_id)

    def _hand_out(self, updates: Sequence[Update]) -> None:
        """One delivery for each submission that has news: waking a caller costs more than the news."""
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
            submission.deliver(batch)


def _one_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


def _named(error: ValueError, named: NamedRequest) -> ValueError:
    if named.name:
        error.args = (f"{named.name}: {error}",)
    return error


class Mailbox:
    """Deliveries for a caller that waits in a thread."""

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
    """Deliveries for a caller that waits in the running event loop, in which this must be made."""

    def __init__(self) -> None:
        self._deliveries: asyncio.Queue[Delivery] = asyncio.Queue()
        self._loop = asyncio.get_running_loop()

    def deliver(self, delivery: Delivery) -> None:
        """Called in another thread."""
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
            self._loop.call_soon_threadsafe(self._deliveries.put_nowait, delivery)

    async def get(self) -> list[Update]:
        """Waits for updates. Raises what was delivered instead of them."""
        delivery = await self._deliveries.get()
        if isinstance(delivery, Exception):
            raise delivery
        return delivery
