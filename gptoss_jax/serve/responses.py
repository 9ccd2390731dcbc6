"""The Responses API: answering, keeping, asking for what was kept."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import sqlite3
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from gptoss_jax.answers import Finished, Sample
from gptoss_jax.openai_api import ApiError, ResponseMaker, ResponseStream
from gptoss_jax.openai_api.input_items import Items, listed, page_of
from gptoss_jax.openai_api.response_replay import replayed
from gptoss_jax.serve.event_log import EventLog
from gptoss_jax.serve.http import event, told
from gptoss_jax.serve.store import Stored
from gptoss_jax.serve.summaries import with_summaries

if TYPE_CHECKING:
    from gptoss_jax.answers import StreamEvent
    from gptoss_jax.openai_api.response_stream import SummaryReady
    from gptoss_jax.serve.generation import Generation
    from gptoss_jax.serve.store import ResponseStore
    from gptoss_jax.serve.summaries import Summarizer

_logger = logging.getLogger("gptoss_jax.serve")

NO_STORE = "no responses are stored here: start the server with --store FILE"

_ENDS = ("response.completed", "response.incomplete")


def streamed_after(query: Mapping[str, str]) -> int | None:
    """Behind which sequence number a stream is to begin, -1 for all of it; None where no stream is asked for.

    Raises:
        ApiError: a value is none that is allowed.
    """
    stream, after = query.get("stream", "false"), query.get("starting_after")
    if stream not in ("true", "false"):
        raise ApiError("invalid_request", f"stream is {stream[:20]!r}: it must be true or false", "stream")
    if after is not None and not (after.isascii() and after.isdigit() and len(after) < 10):
        message = f"starting_after is {after[:20]!r}: it must be the sequence number of an event"
        raise ApiError("invalid_request", message, "starting_after")
    if stream == "false":
        return None
    return -1 if after is None else int(after)


async def _followed(log: EventLog, number: int) -> AsyncIterator[bytes]:
    async for said in log.follow(number):
        yield event(said, said["type"])


async def _sent(events: Iterable[dict[str, Any]]) -> AsyncIterator[bytes]:
    for said in events:
        yield event(said, said["type"])


class Keeper:
    """Keeps one response. Where nothing is to be kept, it does nothing."""

    def __init__(self, store: ResponseStore | None, maker: ResponseMaker, items: Items) -> None:
        """`store`: None if the response is not to be kept. `items`: those of its request."""
        self._store, self._maker, self._items = store, maker, items

    async def keep(
        self, response: dict[str, Any], sample: Sample | None = None, events: bytes | None = None
    ) -> None:
        """Keeps the response as it is now; `sample` is what it says, chain of thought included; `events` is
        the dump of its `EventLog`, if there is one.

        Raises:
            ApiError: the store fails.
        """
        if self._store is None:
            return
        maker = dataclasses.replace(self._maker.item_maker, with_reasoning=True, seal=None)
        output = [] if sample is None else maker.items(sample)
        stored = Stored(response, self._maker.previous_response_id, self._items, output, events)
        try:
            await asyncio.to_thread(self._store.put, stored)
        except sqlite3.Error as error:
            _logger.error("response %s could not be stored: %s", self._maker.id, error)
            raise ApiError("store_failed", "the response could not be stored", status=500) from None


async def response_events(
    stream: ResponseStream,
    generation: Generation,
    keeper: Keeper,
    summarize: Summarizer | None = None,
) -> AsyncIterator[bytes]:
    """The events of a response's stream, which ends with the response: completed, incomplete or failed.

    The response is kept before the event that says so.
    """
    yield b"".join(event(said, said["type"]) for said in stream.start())
    batch: list[bytes] = []  # the events of one delivery of the engine, which are sent together
    try:
        async for events in _events_of(generation, summarize):
            for one in events:
                for said in stream.add(one):
                    if said["type"] in _ENDS:
                        await keeper.keep(said["response"], generation.samples[0])
                    batch.append(event(said, said["type"]))
            if batch:
                yield b"".join(batch)
                batch.clear()
    except Exception as error:
        batch += [event(said, said["type"]) for said in stream.fail(told(error))]
        yield b"".join(batch)


def _events_of(
    generation: Generation, summarize: Summarizer | None
) -> AsyncIterator[list[StreamEvent | SummaryReady]] | AsyncIterator[list[StreamEvent]]:
    return generation.__aiter__() if summarize is None else with_summaries(generation, summarize)


class BackgroundResponses:
    """The responses that are generated while nobody need wait."""

    def __init__(self) -> None:
        self._work: dict[str, tuple[asyncio.Task[None], EventLog]] = {}

    async def start(
        self,
        maker: ResponseMaker,
        generation: Generation,
        keeper: Keeper,
        summarize: Summarizer | None = None,
    ) -> dict[str, Any]:
        """Starts one, and returns it as it is now."""
        response, stream, log = maker.unfinished("queued"), ResponseStream(maker), EventLog()
        log.add(stream.start())
        try:
            await keeper.keep(response)
        except BaseException:
            generation.close()
            raise
        task = asyncio.ensure_future(self._run(stream, log, maker, generation, keeper, summarize))
        self._work[maker.id] = task, log
        task.add_done_callback(lambda _: self._work.pop(maker.id, None))
        return response

    def log(self, id: str) -> EventLog | None:
        """The events of one that is at work; None if it is not."""
        found = self._work.get(id)
        return None if found is None else found[1]

    async def cancel(self, id: str) -> None:
        """Ends one, and returns when what it has become is kept; one that is not at work is left alone."""
        found = self._work.get(id)
        if found is not None:
            if not found[0].cancelling():  # a second time would interrupt its keeping
                found[0].cancel()
            await asyncio.wait([found[0]])

    async def wait(self) -> None:
        """Returns when what has become of all of them is kept."""
        if self._work:
            await asyncio.wait([task for task, _ in self._work.values()])

    async def _run(
        self,
        stream: ResponseStream,
        log: EventLog,
        maker: ResponseMaker,
        generation: Generation,
        keeper: Keeper,
        summarize: Summarizer | None,
    ) -> None:
        """Keeps the response before its last event is told."""
        ending: list[dict[str, Any]] = []
        sample: Sample | None = None
        try:
            is_first = True
            async for events in _events_of(generation, summarize):
                if is_first:
                    log.add(stream.begin())
                    if not generation.samples:
                        await keeper.keep(maker.unfinished("in_progress"))
                is_first = False
                for event in events:
                    if isinstance(event, Finished):
                        ending, sample = stream.add(event), event.result
                    else:
                        log.add(stream.add(event))
        except asyncio.CancelledError:
            ending, sample = stream.cancel(), None
        except Exception as error:
            ending, sample = stream.fail(told(error)), None
        finally:
            generation.close()
        try:
            with contextlib.suppress(ApiError):  # it is in the log
                await keeper.keep(ending[-1]["response"], sample, log.dump(ending))
        finally:
            log.add(ending)
            log.end()


class StoredResponses:
    """What can be asked of stored responses. Its methods raise ApiError (404) for one that is not there."""

    def __init__(self, store: ResponseStore | None, background: BackgroundResponses) -> None:
        self._store, self._background = store, background

    async def get(self, id: str) -> dict[str, Any]:
        """The response."""
        return (await self._stored(id)).response

    async def events(self, id: str, after: int) -> AsyncIterator[bytes]:
        """The events of the response, but for those up to the sequence number `after`: of one that is at work
        in the background those that are there and those that are to come, else those that it ended with."""
        log = self._background.log(id)
        if log is None:
            stored = await self._stored(id)
            if stored.events is None:
                return _sent(event for event in replayed(stored.response) if event["sequence_number"] > after)
            log = EventLog.load(stored.events)
        return _followed(log, after + 1)

    async def delete(self, id: str) -> dict[str, Any]:
        """Forgets the response; one at work is ended first."""
        stored = await self._stored(id)
        assert self._store is not None
        await self._background.cancel(id)
        await asyncio.to_thread(self._store.delete, stored.id)
        return {"id": stored.id, "object": "response", "deleted": True}

    async def input_items(self, id: str, query: Mapping[str, str]) -> dict[str, Any]:
        """The items of its own request, a page at a time."""
        stored = await self._stored(id)
        return page_of(listed(stored.input, id.removeprefix("resp_")), query)

    async def cancel(self, id: str) -> dict[str, Any]:
        """Ends the response, if it is at work in the background, and returns what it has become."""
        stored = await self._stored(id)
        if not stored.response.get("background"):
            message = f"response {id!r} was not made in the background: only such can be cancelled"
            raise ApiError("invalid_request", message)
        await self._background.cancel(id)
        return (await self._stored(id)).response

    async def _stored(self, id: str) -> Stored:
        if self._store is None:
            raise ApiError("not_found", NO_STORE, status=404)
        stored = await asyncio.to_thread(self._store.get, id)
        if stored is None:
            raise ApiError("not_found", f"there is no response {id!r}", status=404)
        return stored
