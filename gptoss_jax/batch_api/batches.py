"""All batches: which of them are at work, and what can be done to one."""

from __future__ import annotations

import logging
import queue
import threading
import time
import uuid
from collections.abc import Mapping
from typing import Any

from gptoss_jax.batch_api.records import ENDS, StoredBatch
from gptoss_jax.batch_api.work import Work, Workshop
from gptoss_jax.openai_api import PATHS, ApiError
from gptoss_jax.openai_api.errors import bad_value

WINDOW = "24h"
"""What `completion_window` can be."""

EXPIRES_AFTER = (3600, 30 * 86400)
"""The least and the most seconds after which a file can be made to expire."""

_STOP_SECONDS = 20.0
"""How long batches at work are waited for when the server stops; they leave after a row at most."""

_METADATA = "an object of at most 16 strings of at most 512 characters, under names of at most 64"

_logger = logging.getLogger("gptoss_jax.batch_api")


class Batches:
    """The batches of a server. Its methods may be called in any thread, and may wait for the disk."""

    def __init__(self, shop: Workshop) -> None:
        """Goes on with the batches that have not ended."""
        self._shop = shop
        self._works: dict[str, Work] = {}
        self._queue: queue.SimpleQueue[Work | None] = queue.SimpleQueue()
        folder = shop.settings.folder / "rows"
        folder.mkdir(exist_ok=True)
        unfinished = shop.records.unfinished()
        kept = {path for batch in unfinished for path in shop.paths(batch.id)}
        for path in folder.iterdir():
            if path not in kept:
                path.unlink()
        for batch in unfinished:
            self._start(batch)
        # Daemons, since a process that is told twice to stop does not wait: all is as after a kill.
        self._threads = [
            threading.Thread(target=self._work, name=f"gptoss-jax batch {number}", daemon=True)
            for number in range(shop.settings.at_once)
        ]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Leaves the batches for the next start."""
        for work in list(self._works.values()):
            work.stop("shutdown")
        for _ in self._threads:
            self._queue.put(None)
        for thread in self._threads:
            thread.join(_STOP_SECONDS)

    def create(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Makes a batch of a request's body, and returns its object.

        Raises:
            ApiError: a field is wrong, or there are too many batches.
        """
        shop, now = self._shop, int(time.time())
        for name in ("input_file_id", "endpoint", "completion_window"):
            if body.get(name) is None:
                raise ApiError("missing_required_parameter", f"the body has no {name}", name)
        input, endpoint, window = body["input_file_id"], body["endpoint"], body["completion_window"]
        if not isinstance(input, str):
            raise bad_value("input_file_id", input, "the id of a file")
        if not isinstance(endpoint, str) or endpoint not in PATHS:
            raise bad_value("endpoint", endpoint, " or ".join(f'"{path}"' for path in PATHS))
        if window != WINDOW:
            raise bad_value("completion_window", window, f'"{WINDOW}"')
        metadata = _metadata(body.get("metadata"))
        output_expires_after = expires_after(body.get("output_expires_after"), "output_expires_after")
        purpose = shop.files.get(input).purpose
        if purpose != "batch":
            message = f'file {input!r} has the purpose "{purpose}": it must be "batch"'
            raise ApiError("invalid_request", message, "input_file_id")
        open_ones = len(shop.records.unfinished())
        if open_ones >= shop.settings.max_unfinished:
            message = f"{open_ones} batches have not ended, of at most {shop.settings.max_unfinished}"
            raise ApiError("too_many_batches", f"{message}: wait, or cancel some")
        object = {
            "id": f"batch_{uuid.uuid4().hex}",
            "object": "batch",
            "endpoint": endpoint,
            "model": shop.server.model,
            "errors": None,
            "input_file_id": input,
            "completion_window": window,
            "status": "validating",
            "output_file_id": None,
            "error_file_id": None,
            "created_at": now,
            "expires_at": now + shop.settings.window_seconds,
            **dict.fromkeys(
                f"{name}_at" for name in ("in_progress", "finalizing", "cancelling", *sorted(ENDS))
            ),
            "request_counts": {"total": 0, "completed": 0, "failed": 0},
            "usage": None,
            "metadata": metadata,
        }
        batch = StoredBatch(object, {"output_expires_after": output_expires_after})
        self._sweep()
        shop.records.add_batch(batch)
        self._start(batch)
        return object

    def get(self, id: str) -> dict[str, Any]:
        """The object of a batch.

        Raises:
            ApiError: there is none (404).
        """
        batch = self._shop.records.batch(id)
        if batch is None:
            raise ApiError("not_found", f"there is no batch {id[:80]!r}", "id", status=404)
        return self._counted(batch)

    def all(self) -> list[dict[str, Any]]:
        """The objects of all batches, the oldest first."""
        return [self._counted(batch) for batch in self._shop.records.batches()]

    def cancel(self, id: str) -> dict[str, Any]:
        """Cancels a batch, and returns its object. One that is in progress ends a little later.

        Raises:
            ApiError: there is none (404), or it has ended or is about to.
        """
        now, records = int(time.time()), self._shop.records
        cancelling = {"status": "cancelling", "cancelling_at": now}
        if (
            records.change(id, {"validating"}, cancelling | {"status": "cancelled", "cancelled_at": now})
            or records.change(id, {"in_progress"}, cancelling)
        ) and (work := self._works.get(id)):
            work.stop("cancelled")
        object = self.get(id)
        if object["status"] not in ("cancelling", "cancelled"):
            raise ApiError("invalid_request", f'batch {id!r} is "{object["status"]}": it cannot be cancelled')
        return object

    def _counted(self, batch: StoredBatch) -> dict[str, Any]:
        """The object of a batch, with the rows so far of one that is at work."""
        work = self._works.get(batch.id)
        if work is None or batch.status in ENDS:
            return batch.object
        counts = {"completed": work.answered, "failed": work.failed}
        return batch.object | {"request_counts": batch.object["request_counts"] | counts}

    def _start(self, batch: StoredBatch) -> None:
        work = self._works[batch.id] = Work(batch, self._shop)
        self._queue.put(work)

    def _work(self) -> None:
        """Runs works, one after the other; in a thread."""
        while (work := self._queue.get()) is not None:
            work.run()
            self._works.pop(work.id, None)

    def _sweep(self) -> None:
        """Forgets the batches that ended long ago."""
        oldest = time.time() - self._shop.settings.keep_seconds
        for batch in self._shop.records.batches():
            ended = batch.object.get(f"{batch.status}_at")
            if batch.status in ENDS and ended is not None and ended < oldest:
                self._shop.records.delete_batch(batch.id)


def expires_after(value: object, name: str) -> int | None:
    """The seconds of a policy of expiry; None if there is none.

    Raises:
        ApiError: it is not what it must be.
    """
    if value is None:
        return None
    least, most = EXPIRES_AFTER
    allowed = f'{{"anchor": "created_at", "seconds": from {least} to {most}}}'
    seconds = value.get("seconds") if isinstance(value, Mapping) else None
    if not isinstance(value, Mapping) or value.get("anchor") != "created_at":
        raise bad_value(name, value, allowed)
    if isinstance(seconds, bool) or not isinstance(seconds, int) or not least <= seconds <= most:
        raise bad_value(f"{name}.seconds", seconds, f"a whole number from {least} to {most}")
    return seconds


def _metadata(value: object) -> dict[str, str] | None:
    if value is None:
        return None
    if not isinstance(value, Mapping) or len(value) > 16:
        raise bad_value("metadata", value, _METADATA)
    for name, text in value.items():
        if not isinstance(text, str) or len(text) > 512 or len(name) > 64 or not _is_text(name + text):
            raise bad_value("metadata", value, _METADATA)
    return dict(value)


def _is_text(text: str) -> bool:
    """False for lone surrogates, which are no characters: not every client could read them."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
