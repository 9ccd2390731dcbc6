"""The engine as the handlers of requests see it: they start a generation, and read its events."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import time
from typing import TYPE_CHECKING

from gptoss_jax.answers import BuiltInCall, Finished, Sample, SampleReader, StreamEvent
from gptoss_jax.engine.engine_thread import (
    AsyncMailbox,
    Delivery,
    EngineStopped,
    EngineThread,
    NamedRequest,
)
from gptoss_jax.engine.errors import NotStarted, RequestError, RequestFailed
from gptoss_jax.openai_api import ApiError
from gptoss_jax.serve.tool_loop import DEFAULT_LIMITS, ToolLimits, ToolLoop

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from gptoss_jax.engine.engine_thread import EngineLike
    from gptoss_jax.engine.request import Request, Update
    from gptoss_jax.openai_api import Rounds
    from gptoss_jax.serve.metrics import Metrics
    from gptoss_jax.tools import Tool
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
        tools: Sequence[Tool] = (),
        tool_limits: ToolLimits = DEFAULT_LIMITS,
    ) -> None:
        """`tools`: those that requests may have run beside the model. All else is as in `ServerSettings`."""
        self.engine = engine
        self.encoding = encoding
        self.on_failure: Callable[[str], None] | None = None
        """Called once, with the reason, when a request finds that the engine has failed."""
        self._metrics = metrics
        self._max_samples = max_samples
        self._max_seconds = max_seconds
        self.tools, self.tool_limits = tools, tool_limits
        self._thread = EngineThread(engine, name)
        self._generations: set[Generation] = set()
        self._closing: set[asyncio.Task[None]] = set()
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

    def start(
        self, request: Request, rounds: Rounds | None = None, *, most_calls: int | None = None
    ) -> Generation:
        """Starts a request. The generation must be closed.

        `rounds`: what the rounds behind calls of built-in tools need; None if none may be called.
        `most_calls`: how many of them may be run; None for as many as the client's limits allow.

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
        limits = self.tool_limits.at_most(most_calls)
        generation = Generation(self, self._thread, request, self._metrics, self._max_seconds, rounds, limits)
        self._samples += samples
        self._generations.add(generation)
        return generation

    def release(self, generation: Generation, samples: int, loops: Sequence[ToolLoop]) -> None:
        """Notes that a generation has ended, and ends its tools."""
        self._samples -= samples
        self._generations.discard(generation)
        if loops:
            task = asyncio.ensure_future(generation.close_tools())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    def note_stopped(self, error: EngineStopped) -> ApiError:
        """What a request is told when the engine has stopped."""
        if self._stopped is None:
            self._stopped = str(error)
            if self.on_failure is not None and error.__cause__ is not None:
                self.on_failure(self._stopped)
        return ApiError("engine_stopped", str(error), status=503)

    def close(self) -> None:
        """Ends the engine after the step in progress; requests that are not finished fail.

        May be called in any thread.
        """
        self._thread.close()
        for generation in list(self._generations):
            generation.wake()

    async def close_tools(self) -> None:
        """Returns when the tools of all generations that were closed have ended."""
        while self._closing:
            await asyncio.wait(self._closing)


class Generation:
    """The events of a request's samples, as they come; closing it ends the request.

    When its time is up, the samples that are not finished end as they are, with the finish reason "length".

    Iterating gives lists of events: those of one delivery of the engine together. While a built-in tool runs
    for a sample, its place in the engine is free, and other samples go on.
    """

    def __init__(
        self,
        client: EngineClient,
        thread: EngineThread,
        request: Request,
        metrics: Metrics,
        max_seconds: float | None,
        rounds: Rounds | None,
        limits: ToolLimits,
    ) -> None:
        self._client, self._thread, self._metrics = client, thread, metrics
        sampling = request.sampling
        built_in = () if rounds is None else rounds.tools
        samples = range(sampling.n)
        self._readers = [
            SampleReader(client.encoding, request.id, sample, sampling.stop, built_in, call_deltas=True)
            for sample in samples
        ]
        self._loops: list[ToolLoop] = []
        if rounds is not None:
            self._loops = [
                ToolLoop(request, sample, rounds, client.tools, limits, client.encoding) for sample in samples
            ]
        self._requests: dict[str, int | None] = {request.id: None}  # the later ones belong to one sample each
        self._runs: set[asyncio.Task[None]] = set()
        self._from_tools: list[StreamEvent] = []
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
        events, self._from_tools = self._from_tools, []
        for update in updates:
            sample = self._requests[update.id]
            events += self._readers[update.sample if sample is None else sample].read(self._as_told(update))
        told = [event for event in events if not (isinstance(event, Finished) and self._goes_on(event))]
        for event in told:
            if isinstance(event, Finished):
                self._finished[event.sample] = event.result
        if len(self._finished) == len(self._readers):
            self._metrics.count_samples(self.samples, time.perf_counter() - self._begin)
        return told

    def _goes_on(self, ended: Finished) -> bool:
        """Whether a sample whose round has ended goes on with the call of a tool, which is begun then."""
        reader = self._readers[ended.sample]
        if self._expired or reader.waiting is None or not self._loops[ended.sample].may_run(reader.usage):
            return False
        run = asyncio.ensure_future(self._run_tool(ended.sample, reader.waiting))
        self._runs.add(run)
        run.add_done_callback(self._runs.discard)
        return True

    async def _run_tool(self, sample: int, call: BuiltInCall) -> None:
        """Runs a call, and begins the next round."""
        reader, loop = self._readers[sample], self._loops[sample]
        try:
            result, failed = await loop.run(call)
            self._metrics.tool_calls.labels(call.tool, "failed" if failed else "answered").inc()
            self._from_tools += reader.add_result(result, failed=failed)
            ended = reader.end()
            request = loop.next_request(ended.result, self._client.engine.max_length)
            if request is None:
                self._from_tools.append(ended)
            else:
                self._requests[request.id] = sample
                self._thread.submit([NamedRequest(request)], self._round_deliver(sample), whole=False)
        except asyncio.CancelledError:
            if not self._expired or not self._open:
                raise
            self._end(sample)
        except Exception as error:
            self._mailbox.deliver(error)
        else:
            self._mailbox.deliver([])  # wakes who waits for events

    def _round_deliver(self, sample: int) -> Callable[[Delivery], None]:
        """What takes the deliveries of a later round, in the engine's thread."""
        loop = asyncio.get_running_loop()

        def deliver(delivery: Delivery) -> None:
            if isinstance(delivery, NotStarted):
                with contextlib.suppress(RuntimeError):  # the loop is closed, so nobody waits
                    loop.call_soon_threadsafe(self._end, sample)
            else:
                self._mailbox.deliver(delivery)

        return deliver

    def _end(self, sample: int) -> None:
        """Ends a sample with the rounds that it has, as the time is up."""
        self._from_tools.append(self._readers[sample].end())
        self._mailbox.deliver([])

    def wake(self) -> None:
        """Tells a generation whose tool runs that the engine has stopped."""
        if self._runs:
            self._mailbox.deliver(EngineStopped("the engine was closed"))

    def _expire(self) -> None:
        self._expired = True
        for id in self._requests:
            self._thread.end(id)
        for run in self._runs:
            run.cancel()

    def _as_told(self, update: Update) -> Update:
        """The update, that of a sample whose time was up as one that a limit has cut."""
        completion = update.completion
        if not self._expired or completion is None or completion.finish_reason != "cancelled":
            return update
        if not completion.tokens and self._requests[update.id] is None:
            raise _waited_too_long()
        return dataclasses.replace(update, completion=dataclasses.replace(completion, finish_reason="length"))

    def close(self) -> None:
        """Ends the request, if it is not finished, and its tools, and frees its place."""
        if self._open:
            self._open = False
            if self._timer is not None:
                self._timer.cancel()
            for run in self._runs:
                run.cancel()
            if len(self._finished) < len(self._readers):
                self._metrics.cancelled.inc()
                self._thread.cancel(list(self._requests))
            self._client.release(self, len(self._readers), self._loops)

    async def close_tools(self) -> None:
        """Ends the sessions of the tools, after the calls that were at work."""
        if self._runs:
            await asyncio.wait(self._runs)
        for loop in self._loops:
            await loop.close()


def _waited_too_long() -> ApiError:
    return ApiError(
        "server_busy",
        "the request waited until its time was up (--max-seconds), and nothing was generated: try again in "
        f"{RETRY_SECONDS} seconds",
        status=429,
    )
