"""The batch run: lines in, rows out, each line once."""

from __future__ import annotations

import dataclasses
import datetime
import hashlib
import json
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from tqdm import tqdm

from gptoss_jax.batch.answers import Sample, answer_row, error_row, read_sample, usage_of
from gptoss_jax.batch.fields import RowError
from gptoss_jax.batch.output import BatchError, OutputFile
from gptoss_jax.batch.report import BatchReport
from gptoss_jax.batch.rows import Envelope, Prepared, RowContext, envelope_of, parse_line, prepare
from gptoss_jax.engine import Completion, Request, SamplingParams

if TYPE_CHECKING:
    from gptoss_jax.engine import Engine
    from harmony import HarmonyEncoding

_FORMAT = 2
"""The version of the rows' shape and of how lines become requests; part of what a run's output belongs to."""


def run_batch(
    source: str | Path,
    output: str | Path,
    *,
    engine: Engine,
    encoding: HarmonyEncoding,
    sampling: SamplingParams | None = None,
    seed: int = 0,
    effort: str | None = None,
    date: str | None = None,
    model: str = "gpt-oss",
    settings: Mapping[str, Any] | None = None,
    overwrite: bool = False,
    progress: bool = False,
) -> BatchReport:
    """Answers every line of a JSONL file that `output` does not answer already.

    Rows are appended as they finish, in no fixed order; `gptoss_jax.batch.answers` gives their shape and
    `gptoss_jax.batch.output` how a killed run is continued. A line that cannot be answered gets an error row,
    and the run goes on. Blank lines are no rows. Memory does not grow with the file, but for each row's id.

    Args:
        source: the requests, in the forms of `gptoss_jax.batch.rows`.
        output: the answers; if it is there already it must come from the same input and arguments.
        engine: generates; its stop tokens and its encoding must be those of `encoding`. With several
            processes, that of the first: only it makes this call.
        encoding: renders prompts and parses completions.
        sampling: for rows that do not say (default: temperature 1, top-p 1, no limit but the context).
        seed: of the run; a row without a seed draws from this one and its id.
        effort: "low", "medium" or "high" for rows that do not say.
        date: the system message's date, ``YYYY-MM-DD`` (default: that of the run continued, or today).
        model: the model's name in the rows.
        settings: whatever else the answers depend on, such as the checkpoint; JSON.
        overwrite: start anew even if `output` is there.
        progress: show a bar on standard error.

    Raises:
        BatchError: the input cannot be read, or the output cannot be written or belongs to another run.
    """
    source, output = Path(source), Path(output)
    sampling = sampling or SamplingParams()
    if date is not None and not _is_date(date):
        raise BatchError(f"date is {date!r}: it must be a day as YYYY-MM-DD")
    with _open(source) as file:
        if output.exists() and output.samefile(source):
            raise BatchError(f"{output} is the input: the output must be another file")
        digest, rows = _survey(file)
        run = {
            "format": _FORMAT,
            "input_sha256": digest,
            "seed": seed,
            "sampling": {
                "temperature": sampling.temperature,
                "top_p": sampling.top_p,
                "top_k": sampling.top_k,
                "max_tokens": sampling.max_tokens,
            },
            "effort": effort,
            "date": date or datetime.date.today().isoformat(),
            **(settings or {}),
        }
        inherited = frozenset() if date else frozenset({"date"})
        with OutputFile(output, run, overwrite=overwrite, inherited=inherited) as out:
            context = RowContext(engine, encoding, sampling, seed, effort, out.run["date"])
            report = BatchReport(rows=rows, resumed=len(out.done))
            with _bar(rows, len(out.done), shown=progress) as bar:
                _Run(context, out, report, bar, model).answer(file)
            return report


@dataclasses.dataclass
class _Row:
    """A row that the engine has not finished: its samples so far, and what kept one from being read."""

    prepared: Prepared
    samples: dict[int, Sample] = dataclasses.field(default_factory=dict)
    fault: RowError | None = None
    left: int = 1


class _Run:
    """The state of one run between the reader, the engine and the output."""

    def __init__(self, context: RowContext, out: OutputFile, report: BatchReport, bar: tqdm, model: str):
        self._context, self._out, self._report, self._bar = context, out, report, bar
        self._model = model
        self._run = hashlib.sha256(json.dumps(out.run, sort_keys=True).encode()).hexdigest()
        self._pending: dict[str, _Row] = {}
        self._first_line: dict[str, int] = {}
        self._started = time.monotonic()

    def answer(self, file: BinaryIO) -> None:
        """Feeds the engine and writes what it finishes."""
        engine = self._context.engine
        preemptions = engine.statistics.preemptions
        for completion in engine.run(self._requests(file)):
            self._take(completion)
        self._report.elapsed_seconds = time.monotonic() - self._started
        self._report.preemptions = engine.statistics.preemptions - preemptions
        self._report.compiled_programs = engine.compiled_programs

    def _take(self, completion: Completion) -> None:
        """Takes in one sample; the row is written when it has them all."""
        row = self._pending[completion.id]
        row.left -= 1
        try:
            row.samples[completion.sample] = read_sample(completion, self._context.encoding)
        except Exception as error:
            row.fault = _fault(error)
        if row.left:
            return
        del self._pending[completion.id]
        samples = [row.samples[index] for index in sorted(row.samples)]
        document: dict[str, Any] = {}
        if row.fault is None:
            try:
                document = answer_row(row.prepared, samples, model=self._model, run=self._run)
            except Exception as error:
                row.fault = _fault(error)
        if row.fault is not None:
            self._refuse(row.prepared.envelope, row.fault)
            return
        self._out.append(row.prepared.envelope.line, document)
        self._count(samples)

    def _requests(self, file: BinaryIO) -> Iterator[Request]:
        """The requests still to be answered, read as the engine asks; bad lines are written on the way."""
        seen = hashlib.sha256()
        file.seek(0)
        for number, raw in enumerate(file, 1):
            seen.update(raw)
            if not raw.strip():
                continue
            prepared = self._read(raw, number)
            if prepared is not None:
                self._pending[prepared.request.id] = _Row(prepared, left=prepared.request.sampling.n)
                yield prepared.request
        if seen.hexdigest() != self._out.run["input_sha256"]:
            raise BatchError("the input was changed while it was being read: start anew with --overwrite")

    def _read(self, raw: bytes, number: int) -> Prepared | None:
        """The line's request; None if it has its row, be it one that this call wrote."""
        done = number in self._out.done
        envelope = Envelope.unknown(number)
        try:
            document = parse_line(raw)
            envelope = envelope_of(document, number)
            first = self._first_line.setdefault(envelope.key, number)
            if done:
                return None
            if first != number:
                raise RowError("duplicate_id", f"the id {envelope.id!r} is already that of line {first}")
            return prepare(document, envelope, self._context)
        except RowError as error:
            problem = error
        except Exception as error:
            problem = _fault(error)
        if not done:
            self._refuse(envelope, problem)
        return None

    def _refuse(self, envelope: Envelope, error: RowError) -> None:
        self._out.append(envelope.line, error_row(envelope, error, run=self._run))
        self._report.errors += 1
        self._bar.update()

    def _count(self, samples: list[Sample]) -> None:
        report, usage = self._report, usage_of(samples)
        report.answered += 1
        report.prompt_tokens += usage.prompt
        report.cached_tokens += usage.cached
        report.generated_tokens += usage.generated
        report.reasoning_tokens += usage.reasoning
        for sample in samples:
            report.malformed += bool(sample.answer.diagnostics)
            report.finish_reasons[sample.answer.finish_reason] += 1
        report.elapsed_seconds = time.monotonic() - self._started
        self._bar.set_postfix_str(f"{report.generated_tokens_per_second:.0f} tok/s", refresh=False)
        self._bar.update()


def _fault(error: Exception) -> RowError:
    """What a fault of this program, not of the row, looks like in the output: even that stops no run."""
    return RowError("internal_error", f"{type(error).__name__}: {' '.join(str(error).split())}", status=500)


def _open(source: Path) -> BinaryIO:
    try:
        return open(source, "rb")
    except OSError as error:
        raise BatchError(f"cannot read {source}: {error.strerror}") from None


def _survey(file: BinaryIO) -> tuple[str, int]:
    """The SHA-256 of a file and the number of its lines that are not blank."""
    digest, rows = hashlib.sha256(), 0
    for raw in file:
        digest.update(raw)
        rows += bool(raw.strip())
    return digest.hexdigest(), rows


def _is_date(text: str) -> bool:
    try:
        return datetime.date.fromisoformat(text).isoformat() == text
    except ValueError:
        return False


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
