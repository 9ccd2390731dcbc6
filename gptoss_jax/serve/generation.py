"""The engine as the handlers of requests see it: they start a generation, and read its events."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from typing import TYPE_CHECKING

from gptoss_jax.answers import Finished, Sample, SampleReader, StreamEvent
from gptoss_jax.engine.engine_thread import AsyncMailbox, EngineStopped, EngineThread, NamedRequest
from gptoss_jax.engine.errors import NotStarted, RequestError, RequestFailed
from gptoss_jax.openai_api import ApiError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from gptoss_jax.engine.engine_thread import EngineLike
    from gptoss_jax.engine.request import Request, Update
    from gptoss_jax.serve.metrics import Metrics
    from harmony import HarmonyEncoding

RETRY_SECONDS = 5
"""What a client is told to wait when the server is full."""


class EngineClient:
    """Runs requests on an engine, which belongs to it and is closed with it.

    Its methods are for one event loop.
    """

    def __init__(
        self,
        engine: EngineLike,
        encoding: HarmonyEncoding,
        metrics: Metrics,
        *,
        name: str,
        max_samples: int,
        max_seconds: float | None = None,
    ) -> None:
        """`max_samples` and `max_seconds` are those of `ServerSettings`."""
        self.engine = engine
        self.encoding = encoding
        self.on_failure: Callable[[str], None] | None = None
        """Called once, with the reason, when a request finds that the engine has failed."""
        self._metrics = metrics
        self._max_samples = max_samples
        self._max_seconds = max_seconds
        self._thread = EngineThread(engine, name)
        self._samples = 0
        self._stopped: str | None = None

    @property
    def thread(self) -> EngineThread:
        """The thread of the engine, for what runs requests beside those of this object."""
        return self._thread

    @property
    def unfinished(self) -> int:
        """Samples that run or wait."""
        return self._samples

    @property
    def stopped(self) -> str | None:
        """Why the engine answers nothing any more; None as long as nobody has found that it does not."""
        return self._stopped

    def start(self, request: Request) -> Generation:
        """Starts a request. The generation must be closed.

        Raises:
            ApiError: the server is full, or the engine has stopped.
        """
        samples = request.sampling.n
        if self._samples and self._samples + samples > self._max_samples:
            self._metrics.refused.inc()
            raise ApiError(
                "server_busy",
                f"the server has {self._samples} samples at work or waiting, of at most {self._max_samples} "
                f"(--max-samples): try again in {RETRY_SECONDS} seconds",
                status=429,
            )
        generation = Generation(self, self._thread, request, self._metrics, self._max_seconds)
        self._samples += samples
        return generation

    def release(self, samples: int) -> None:
        """Notes that samples have ended."""
        self._samples -= samples

    def note_stopped(self, error: EngineStopped) -> ApiError:
        """What a request is told when the engine has stopped."""
        if self._stopped is None:
            self._stopped = str(error)
            if self.on_failure is not None and error.__cause__ is not None:
                self.on_failure(self._stopped)
        return ApiError("engine_stopped", str(error), status=503)

    def close(self) -> None:
        """Ends the engine after the step in progress; requests that are not finished fail."""
        self._thread.close()


class Generation:
    """The events of a request's samples, as they come; closing it ends the request.

    When its time is up, the samples that are not finished end as they are, with the finish reason "length".

    Iterating gives lists of events: those of one delivery of the engine together.
    """

    def __init__(
        self,
        client: EngineClient,
        thread: EngineThread,
        request: Request,
        metrics: Metrics,
        max_seconds: float | None,
    ) -> None:
        self._client, self._thread, self._metrics = client, thread, metrics
        self._request = request
        sampling = request.sampling
        self._readers = [
            SampleReader(client.encoding, request.id, sample, sampling.stop, call_deltas=True)
            for sample in range(sampling.n)
        ]
        self._finished: dict[int, Sample] = {}
        self._open = True
        self._begin = time.perf_counter()
        self._is_first = True
        self._mailbox = AsyncMailbox()
        try:
            thread.submit([NamedRequest(request)], self._mailbox.deliver, whole=False)
        except EngineStopped as error:
            raise client.note_stopped(error) from None
        self._expired = False
        self._timer: asyncio.TimerHandle | None = None
        if max_seconds is not None:
            self._timer = asyncio.get_running_loop().call_later(max_seconds, self._expire)

    @property
    def samples(self) -> list[Sample]:
        """The samples that have ended, in their order."""
        return [self._finished[index] for index in sorted(self._finished)]

    def __aiter__(self) -> AsyncIterator[list[StreamEvent]]:
        return self

    async def __anext__(self) -> list[StreamEvent]:
        """Raises ApiError where the engine fails."""
        if not self._open or len(self._finished) == len(self._readers):
            raise StopAsyncIteration
        try:
            updates = await self._mailbox.get()
        except EngineStopped as error:
            raise self._client.note_stopped(error) from None
        except NotStarted:
            raise _waited_too_long() from None
        except RequestError as error:
            raise ApiError("invalid_request", str(error)) from None
        except RequestFailed as error:
            raise ApiError("engine_failed", str(error), status=500) from None
        if self._is_first:
            self._is_first = False
            self._metrics.first_token_seconds.observe(time.perf_counter() - self._begin)
        events = [
            event for update in updates for event in self._readers[update.sample].read(self._as_told(update))
        ]
        for event in events:
            if isinstance(event, Finished):
                self._finished[event.sample] = event.result
        if len(self._finished) == len(self._readers):
            self._metrics.count_samples(self.samples, time.perf_counter() - self._begin)
        return events

    def _expire(self) -> None:
        self._expired = True
        self._thread.end(self._request.id)

    def _as_told(self, update: Update) -> Update:
        """The update, that of a sample whose time was up as one that a limit has cut."""
        completion = update.completion
        if not self._expired or completion is None or completion.finish_reason != "cancelled":
            return update
        if not completion.tokens:
            raise _waited_too_long()
        return dataclasses.replace(update, completion=dataclasses.replace(completion, finish_reason="length"))

    def close(self) -> None:
        """Ends the request, if it is not finished, and frees its place."""
        if self._open:
            self._open = False
            if self._timer is not None:
                self._timer.cancel()
            self._client.release(len(self._readers))
            if len(self._finished) < len(self._readers):
                self._metrics.cancelled.inc()
                self._thread.cancel([self._request.id])


def _waited_too_long() -> ApiError:
    return ApiError(
        "server_busy",
        "the request waited until its time was up (--max-seconds), and nothing was generated: try again in "
        f"{RETRY_SECONDS} seconds",
        status=429,
    )
