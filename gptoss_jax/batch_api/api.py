"""The addresses of files and batches: what each does."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING, Any

import python_multipart  # noqa: F401 - what starlette reads forms with: missing, it is missed at the start
from starlette.datastructures import FormData, UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import Route

from gptoss_jax.batch_api.batches import Batches, expires_after
from gptoss_jax.batch_api.files import Files
from gptoss_jax.batch_api.records import Records, RecordsError
from gptoss_jax.batch_api.settings import BatchSettings
from gptoss_jax.batch_api.work import Workshop
from gptoss_jax.openai_api import ApiError
from gptoss_jax.openai_api.errors import bad_value
from gptoss_jax.openai_api.input_items import page_of
from gptoss_jax.serve.http import json_response, read_body

if TYPE_CHECKING:
    from starlette.types import Message

    from gptoss_jax.engine.engine_thread import EngineStopped
    from gptoss_jax.serve.generation import EngineClient
    from gptoss_jax.serve.settings import ServerSettings
    from harmony.json_types import Json

NO_FOLDER = "no files and batches are kept here: start the server with --data FOLDER"

_UPLOADS = 8
"""Files that are uploaded at the same time."""

_FORM_BYTES = 64 << 10
"""What a form may have beside its file."""


class BatchApi:
    """Files and batches, as an extension of the server's application."""

    def __init__(
        self, settings: BatchSettings | None, server: ServerSettings, engine_settings: Mapping[str, Json]
    ) -> None:
        """Opens the folder.

        Args:
            settings: the folder and its limits; None keeps nothing, and every address says so.
            server: the server's settings.
            engine_settings: what answers depend on beside requests and `server`, such as the checkpoint and
                its dtype, as JSON. A batch that began with others is not gone on with.

        Raises:
            RecordsError: the folder cannot be used.
        """
        self._settings, self._server, self._engine_settings = settings, server, engine_settings
        self._uploads = 0
        self._batches: Batches | None = None
        if settings is not None:
            try:
                settings.folder.mkdir(exist_ok=True)
                self._records = Records(settings.folder / "records.sqlite")
                self._files = Files(self._records, settings)
            except OSError as error:
                reason = error.strerror or error
                raise RecordsError(f"{settings.folder} cannot hold files and batches: {reason}") from None

    # As an extension

    def routes(self) -> list[Route]:
        """The addresses."""
        return [
            Route("/v1/files", self.files, methods=["GET", "POST"]),
            Route("/v1/files/{id}", self.file, methods=["GET", "DELETE"]),
            Route("/v1/files/{id}/content", self.content),
            Route("/v1/batches", self.batches, methods=["GET", "POST"]),
            Route("/v1/batches/{id}", self.batch),
            Route("/v1/batches/{id}/cancel", self.cancel, methods=["POST"]),
        ]

    async def start(self, client: EngineClient) -> None:
        """Goes on with the batches that have not ended."""
        if self._settings is None:
            return
        loop = asyncio.get_running_loop()

        def on_engine_stopped(error: EngineStopped) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: the server has ended
                loop.call_soon_threadsafe(client.note_stopped, error)

        shop = Workshop(
            self._records,
            self._files,
            self._settings,
            self._server,
            self._engine_settings,
            client,
            on_engine_stopped,
        )
        self._batches = await asyncio.to_thread(Batches, shop)

    async def stop(self) -> None:
        """Leaves the batches for the next start."""
        if self._batches is not None:
            await asyncio.to_thread(self._batches.stop)
            self._records.close()

    # Files

    async def files(self, request: Request) -> Response:
        """`GET` and `POST /v1/files`."""
        settings, _ = self._kept()
        if request.method == "POST":
            return json_response(await self._upload(request, settings))
        purpose = request.query_params.get("purpose")
        found = await asyncio.to_thread(self._files.all)
        listed = [file.as_json() for file in found if purpose in (None, file.purpose)]
        return json_response(page_of(listed, request.query_params, most=10_000, usual=10_000))

    async def file(self, request: Request) -> Response:
        """`GET` and `DELETE /v1/files/{id}`."""
        self._kept()
        id = request.path_params["id"]
        if request.method == "DELETE":
            await asyncio.to_thread(self._files.delete, id)
            return json_response({"id": id, "object": "file", "deleted": True})
        return json_response((await asyncio.to_thread(self._files.get, id)).as_json())

    async def content(self, request: Request) -> Response:
        """`GET /v1/files/{id}/content`."""
        self._kept()
        file = await asyncio.to_thread(self._files.get, request.path_params["id"])
        path = self._files.path(file.id)
        return FileResponse(path, media_type="application/octet-stream", filename=file.name)

    async def _upload(self, request: Request, settings: BatchSettings) -> dict[str, Any]:
        if self._uploads >= _UPLOADS:
            message = f"{_UPLOADS} files are being uploaded: try again later"
            raise ApiError("server_busy", message, status=429)
        self._uploads += 1
        try:
            async with _form(request, settings.max_file_bytes) as form:
                purpose = _text(form, "purpose")
                if purpose != "batch":
                    raise bad_value("purpose", purpose, '"batch", the only one that is of use here')
                expires = expires_after(_policy(form), "expires_after")
                file = form.get("file")
                if not isinstance(file, UploadFile):
                    message = "the form has no file" if file is None else "file is text: it must be a file"
                    raise ApiError("invalid_request", message, "file")
                if file.size is not None and file.size > settings.max_file_bytes:
                    raise _too_long(settings.max_file_bytes)
                name = file.filename or ""
                kept = await asyncio.to_thread(self._files.keep, file.file, name, purpose, expires)
        finally:
            self._uploads -= 1
        return kept.as_json()

    # Batches

    async def batches(self, request: Request) -> Response:
        """`GET` and `POST /v1/batches`."""
        _, batches = self._kept()
        if request.method == "POST":
            body = await read_body(request, self._server.max_body_bytes)
            return json_response(await asyncio.to_thread(batches.create, body))
        return json_response(page_of(await asyncio.to_thread(batches.all), request.query_params))

    async def batch(self, request: Request) -> Response:
        """`GET /v1/batches/{id}`."""
        _, batches = self._kept()
        return json_response(await asyncio.to_thread(batches.get, request.path_params["id"]))

    async def cancel(self, request: Request) -> Response:
        """`POST /v1/batches/{id}/cancel`."""
        _, batches = self._kept()
        return json_response(await asyncio.to_thread(batches.cancel, request.path_params["id"]))

    def _kept(self) -> tuple[BatchSettings, Batches]:
        """Raises ApiError (404) if nothing is kept here."""
        if self._settings is None or self._batches is None:
            raise ApiError("not_found", NO_FOLDER, status=404)
        return self._settings, self._batches


@contextlib.asynccontextmanager
async def _form(request: Request, max_file_bytes: int) -> AsyncIterator[FormData]:
    """The form that is the body of a request, whose file is in a temporary one.

    Raises:
        ApiError: it is too long (413), or no form with one file.
    """
    if not request.headers.get("content-type", "").startswith("multipart/form-data"):
        raise ApiError("invalid_request", "the body must be a form, multipart/form-data", status=422)
    most, received = max_file_bytes + _FORM_BYTES, 0
    length = request.headers.get("content-length", "")
    if length.isdigit() and int(length) > most:
        raise _too_long(max_file_bytes)

    async def receive() -> Message:
        nonlocal received
        message = await request.receive()
        received += len(message.get("body", b""))
        if received > most:
            raise _too_long(max_file_bytes)
        return message

    limited = Request(request.scope, receive)
    try:
        form = await limited.form(max_files=1, max_fields=8, max_part_size=4096)
    except HTTPException as error:
        raise ApiError("invalid_request", f"the form: {error.detail}") from None
    try:
        yield form
    finally:
        await form.close()


def _too_long(most: int) -> ApiError:
    return ApiError(
        "file_too_large", f"the file has more than {most} bytes (--data-max-file-mib)", status=413
    )


def _text(form: FormData, name: str) -> str:
    found = form.getlist(name)
    if len(found) != 1 or not isinstance(found[0], str):
        what = f"{len(found)} times" if len(found) != 1 else "as a file"
        raise ApiError("invalid_request", f"the form must have {name} once, as text, not {what}", name)
    return found[0]


def _policy(form: FormData) -> dict[str, Any] | None:
    """The form's `expires_after`, as JSON would have it."""
    anchor, seconds = form.get("expires_after[anchor]"), form.get("expires_after[seconds]")
    if anchor is None and seconds is None:
        return None
    is_number = isinstance(seconds, str) and seconds.isascii() and seconds.isdigit() and len(seconds) < 10
    return {"anchor": str(anchor), "seconds": int(str(seconds)) if is_number else str(seconds)}
