"""The handlers of requests: what each address does."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import datetime
import logging
import time
import uuid
from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING, Any

from starlette.responses import Response

from gptoss_jax.answers import Sample
from gptoss_jax.openai_api import (
    ApiError,
    ChatStream,
    Context,
    Prepared,
    ResponseMaker,
    ResponseStream,
    chat_completion,
    error_object,
    prepare,
)
from gptoss_jax.openai_api.input_items import Items, items_of, opened
from gptoss_jax.serve.delivery import Delivery, without_own_fields
from gptoss_jax.serve.http import DONE, UNREADABLE, EventStream, event, json_response, read_body, told
from gptoss_jax.serve.responses import (
    NO_STORE,
    BackgroundResponses,
    Keeper,
    StoredResponses,
    response_events,
    streamed_after,
)
from gptoss_jax.serve.summaries import PROMPT, SUMMARY_TOKENS, Summarizer, asks_for_summary, summaries_of
from gptoss_jax.serve.tokens import token_object

if TYPE_CHECKING:
    from starlette.requests import Request

    from gptoss_jax.serve.generation import EngineClient, Generation
    from gptoss_jax.serve.metrics import Metrics
    from gptoss_jax.serve.sealing import Sealer
    from gptoss_jax.serve.settings import ServerSettings
    from gptoss_jax.serve.store import ResponseStore
    from harmony.openai_formats import BodyForm

_logger = logging.getLogger("gptoss_jax.serve")

CONVERSATIONS: Mapping[BodyForm, str] = {"chat": "messages", "responses": "input"}
"""The field that a body of each form cannot be without."""

_CLIENT_GONE = 499
"""The status in the log of a request whose client did not wait; nobody reads it."""


class Api:
    """The two APIs in front of one engine."""

    def __init__(
        self,
        client: EngineClient,
        settings: ServerSettings,
        metrics: Metrics,
        store: ResponseStore | None,
        sealer: Sealer | None,
    ) -> None:
        self._client, self._settings, self._metrics = client, settings, metrics
        self._store, self._sealer = store, sealer
        self._warm = False
        self._background = BackgroundResponses()
        self._stored = StoredResponses(store, self._background)
        self._created = int(time.time())
        self._context = Context(
            client.engine,
            client.encoding,
            settings.sampling,
            settings.effort,
            "",
            history=settings.history,
            header_guard=settings.header_guard,
            reasoning_share=settings.reasoning_share,
            ignore_unknown_tools=True,
            built_in={tool.name: tool.declaration for tool in client.tools},
        )

        self._summarizer = self._new_summarizer()

    def _new_summarizer(self) -> Summarizer | None:
        function = self._settings.summarizer
        if function is None:
            return None
        if function == "model":
            function = self._summary_by_model
        return Summarizer(function, self._settings.summary_seconds)

    async def _summary_by_model(self, text: str) -> str:
        """What the model says of its own chain of thought, as a request like any other."""
        messages = [{"role": "developer", "content": PROMPT}, {"role": "user", "content": text}]
        body = {"messages": messages, "reasoning_effort": "low", "reasoning": {"max_tokens": SUMMARY_TOKENS}}
        prepared = await self._prepare(body, "chat", _new_id())
        generation = self._client.start(prepared.request)
        try:
            async for _ in generation:
                pass
            return generation.samples[0].text
        finally:
            generation.close()

    async def close(self) -> None:
        """Waits until what has become of background responses is kept; the engine has stopped by now."""
        await self._background.wait()

    # The models, and how the server is

    async def models(self, request: Request) -> Response:
        """`GET /v1/models`."""
        return json_response({"object": "list", "data": [self._model()]})

    async def model(self, request: Request) -> Response:
        """`GET /v1/models/{model}`."""
        name = request.path_params["model"]
        if name != self._settings.model:
            message = f"there is no model {name!r}: this server has {self._settings.model!r}"
            raise ApiError("model_not_found", message, "model", status=404)
        return json_response(self._model())

    def _model(self) -> dict[str, Any]:
        return {
            "id": self._settings.model,
            "object": "model",
            "created": self._created,
            "owned_by": "gptoss-jax",
            "max_model_len": self._client.engine.max_length,
        }

    async def health(self, request: Request) -> Response:
        """`GET /health`: 200 as long as requests can be answered, else 503."""
        stopped = self._client.stopped
        if stopped is not None:
            raise ApiError("engine_stopped", stopped, status=503)
        return json_response({"status": "ok"})

    async def ready(self, request: Request) -> Response:
        """`GET /ready`: as `GET /health`, and 503 too as long as the first requests would wait for `warm`."""
        if not self._warm:
            raise ApiError("not_ready", "the server is still preparing its grammars", status=503)
        return await self.health(request)

    async def warm(self) -> None:
        """Prepares a request with a grammar and one without: what is made once is there for later ones."""
        body = {"messages": [{"role": "user", "content": "Hi"}]}
        try:
            for fields in ({}, {"response_format": {"type": "json_object"}}):
                await self._prepare({**body, **fields}, "chat", _new_id())
        except Exception as error:
            _logger.warning("the grammars could not be prepared", exc_info=error)
        self._warm = True

    async def metrics(self, request: Request) -> Response:
        """`GET /metrics`."""
        self._metrics.unfinished.set(self._client.unfinished)
        return Response(self._metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    # Chat Completions

    async def chat_completions(self, request: Request) -> Response:
        """`POST /v1/chat/completions`."""
        body = await self._read(request, "chat")
        delivery = Delivery.of(body)
        unique = _new_id()
        prepared = await self._prepare(body, "chat", unique)
        names: dict[str, Any] = {
            "unique": unique,
            "model": self._settings.model,
            "created": int(time.time()),
            "reasoning_field": self._settings.reasoning_field,
        }
        generation = self._client.start(prepared.request, prepared.rounds)
        if delivery.stream:
            stream = ChatStream(
                prepared, self._client.encoding, include_usage=delivery.include_usage, **names
            )
            return EventStream(_chat_events(stream, generation), generation, _headers(unique))
        samples = await _whole(generation, request)
        if samples is None:
            return Response(status_code=_CLIENT_GONE)
        answer = chat_completion(prepared, samples, self._client.encoding, **names)
        return json_response(answer, headers=_headers(unique))

    # Responses

    async def responses(self, request: Request) -> Response:
        """`POST /v1/responses`."""
        body = await self._read(request, "responses")
        delivery = Delivery.of(body)
        unique = _new_id()
        asked, read = await self._with_conversation(body, delivery.previous)
        prepared = await self._prepare(read, "responses", unique)
        store = self._store if delivery.store else None
        if delivery.background and store is None:
            reason = "store is false" if self._store is not None else NO_STORE
            message = f"background needs a stored response: {reason}"
            raise ApiError("unsupported_field", message, "background")
        summarize = self._summarizer if asks_for_summary(body) else None
        maker = ResponseMaker(
            prepared,
            self._client.encoding,
            unique,
            self._settings.model,
            int(time.time()),
            seal=self._sealer.seal if delivery.sealed and self._sealer is not None else None,
            summaries=None if summarize is None else {},
            store=store is not None,
            background=delivery.background,
            previous_response_id=delivery.previous,
        )
        keeper = Keeper(store, maker, asked or [])
        generation = self._client.start(prepared.request, prepared.rounds, most_calls=delivery.most_calls)
        if delivery.background:
            answer = await self._background.start(maker, generation, keeper, summarize)
            if delivery.stream:
                return EventStream(await self._stored.events(maker.id, -1), headers=_headers(unique))
            return json_response(answer, headers=_headers(unique))
        if delivery.stream:
            events = response_events(ResponseStream(maker), generation, keeper, summarize)
            return EventStream(events, generation, _headers(unique))
        samples = await _whole(generation, request)
        if samples is None:
            return Response(status_code=_CLIENT_GONE)
        if summarize is not None and maker.summaries is not None:
            maker.summaries.update(await summaries_of(samples[0], summarize))
        answer = maker.whole(samples[0])
        await keeper.keep(answer, samples[0])
        return json_response(answer, headers=_headers(unique))

    async def stored_response(self, request: Request) -> Response:
        """`GET` and `DELETE /v1/responses/{id}`."""
        id = request.path_params["id"]
        if request.method == "DELETE":
            return json_response(await self._stored.delete(id))
        after = streamed_after(request.query_params)
        if after is not None:
            return EventStream(await self._stored.events(id, after))
        return json_response(await self._stored.get(id))

    async def input_items(self, request: Request) -> Response:
        """`GET /v1/responses/{id}/input_items`."""
        found = await self._stored.input_items(request.path_params["id"], request.query_params)
        return json_response(found)

    async def cancel_response(self, request: Request) -> Response:
        """`POST /v1/responses/{id}/cancel`."""
        return json_response(await self._stored.cancel(request.path_params["id"]))

    # Tokens

    async def tokens(self, request: Request) -> Response:
        """`POST /v1/harmony/tokens`: the prompt of a body of either API, as tokens."""
        body = await read_body(request, self._settings.max_body_bytes)
        forms = [form for form, field in CONVERSATIONS.items() if field in body]
        if len(forms) != 1:
            which = "both messages and input" if forms else "neither messages nor input"
            raise ApiError("invalid_request", f"the body has {which}: it must have one", status=UNREADABLE)
        (form,) = forms
        if form == "responses":
            _, body = await self._with_conversation(body, Delivery.of(body).previous)
        prepared = await self._prepare(body, form, _new_id())

        def answer() -> Response:
            tokens = token_object(
                self._client.encoding,
                prepared.request.prompt,
                model=self._settings.model,
                with_reasoning=prepared.with_reasoning,
            )
            return json_response(tokens)

        return await asyncio.to_thread(answer)  # as in `_prepare`

    # What both share

    async def _with_conversation(
        self, body: Mapping[str, Any], previous: str | None
    ) -> tuple[Items | None, dict[str, Any]]:
        """The items of the body's own `input`; and the body with all of its conversation as `input`: what the
        stored response `previous` goes on from, and encrypted reasoning decrypted.

        The items are None where `input` is not what it must be, which `prepare` says better.

        Raises:
            ApiError: there is no such response, or reasoning cannot be decrypted.
        """
        asked = items_of(body["input"])
        conversation = asked
        if previous is not None:
            if self._store is None:
                raise ApiError(
                    "unsupported_field", f"previous_response_id: {NO_STORE}", "previous_response_id"
                )
            earlier = await asyncio.to_thread(self._store.conversation, previous)
            conversation = None if asked is None else earlier + asked
        if conversation is not None and self._sealer is not None:
            conversation = opened(conversation, self._sealer.open)
        read = without_own_fields(body)
        if conversation is not None:
            read["input"] = conversation
        return asked, read

    async def _read(self, request: Request, form: BodyForm) -> dict[str, Any]:
        body = await read_body(request, self._settings.max_body_bytes)
        field = CONVERSATIONS[form]
        if field not in body:
            raise ApiError("invalid_request", f"the body has no {field}", field, status=UNREADABLE)
        return body

    async def _prepare(self, body: Mapping[str, Any], form: BodyForm, unique: str) -> Prepared:
        """The request of a body, prepared in a thread: long prompts would hold up all streams."""
        date = self._settings.date or datetime.date.today().isoformat()
        context = dataclasses.replace(self._context, date=date)
        prepared = await asyncio.to_thread(prepare, body, form, context, id=f"req_{unique}", seed=None)
        if self._settings.hide_reasoning:
            prepared = dataclasses.replace(prepared, with_reasoning=False)
        return prepared


def _new_id() -> str:
    return uuid.uuid4().hex


def _headers(unique: str) -> dict[str, str]:
    return {"x-request-id": f"req_{unique}"}


async def _chat_events(stream: ChatStream, generation: Generation) -> AsyncIterator[bytes]:
    """The events of a chat stream, those of one delivery of the engine together. An error in its midst is an
    event too, and the last one but "[DONE]"."""
    yield b"".join(map(event, stream.start()))
    try:
        async for events in generation:
            if said := b"".join(event(chunk) for one in events for chunk in stream.add(one)):
                yield said
        last = b"".join(map(event, stream.end()))
    except Exception as error:
        last = event(error_object(told(error)))
    yield last + DONE


async def _whole(generation: Generation, request: Request) -> list[Sample] | None:
    """The samples of a generation, which is closed then; None if the client does not wait for them.

    Raises:
        ApiError: the engine failed.
    """

    async def run() -> None:
        async for _ in generation:
            pass

    async def watch() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    tasks = [asyncio.ensure_future(run()), asyncio.ensure_future(watch())]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if not tasks[0].done():
            return None
        tasks[0].result()
        return generation.samples
    finally:
        generation.close()
        for task in tasks:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError, ApiError):
                await task
