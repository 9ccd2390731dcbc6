"""The one thread that owns the engine. Callers hand it requests; it hands them updates."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import dataclasses
import queue
import threading
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
        """Ends a request."""

    def step(self) -> list[Update]:
        """One turn."""

    def follow(self) -> None:
        """Takes part in the steps of the process that speaks, until that closes."""

    def close(self) -> None:
        """Frees what the engine holds."""


Delivery = list["Update"] | Exception
"""What a caller is handed: updates of its requests, or what ended them; after an exception nothing comes."""


@dataclasses.dataclass(frozen=True)
class _Submission:
    requests: Sequence[NamedRequest]
    deliver: Callable[[Delivery], None]
    whole: bool


@dataclasses.dataclass(frozen=True)
class _Cancellation:
    ids: Sequence[str]


class _Close:
    pass


@dataclasses.dataclass
class _Route:
    submission: _Submission
    unfinished: int


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
        self._routes: dict[str, _Route] = {}  # by request id; the thread's own
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
                self._hand_out(self._engine.step())
        except BaseException as error:  # whatever it is, those who wait must hear of it
            ended = f"the engine failed: {type(error).__name__}: {' '.join(str(error).split())}"
            self._cause = error
        try:
            self._engine.close()
        except Exception as error:
            if self._cause is None:
                ended = f"the engine failed to close: {type(error).__name__}: {' '.join(str(error).split())}"
                self._cause = error
        with self._lock:
            self._ended = ended
        waiting = {id(route.submission): route.submission for route in self._routes.values()}
        while not self._commands.empty():
            command = self._commands.get()
            if isinstance(command, _Submission):
                waiting[id(command)] = command
        self._routes.clear()
        for submission in waiting.values():
            submission.deliver(self._stopped())

    def _take_commands(self) -> bool:
        """Does what callers asked for, waiting for it if there is nothing else to do; False to end."""
        wait = not self._engine.unfinished
        while True:
            try:
                command = self._commands.get(block=wait)
            except queue.Empty:
                return True
            wait = False
            if isinstance(command, _Close):
                return False
            if isinstance(command, _Submission):
                self._add(command)
            else:
                for request_id in command.ids:
                    if self._routes.pop(request_id, None) is not None:
                        self._engine.cancel(request_id)

    def _add(self, submission: _Submission) -> None:
        added: list[str] = []
        name = ""
        try:
            for named in submission.requests:
                name = named.name
                self._engine.check(named.request)
            for named in submission.requests:
                name = named.name
                self._engine.add(named.request)
                added.append(named.request.id)
        except ValueError as error:  # RequestError: the request's fault, and no one else's business
            for request_id in added:
                self._engine.cancel(request_id)
            if name:
                error.args = (f"{name}: {error}",)
            submission.deliver(error)
            return
        for named in submission.requests:
            self._routes[named.request.id] = _Route(submission, named.request.sampling.n)

    def _hand_out(self, updates: Sequence[Update]) -> None:
        """One delivery for each submission that has news: waking a caller costs more than the news."""
        batches: dict[int, tuple[_Submission, list[Update]]] = {}
        for update in updates:
            route = self._routes.get(update.id)
            if route is None:  # cancelled
                continue
            if update.completion is not None:
                route.unfinished -= 1
                if not route.unfinished:
                    del self._routes[update.id]
            elif route.submission.whole:
                continue
            batches.setdefault(id(route.submission), (route.submission, []))[1].append(update)
        for submission, batch in batches.values():
            submission.deliver(batch)


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
