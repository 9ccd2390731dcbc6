"""The loop of a batch run: gives the engine the lines' requests, and writes a row for each finished one."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from tqdm import tqdm

from gptoss_jax.answers import Sample, read_sample, usage_of
from gptoss_jax.batch.answers import answer_row, error_row
from gptoss_jax.batch.errors import BatchError
from gptoss_jax.batch.ids import IdTable
from gptoss_jax.batch.limits import FEWEST_ERRORS, Limits, Watch
from gptoss_jax.batch.output import Output
from gptoss_jax.batch.report import BatchReport
from gptoss_jax.batch.rows import Envelope, RowContext, RowEngine, check_id, prepare, read_line
from gptoss_jax.batch.shards import whole_run
from gptoss_jax.batch.source import Source
from gptoss_jax.engine import Completion, Request, SamplingParams
from gptoss_jax.openai_api import ApiError, Prepared
from gptoss_jax.openai_api.rendering import check_history

if TYPE_CHECKING:
    from gptoss_jax.openai_api import UnknownField
    from harmony import HarmonyEncoding
    from harmony.json_types import JsonObject

_MAX_UNKNOWN = 1000
"""How many different unknown fields are counted."""


def answer_rows(
    source: Source,
    out: Output,
    *,
    engine: RowEngine,
    encoding: HarmonyEncoding,
    sampling: SamplingParams,
    seed: int,
    effort: str | None,
    reasoning_share: float | None,
    form: RowForm,
    progress: bool,
    on_row: Callable[[bool], None] | None,
    limits: Limits,
) -> BatchReport:
    """Answers every line of the source that has no row.

    The arguments are those of `open_batch` and `OpenBatch.answer`.
    """
    context = RowContext(
        engine,
        encoding,
        sampling,
        effort,
        str(out.run["date"]),
        seed,
        reasoning_share=reasoning_share,
        history=check_history(out.run["history"]),
        strict=bool(out.run["strict"]),
        ignore_unknown_tools=bool(out.run["ignore_unknown_tools"]),
        header_guard=bool(out.run["header_guard"]),
    )
    report = BatchReport(rows=source.rows, resumed=len(out.done), resumed_errors=len(out.failed))
    with (
        _bar(source.rows, len(out.done), shown=progress) as bar,
        IdTable() as ids,
        Watch(limits, engine) as watch,
    ):
        ids.add(out.known_ids())
        _Run(context, out, ids, report, bar, form, watch, on_row or (lambda answered: None)).answer(source)
    return report


@dataclasses.dataclass
class _Row:
    """A row that the engine has not finished.

    samples: those that are finished, by number.
    fault: why a sample could not be read; None if all could.
    was_ended: True if a sample was cancelled.
    missing: how many samples are not finished.
    """

    envelope: Envelope
    prepared: Prepared
    samples: dict[int, Sample] = dataclasses.field(default_factory=dict)
    fault: ApiError | None = None
    was_ended: bool = False
    missing: int = 1


class RowForm(NamedTuple):
    """How rows show answers: see `gptoss_jax.batch.opening.open_batch`."""

    model: str
    reasoning_field: str
    hide_reasoning: bool


class _Run:
    """The state of one run between the reader, the engine and the output."""

    def __init__(
        self,
        context: RowContext,
        out: Output,
        ids: IdTable,
        report: BatchReport,
        bar: tqdm,
        form: RowForm,
        watch: Watch,
        on_row: Callable[[bool], None],
    ):
        self._context, self._out, self._ids, self._report, self._bar = context, out, ids, report, bar
        self._form, self._watch, self._on_row = form, watch, on_row
        self._errors_in_succession = 0
        self._run = hashlib.sha256(json.dumps(whole_run(out.run), sort_keys=True).encode()).hexdigest()
        self._pending: dict[str, _Row] = {}
        self._started = time.monotonic()

    def answer(self, source: Source) -> None:
        """Answers the lines, and completes the report."""
        engine = self._context.engine
        preemptions = engine.statistics.preemptions
        for completion in engine.run(self._requests(source)):
            self._add_sample(completion)
        self._report.elapsed_seconds = time.monotonic() - self._started
        left = self._report.rows - len(self._out.done)
        if left > 0:
            self._report.stopped, self._report.unanswered = self._watch.limits.stopped or "", left
        self._report.preemptions = engine.statistics.preemptions - preemptions
        self._report.compiled_programs = engine.compiled_programs

    def _add_sample(self, completion: Completion) -> None:
        """Adds a sample to its row. Writes the row when it has all its samples."""
        row = self._pending[completion.id]
        row.missing -= 1
        if completion.error is not None:
            row.fault = ApiError("internal_error", completion.error, status=500)
        elif completion.finish_reason == "cancelled":
            row.was_ended = True
        try:
            row.samples[completion.sample] = read_sample(completion, self._context.encoding)
        except Exception as error:
            row.fault = _fault(error)
        if row.missing:
            return
        del self._pending[completion.id]
        is_late = completion.id in self._watch.late
        self._watch.end(completion.id)
        if row.was_ended and is_late:
            message = f"was computed for more than {self._watch.limits.row_seconds:g} seconds"
            row.fault = ApiError("row_timeout", message, status=408)
        elif row.was_ended and self._watch.limits.stopped is not None:
            return
        samples = [row.samples[index] for index in sorted(row.samples)]
        document: JsonObject = {}
        if row.fault is None:
            try:
                document = answer_row(
                    row.envelope,
                    row.prepared,
                    samples,
                    self._context.encoding,
                    model=self._form.model,
                    run=self._run,
                    reasoning_field=self._form.reasoning_field,
                )
            except Exception as error:
                row.fault = _fault(error)
        if row.fault is not None:
            self._refuse(row.envelope, row.fault)
            self._end_if_all_fail()
            return
        self._out.append(row.envelope.line, document)
        self._count(samples)

    def _requests(self, source: Source) -> Iterator[Request]:
        """Yields the requests of lines without a row. Writes error rows for bad lines on the way."""
        for number, raw in source.read():
            if self._watch.limits.stopped is not None:
                return
            if number in self._out.done:
                continue
            if not source.has(number):
                self._note_id(raw, number)
                continue
            row = self._read(raw, number)
            if row is not None:
                request = row.prepared.request
                self._pending[request.id] = row
                self._watch.begin(request.id)
                yield request

    def _read(self, raw: bytes, number: int) -> _Row | None:
        """Returns the row to be answered; None if the line gets an error row now."""
        envelope = Envelope.unknown(number)
        try:
            document, envelope = read_line(raw, number)
            check_id(envelope, self._ids)
            prepared = prepare(document, envelope, self._context)
            if self._form.hide_reasoning:
                prepared = dataclasses.replace(prepared, with_reasoning=False)
            self._count_unknown(prepared.unknown)
            return _Row(envelope, prepared, missing=prepared.request.sampling.n)
        except BatchError:
            raise
        except ApiError as error:
            self._refuse(envelope, error)
        except Exception as error:
            self._refuse(envelope, _fault(error))
        if not self._pending:  # else an answer may be on its way
            self._end_if_all_fail()
        return None

    def _end_if_all_fail(self) -> None:
        """Ends the run if error rows are all that comes, and more of them came than are allowed."""
        limits, errors = self._watch.limits, self._errors_in_succession
        if limits.max_errors is not None and errors > max(limits.max_errors, FEWEST_ERRORS - 1):
            limits.drain(f"because the last {errors} rows all failed", 0.0)

    def _note_id(self, raw: bytes, number: int) -> None:
        """Notes the id of another shard's line, which a line of this one must not have."""
        with contextlib.suppress(ApiError):
            _, envelope = read_line(raw, number)
            check_id(envelope, self._ids)

    def _refuse(self, envelope: Envelope, error: ApiError) -> None:
        self._out.append(envelope.line, error_row(envelope, error, run=self._run))
        self._report.errors += 1
        self._errors_in_succession += 1
        self._bar.update()
        self._on_row(False)

    def _count_unknown(self, unknown: Iterable[UnknownField]) -> None:
        """Counts unknown fields, but not more different names than fit in memory."""
        counts = self._report.unknown_fields
        for field in unknown:
            if field in counts or len(counts) < _MAX_UNKNOWN:
                counts[field] += 1

    def _count(self, samples: list[Sample]) -> None:
        report, usage = self._report, usage_of(samples)
        report.answered += 1
        self._errors_in_succession = 0
        report.prompt_tokens += usage.prompt_tokens
        report.cached_tokens += usage.cached_tokens
        report.generated_tokens += usage.generated_tokens
        report.reasoning_tokens += usage.reasoning_tokens
        for sample in samples:
            report.malformed += bool(sample.diagnostics)
            report.finish_reasons[sample.finish_reason] += 1
        report.elapsed_seconds = time.monotonic() - self._started
        self._bar.set_postfix_str(f"{report.generated_tokens_per_second:.0f} tok/s", refresh=False)
        self._bar.update()
        self._on_row(True)


def _fault(error: Exception) -> ApiError:
    """The error row's error for a fault of this program rather than of the row. It does not stop the run."""
    return ApiError("internal_error", f"{type(error).__name__}: {' '.join(str(error).split())}", status=500)


def _bar(rows: int, done: int, *, shown: bool) -> tqdm:
    interval = 0.1 if sys.stderr.isatty() else 10.0  # a log gets a line now and then
    return tqdm(
        total=rows,
        initial=done,
        disable=not shown,
        unit="row",
        file=sys.stderr,
        mininterval=interval,
        dynamic_ncols=True,
    )
