"""Streams of events: iterators whose end, whatever the reason, ends the request."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING

from gptoss_jax.llm.collector import NamedRequest
from gptoss_jax.llm.engine_thread import AsyncMailbox, EngineThread, Mailbox
from gptoss_jax.llm.events import SampleEvents
from gptoss_jax.llm.results import Finished, Generation, Sample, StreamEvent

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

    from gptoss_jax.engine import Request
    from gptoss_jax.engine.request import Update
    from harmony import HarmonyEncoding


class _Events:
    """The events of one request, and how to give it up. Without a thread there are none."""

    def __init__(
        self, thread: EngineThread | None, request: Request, encoding: HarmonyEncoding, owner: object
    ) -> None:
        self._thread = thread
        self._owner = owner  # which closes the thread when nobody refers to it
        self._request = request
        samples = range(request.sampling.n if thread is not None else 0)
        self._readers = [SampleEvents(request, sample, encoding) for sample in samples]
        self._finished: dict[int, Sample] = {}
        self._waiting: deque[StreamEvent] = deque()
        self._open = True

    @property
    def id(self) -> str:
        """The request's id."""
        return self._request.id

    @property
    def generation(self) -> Generation:
        """The samples that are finished; all of them once the stream has ended."""
        samples = [self._finished[index] for index in sorted(self._finished)]
        return Generation(self._request.id, self._request.prompt, samples)

    def _take(self, updates: Sequence[Update]) -> None:
        for update in updates:
            for event in self._readers[update.sample].take(update):
                if isinstance(event, Finished):
                    self._finished[event.sample] = event.result
                self._waiting.append(event)

    def _is_over(self) -> bool:
        return not self._open or len(self._finished) == len(self._readers)

    def _end(self) -> None:
        if self._open:
            self._open = False
            self._waiting.clear()
            if self._thread is not None and len(self._finished) < len(self._readers):
                self._thread.cancel([self._request.id])


class Stream(_Events, Iterator[StreamEvent]):
    """The events of a request, as they come. Closing it, or leaving its ``with`` block, ends the request."""

    def __init__(
        self, thread: EngineThread | None, request: Request, encoding: HarmonyEncoding, owner: object = None
    ) -> None:
        super().__init__(thread, request, encoding, owner)
        self._mailbox = Mailbox()
        if thread is not None:
            thread.submit([NamedRequest(request)], self._mailbox.deliver, whole=False)

    def __next__(self) -> StreamEvent:
        while not self._waiting:
            if self._is_over():
                raise StopIteration
            try:
                self._take(self._mailbox.get())
            except BaseException:
                self._end()
                raise
        return self._waiting.popleft()

    def close(self) -> None:
        """Ends the request, if it is not finished; the stream ends with it."""
        self._end()

    def __enter__(self) -> Stream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def __del__(self) -> None:
        if hasattr(self, "_mailbox"):
            self._end()


class AsyncStream(_Events, AsyncIterator[StreamEvent]):
    """As `Stream`, for the event loop it was made in. Cancelling the task that waits ends the request."""

    def __init__(
        self, thread: EngineThread | None, request: Request, encoding: HarmonyEncoding, owner: object = None
    ) -> None:
        super().__init__(thread, request, encoding, owner)
        self._mailbox = AsyncMailbox()
        if thread is not None:
            thread.submit([NamedRequest(request)], self._mailbox.deliver, whole=False)

    async def __anext__(self) -> StreamEvent:
        while not self._waiting:
            if self._is_over():
                raise StopAsyncIteration
            try:
                self._take(await self._mailbox.get())
            except BaseException:
                self._end()
                raise
        return self._waiting.popleft()

    async def aclose(self) -> None:
        """Ends the request, if it is not finished; the stream ends with it."""
        self._end()

    async def __aenter__(self) -> AsyncStream:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def __del__(self) -> None:
        if hasattr(self, "_mailbox"):
            self._end()
