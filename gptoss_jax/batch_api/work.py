"""One batch, from its input file to its output file.

Each step is recorded when it is done, and can be done again: after a kill, the next process goes on with the
step that is recorded.

::

    validating ──► in_progress ──► finalizing ──► completed, expired, failed
        │               └────────► cancelling ──► cancelled
        └──► failed, cancelled, expired
"""

from __future__ import annotations

import dataclasses
import datetime
import hashlib
import logging
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gptoss_jax.batch import open_batch
from gptoss_jax.batch_api.background import BackgroundEngine, Stopped
from gptoss_jax.batch_api.files import Files
from gptoss_jax.batch_api.records import Records, StoredBatch, StoredFile
from gptoss_jax.batch_api.results import Results, write_results
from gptoss_jax.batch_api.settings import BatchSettings
from gptoss_jax.batch_api.validation import check_input
from gptoss_jax.engine.engine_thread import EngineStopped
from gptoss_jax.engine.request import SamplingParams

if TYPE_CHECKING:
    from gptoss_jax.serve.generation import EngineClient
    from gptoss_jax.serve.settings import ServerSettings
    from harmony.json_types import Json

_logger = logging.getLogger("gptoss_jax.batch_api")

_MESSAGES = {
    "cancelled": "the batch was cancelled before this request was answered",
    "expired": "the batch expired before this request was answered",
    "failed": "the batch failed before this request was answered",
}


@dataclasses.dataclass(frozen=True)
class Workshop:
    """What all batches have in common.

    engine_settings: what answers depend on beside requests and sampling, such as the checkpoint.
    on_engine_stopped: told when a batch finds that the engine has stopped; called in any thread.
    """

    records: Records
    files: Files
    settings: BatchSettings
    server: ServerSettings
    engine_settings: Mapping[str, Json]
    client: EngineClient
    on_engine_stopped: Callable[[EngineStopped], None]

    def rows_path(self, id: str) -> Path:
        """Where the rows of a batch are while it is in progress."""
        return self.settings.folder / "rows" / f"{id}.jsonl"

    def paths(self, id: str) -> list[Path]:
        """The rows of a batch, and what a batch run keeps beside them."""
        rows = self.rows_path(id)
        return [rows, *(rows.with_name(rows.name + ending) for ending in (".run.json", ".index"))]


class Work:
    """The work on one batch, which `run` does, in any one thread."""

    def __init__(self, batch: StoredBatch, shop: Workshop) -> None:
        self._shop = shop
        self.id = batch.id
        self._path = shop.files.path(batch.object["input_file_id"])
        self._engine = BackgroundEngine(
            shop.client.engine, shop.client.thread, batch.id, batch.object["expires_at"]
        )
        self.answered = 0
        """Rows that are answers, so far."""
        self.failed = 0
        """Rows that are errors, so far."""

    def stop(self, reason: str) -> None:
        """Makes `run` come to its end: "cancelled" ends the batch, "shutdown" leaves it for later."""
        self._engine.stop(reason)

    def run(self) -> None:
        """Does what is left to do."""
        try:
            batch = self._shop.records.batch(self.id)
            while batch is not None and (step := _STEPS.get(batch.status)) is not None:
                batch = step(self, batch)
        except Stopped:
            _logger.info("%s waits for the next start", self.id)
        except EngineStopped as error:
            self._shop.on_engine_stopped(error)
        except Exception as error:
            _logger.error("%s failed", self.id, exc_info=error)
            self._give_up(error)

    # The steps: each returns the batch as it is then, or None if somebody else has changed its status

    def _validate(self, batch: StoredBatch) -> StoredBatch | None:
        shop, now = self._shop, lambda: int(time.time())
        try:
            survey = check_input(
                self._path,
                batch.object["endpoint"],
                max_rows=shop.settings.max_rows,
                max_line_bytes=shop.server.max_body_bytes,
                go_on=self._engine.go_on,
            )
        except Stopped as stopped:
            if stopped.reason != "expired":
                raise
            return self._change({"validating"}, {"status": "expired", "expired_at": now()})
        if survey.problems:
            errors = {"object": "list", "data": survey.problems}
            return self._change({"validating"}, {"status": "failed", "failed_at": now(), "errors": errors})
        counts = {"total": survey.rows, "completed": 0, "failed": 0}
        return self._change(
            {"validating"},
            {"status": "in_progress", "in_progress_at": now(), "request_counts": counts},
            terms=self._terms(),
        )

    def _answer(self, batch: StoredBatch) -> StoredBatch | None:
        ending, error = "completed", None
        try:
            if batch.terms["engine"] != dict(self._shop.engine_settings):
                ending = "failed"
                error = {
                    "code": "engine_changed",
                    "message": "the server was started with another checkpoint or other sizes "
                    "than the batch began with",
                    "line": None,
                    "param": None,
                }
            else:
                self._answer_rows(batch.terms)
        except Stopped as stopped:
            if stopped.reason == "shutdown":
                raise
            ending = stopped.reason
        if ending == "cancelled":  # its status says so already
            return self._shop.records.batch(self.id)
        changes: dict[str, Any] = {"status": "finalizing", "finalizing_at": int(time.time())}
        if error is not None:
            changes["errors"] = {"object": "list", "data": [error]}
        changed = self._change({"in_progress"}, changes, terms={"ending": ending})
        return changed or self._shop.records.batch(self.id)  # it is being cancelled

    def _answer_rows(self, terms: Mapping[str, Any]) -> None:
        engine = self._engine
        engine.go_on()
        with open_batch(
            self._path,
            self._shop.rows_path(self.id),
            sampling=SamplingParams(**terms["sampling"]),
            seed=terms["seed"],
            effort=terms["effort"],
            date=terms["date"],
            model=terms["model"],
            settings={"batch": self.id, **terms["engine"]},
            history=terms["history"],
            ignore_unknown_tools=True,
            header_guard=terms["header_guard"],
            reasoning_share=terms["reasoning_share"],
            reasoning_field=terms["reasoning_field"],
            hide_reasoning=terms["hide_reasoning"] or self._shop.server.hide_reasoning,
        ) as rows:
            self.answered, self.failed = rows.answered, rows.errors
            rows.answer(engine, self._shop.client.encoding, on_row=self._count)

    def _count(self, answered: bool) -> None:
        self.answered += answered
        self.failed += not answered

    def _finish(self, batch: StoredBatch) -> StoredBatch | None:
        ending = "cancelled" if batch.status == "cancelling" else batch.terms["ending"]
        unanswered = {"code": f"batch_{ending}", "message": _MESSAGES.get(ending, "")}
        rows = self._shop.rows_path(self.id)
        results = write_results(self._shop.files, self.id, self._path, rows, unanswered)
        changed = self._change(
            {"finalizing", "cancelling"},
            {
                "status": ending,
                f"{ending}_at": int(time.time()),
                "output_file_id": results.output,
                "error_file_id": results.errors,
                "request_counts": {
                    "total": results.answered + results.failed,
                    "completed": results.answered,
                    "failed": results.failed,
                },
                "usage": results.usage,
            },
            files=self._result_files(batch, results),
        )
        for path in self._shop.paths(self.id):
            path.unlink(missing_ok=True)
        return changed

    # Parts of the steps

    def _terms(self) -> dict[str, Any]:
        """What the rows depend on, as the server has it now."""
        server = self._shop.server
        names = ("temperature", "top_p", "max_tokens", "reasoning_budget")
        return {
            "engine": dict(self._shop.engine_settings),
            "sampling": {name: getattr(server.sampling, name) for name in names},
            # Of the id, so that rows without a seed draw anew in each batch.
            "seed": int.from_bytes(hashlib.blake2b(self.id.encode(), digest_size=4).digest(), "big"),
            "effort": server.effort,
            "date": server.date or datetime.date.today().isoformat(),
            "model": server.model,
            "history": server.history,
            "header_guard": server.header_guard,
            "reasoning_share": server.reasoning_share,
            "reasoning_field": server.reasoning_field,
            "hide_reasoning": server.hide_reasoning,
        }

    def _result_files(self, batch: StoredBatch, results: Results) -> list[StoredFile]:
        now = int(time.time())
        seconds = batch.terms["output_expires_after"] or self._shop.settings.keep_seconds
        return [
            StoredFile(
                id,
                now,
                f"{self.id}_{part}.jsonl",
                "batch_output",
                self._shop.files.path(id).stat().st_size,
                now + seconds,
            )
            for id, part in ((results.output, "output"), (results.errors, "error"))
            if id is not None
        ]

    def _change(self, statuses: set[str], changes: dict[str, Any], **more: Any) -> StoredBatch | None:
        return self._shop.records.change(self.id, statuses, changes, **more)

    def _give_up(self, error: Exception) -> None:
        """Ends a batch whose work failed, as the last thing that can be done."""
        message = f"the server failed on the batch: {' '.join(str(error).split())[:300]}"
        problem = {"code": "server_error", "message": message, "line": None, "param": None}
        errors = {"object": "list", "data": [problem]}
        changes = {"status": "failed", "failed_at": int(time.time()), "errors": errors}
        try:
            self._change({"validating", "in_progress", "finalizing", "cancelling"}, changes)
        except Exception as second:  # the disk, most likely: the next start tries again
            _logger.error("%s could not be recorded as failed", self.id, exc_info=second)


_STEPS: dict[str, Callable[[Work, StoredBatch], StoredBatch | None]] = {
    "validating": Work._validate,
    "in_progress": Work._answer,
    "finalizing": Work._finish,
    "cancelling": Work._finish,
}
"""Status → what is done in it; the other statuses are ends."""
