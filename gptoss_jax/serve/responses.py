"""The Responses API: answering, keeping, asking for what was kept."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import sqlite3
from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING, Any

from gptoss_jax.answers import Sample
from gptoss_jax.openai_api import ApiError, ResponseMaker, ResponseStream
from gptoss_jax.openai_api.input_items import Items, listed, page_of
from gptoss_jax.serve.http import event, told
from gptoss_jax.serve.store import Stored

if TYPE_CHECKING:
    from sse_starlette import ServerSentEvent

    from gptoss_jax.serve.generation import Generation
    from gptoss_jax.serve.store import ResponseStore

_logger = logging.getLogger("gptoss_jax.serve")

NO_STORE = "no responses are stored here: start the server with --store FILE"

_ENDS = ("response.completed", "response.incomplete")


class Keeper:
    """Keeps one response. Where nothing is to be kept, it does nothing."""

    def __init__(self, store: ResponseStore | None, maker: ResponseMaker, items: Items) -> None:
        """`store`: None if the response is not to be kept. `items`: those of its request."""
        self._store, self._maker, self._items = store, maker, items

    async def keep(self, response: dict[str, Any], sample: Sample | None = None) -> None:
        """Keeps the response as it is now; `sample` is what it says, chain of thought included.

        Raises:
            ApiError: the store fails.
        """
        if self._store is None:
            return
        maker = dataclasses.replace(self._maker.item_maker, with_reasoning=True, seal=None)
        output = [] if sample is None else maker.items(sample)
        stored = Stored(response, self._maker.previous_response_id, self._items, output)
        try:
            await asyncio.to_thread(self._store.put, stored)
        except sqlite3.Error as error:
            _logger.error("response %s could not be stored: %s", self._maker.id, error)
            raise ApiError("store_failed", "the response could not be stored", status=500) from None


async def response_events(
    stream: ResponseStream, generation: Generation, keeper: Keeper
) -> AsyncIterator[ServerSentEvent]:
    """The events of a response's stream, which ends with the response: completed, incomplete or failed.

    The response is kept before the event that says so.
    """
    for said in stream.start():
        yield event(said, said["type"])
    try:
        async for events in generation:
            for one in events:
                for said in stream.add(one):
                    if said["type"] in _ENDS:
                        await keeper.keep(said["response"], generation.samples[0])
                    yield event(said, said["type"])
    except Exception as error:
        for said in stream.fail(told(error)):
            yield event(said, said["type"])


class BackgroundResponses:
    """The responses that are generated while nobody waits."""

    def __init__(self) -> None:
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def start(self, maker: ResponseMaker, generation: Generation, keeper: Keeper) -> dict[str, Any]:
        """Starts one, and returns it as it is now."""
        response = maker.unfinished("queued")
        try:
            await keeper.keep(response)
        except BaseException:
            generation.close()
            raise
        task = asyncio.ensure_future(self._run(maker, generation, keeper))
        self._tasks[maker.id] = task
        task.add_done_callback(lambda _: self._tasks.pop(maker.id, None))
        return response

    async def cancel(self, id: str) -> None:
        """Ends one, and returns when what it has become is kept; one that is not at work is left alone."""
        task = self._tasks.get(id)
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    async def wait(self) -> None:
        """Returns when what has become of all of them is kept."""
        if self._tasks:
            await asyncio.wait(list(self._tasks.values()))

    async def _run(self, maker: ResponseMaker, generation: Generation, keeper: Keeper) -> None:
        response, sample = maker.unfinished("cancelled"), None
        try:
            is_first = True
            async for _ in generation:
                if is_first and not generation.samples:
                    await keeper.keep(maker.unfinished("in_progress"))
                is_first = False
            (sample,) = generation.samples
            response = maker.whole(sample)
        except asyncio.CancelledError:
            pass
        except Exception as error:
            response, sample = maker.failed(told(error), []), None
        finally:
            generation.close()
        with contextlib.suppress(ApiError):  # it is in the log
            await keeper.keep(response, sample)


class StoredResponses:
    """What can be asked of stored responses. Its methods raise ApiError (404) for one that is not there."""

    def __init__(self, store: ResponseStore | None, background: BackgroundResponses) -> None:
        self._store, self._background = store, background

    async def get(self, id: str, query: Mapping[str, str]) -> dict[str, Any]:
        """The response."""
        if query.get("stream", "false") != "false":
            raise ApiError("unsupported_field", "stream: a stored response comes whole", "stream")
        return (await self._stored(id)).response

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
