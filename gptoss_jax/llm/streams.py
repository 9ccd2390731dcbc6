"""Streams of events: iterators that cancel the request when they end early, for whatever reason."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING

from gptoss_jax.answers import Finished, Sample, SampleReader, StreamEvent
from gptoss_jax.engine.engine_thread import AsyncMailbox, EngineThread, Mailbox
from gptoss_jax.llm.collector import RowRequest
from gptoss_jax.llm.results import Generation

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gptoss_jax.engine.request import Update
    from harmony import HarmonyEncoding


class _Events:
    """The events of one request. There are none if `thread` is None: in processes that are not the leader."""

    def __init__(
        self, thread: EngineThread | None, request: RowRequest, encoding: HarmonyEncoding, owner: object
    ) -> None:
        self._thread = thread
        self._owner = owner  # a reference: the LLM closes the thread when it is garbage-collected
        self._row = request
        self._request = request.request
        samples = range(self._request.sampling.n if thread is not None else 0)
        stop = self._request.sampling.stop
        self._readers = [SampleReader(encoding, request.id, sample, stop) for sample in samples]
        self._finished: dict[int, Sample] = {}
        self._waiting: deque[StreamEvent] = deque()
        self._open = True

    @property
    def id(self) -> str:
        """The prompt's id, if it has one; else the request's."""
        return self._row.id

    @property
    def generation(self) -> Generation:
        """The samples that are finished so far; all of them once the stream has ended."""
        samples = [self._finished[index] for index in sorted(self._finished)]
        return Generation(self._row.id, self._request.prompt, samples)

    def _read(self, updates: Sequence[Update]) -> None:
        for update in updates:
            for event in self._readers[update.sample].read(update):
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
    """An iterator over the events of a request. Closing it, or leaving its ``with`` block, cancels it."""

    def __init__(
        self,
        thread: EngineThread | None,
        request: RowRequest,
        encoding: HarmonyEncoding,
        owner: object = None,
    ) -> None:
        super().__init__(thread, request, encoding, owner)
        self._mailbox = Mailbox()
        if thread is not None:
            thread.submit([request], self._mailbox.deliver, whole=False)

    def __next__(self) -> StreamEvent:
        while not self._waiting:
            if self._is_over():
                raise StopIteration
            try:
                self._read(self._mailbox.get())
            except BaseException:
                self._end()
                raise
        return self._waiting.popleft()

    def close(self) -> None:
        """Ends the stream. Cancels the request if it is not finished."""
        self._end()

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def __del__(self) -> None:
        if hasattr(self, "_mailbox"):
            self._end()


class AsyncStream(_Events, AsyncIterator[StreamEvent]):
    """Like `Stream`, for the event loop it is made in. Cancelling the waiting task cancels the request."""

    def __init__(
        self,
        thread: EngineThread | None,
        request: RowRequest,
        encoding: HarmonyEncoding,
        owner: object = None,
    ) -> None:
        super().__init__(thread, request, encoding, owner)
        self._mailbox = AsyncMailbox()
        if thread is not None:
            thread.submit([request], self._mailbox.deliver, whole=False)

    async def __anext__(self) -> StreamEvent:
        while not self._waiting:
            if self._is_over():
                raise StopAsyncIteration
            try:
                self._read(await self._mailbox.get())
            except BaseException:
                self._end()
                raise
        return self._waiting.popleft()

    async def aclose(self) -> None:
        """Ends the stream. Cancels the request if it is not finished."""
        self._end()

    async def __aenter__(self) -> AsyncStream:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._end()

    def __del__(self) -> None:
        if hasattr(self, "_mailbox"):
            self._end()
