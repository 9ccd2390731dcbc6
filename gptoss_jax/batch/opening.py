"""A batch run in two steps: `open_batch` checks files and arguments, `OpenBatch.answer` answers the rows.

The first step needs no model and does not import jax.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict, Unpack

from gptoss_jax.batch.errors import BatchError
from gptoss_jax.batch.limits import Limits
from gptoss_jax.batch.output import Output, OutputFile
from gptoss_jax.batch.report import BatchReport
from gptoss_jax.batch.shards import Shard, noted
from gptoss_jax.batch.source import STANDARD, Source
from gptoss_jax.batch.standard_output import StandardOutput

if TYPE_CHECKING:
    from gptoss_jax.batch.rows import RowEngine
    from gptoss_jax.engine import Engine, SamplingParams
    from gptoss_jax.openai_api.rendering import History
    from harmony import HarmonyEncoding
    from harmony.json_types import Json

_FORMAT = 4
"""The version of the rows' form and of how lines become requests. A run continues only one with the same."""

_NOTED_SAMPLING = ("temperature", "top_p", "top_k", "max_tokens")
_STANDARD_OUTPUTS = ("/dev/stdout", "/dev/fd/1", "/proc/self/fd/1")
_REFUSAL_SETTINGS = frozenset({"max_length", "strict", "ignore_unknown_tools"})
"""Settings that decide which rows are refused. They may change when error rows are answered again."""


class BatchArguments(TypedDict, total=False):
    """The keywords of `open_batch`."""

    sampling: SamplingParams | None
    seed: int
    effort: str | None
    date: str | None
    model: str
    settings: Mapping[str, Json] | None
    history: History
    strict: bool
    ignore_unknown_tools: bool
    header_guard: bool
    reasoning_share: float | None
    reasoning_field: str
    hide_reasoning: bool
    overwrite: bool
    retry_errors: bool
    shard: Shard | None


class OpenBatch:
    """A batch run whose input and output are open and match. Use it as a context manager.

    Attributes:
        run: everything that the answers depend on, as it is stored beside the output. A setting that is None
            gets its value when the run begins.
    """

    def __init__(
        self,
        source: Source,
        output: Output,
        *,
        sampling: SamplingParams,
        seed: int,
        effort: str | None,
        model: str,
        reasoning_share: float | None,
        reasoning_field: str,
        hide_reasoning: bool,
    ):
        self._source, self._output = source, output
        self._sampling, self._seed, self._effort, self._model = sampling, seed, effort, model
        self._reasoning_share = reasoning_share
        self._reasoning_field, self._hide_reasoning = reasoning_field, hide_reasoning

    @property
    def run(self) -> Mapping[str, Json]:
        """Everything that the answers depend on; see the class."""
        return self._output.run

    @property
    def writes_standard_output(self) -> bool:
        """True if the rows go to standard output. Then nothing else may be printed there."""
        return isinstance(self._output, StandardOutput)

    @property
    def answered(self) -> int:
        """How many rows of the output are answers. Before `answer`, those of an earlier run."""
        return len(self._output.done) - self.errors

    @property
    def errors(self) -> int:
        """How many rows of an earlier run are error rows."""
        return len(self._output.failed)

    def answer(
        self,
        engine: RowEngine,
        encoding: HarmonyEncoding,
        *,
        settled: Mapping[str, Json] | None = None,
        progress: bool = False,
        on_row: Callable[[bool], None] | None = None,
        limits: Limits | None = None,
    ) -> BatchReport:
        """Answers every line that has no row yet.

        Args:
            engine: generates the completions, such as an `Engine`; it must have the stop tokens of
                `encoding`, and `encoding` itself. With several processes, only the first makes this call.
            encoding: renders prompts and parses completions.
            settled: the values of the settings that were None when the run was opened.
            progress: True shows a progress bar on standard error.
            on_row: called for each row when it is in the output: with True for an answer, with False for an
                error row.
            limits: what ends rows, or the run, before their time; None for nothing. Those that end requests
                which the engine has need one that can cancel them, as `Engine` can.

        Raises:
            BatchError: the run that is continued had other settings, the input changed in the meantime, or
                the output cannot be written.
        """
        from gptoss_jax.batch.run import RowForm, answer_rows

        self._output.begin(settled or {})
        return answer_rows(
            self._source,
            self._output,
            engine=engine,
            encoding=encoding,
            sampling=self._sampling,
            seed=self._seed,
            effort=self._effort,
            reasoning_share=self._reasoning_share,
            form=RowForm(self._model, self._reasoning_field, self._hide_reasoning),
            progress=progress,
            on_row=on_row,
            limits=limits or Limits(),
        )

    def close(self) -> None:
        """Makes the rows durable and closes the files."""
        with contextlib.closing(self._source):
            self._output.close()

    def __enter__(self) -> OpenBatch:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def open_batch(
    source: str | Path,
    output: str | Path,
    *,
    sampling: SamplingParams | None = None,
    seed: int = 0,
    effort: str | None = None,
    date: str | None = None,
    model: str = "gpt-oss",
    settings: Mapping[str, Json] | None = None,
    history: History = "guide",
    strict: bool = False,
    ignore_unknown_tools: bool = False,
    header_guard: bool = True,
    reasoning_share: float | None = None,
    reasoning_field: str = "reasoning",
    hide_reasoning: bool = False,
    overwrite: bool = False,
    retry_errors: bool = False,
    shard: Shard | None = None,
) -> OpenBatch:
    """Opens the input and output of a run, and checks all that can be checked before a model is loaded.

    Args:
        source: the file of requests, in the forms of `gptoss_jax.batch.rows`, plain or gzip; "-" for standard
            input.
        output: the file of answers. An existing one is continued if it comes from the same input and
            arguments. "-" for standard output: only rows are written there, and no run is continued.
        sampling: the sampling parameters for rows that do not set them. None for the defaults: temperature 1,
            top-p 1, and no limit but the context.
        seed: the run's seed. The seed of a row that has none is derived from it and the row's id.
        effort: the reasoning effort, "low", "medium" or "high", for rows that do not set it.
        date: the date in the system message, ``YYYY-MM-DD``. None for that of the continued run, else today.
        model: the model's name in the rows.
        settings: everything else that the answers depend on, such as the checkpoint, as JSON. A value of None
            is taken from the continued run; for a new run, `OpenBatch.answer` gets it in `settled`.
        history: how much of the earlier chain of thought stays in prompts: see
            `gptoss_jax.openai_api.rendering.History`.
        strict: True makes a row with an unknown field an error row; False counts such fields in the report.
        ignore_unknown_tools: True leaves out tools that are no functions; False makes their row an error row.
        header_guard: True lets headers of answers name only the tools and channels that their row declares;
            False leaves headers free.
        reasoning_share: the part of the tokens behind the prompt that rows without a reasoning budget may
            reason for; None for no limit.
        reasoning_field: the field of chat messages that has the chain of thought, in rows of OpenAI's form.
        hide_reasoning: True leaves the chain of thought out of all rows, whatever they say.
        overwrite: True begins a new run even if `output` exists.
        retry_errors: True answers the lines with error rows again. Then `strict`, `ignore_unknown_tools` and
            the setting "max_length" may differ from the earlier run's, as they decide which rows are refused.
        shard: which lines of the input are answered, into an output of their own that
            `gptoss_jax.batch.merging.merge` joins with the others; None for all lines. Answers are the same.

    Raises:
        BatchError: the input cannot be read; or the output cannot be written, is being written by another
            run, or belongs to another input or other settings.
    """
    from gptoss_jax.engine.request import SamplingParams
    from gptoss_jax.openai_api.rendering import check_history

    sampling = sampling or SamplingParams()
    history = check_history(history)
    if date is not None and not _is_date(date):
        raise BatchError(f"date is {date!r}: it must be a day as YYYY-MM-DD")
    to_standard_output = str(output) in _STANDARD_OUTPUTS or output == STANDARD
    if to_standard_output and retry_errors:
        raise BatchError("the output is standard output: it has no error rows that could be answered again")
    if not to_standard_output and str(output).endswith(".gz"):
        raise BatchError(f"{output} ends in .gz: the output is not compressed, give a name that says so")
    with contextlib.ExitStack() as on_failure:
        requests = on_failure.enter_context(Source(source, shard))
        _refuse_input_as_output(requests, output, to_standard_output)
        run = {
            "format": _FORMAT,
            "input_sha256": requests.sha256,
            "seed": seed,
            "sampling": {name: getattr(sampling, name) for name in _NOTED_SAMPLING},
            "effort": effort,
            "history": history,
            "strict": strict,
            "ignore_unknown_tools": ignore_unknown_tools,
            "header_guard": header_guard,
            "date": date or datetime.date.today().isoformat(),
            **(settings or {}),
            **({} if shard is None else {"shard": noted(shard, requests.rows)}),
        }
        unsettled = {name for name, value in (settings or {}).items() if value is None}
        rows: Output
        if to_standard_output:
            rows = StandardOutput(run)
        else:
            rows = OutputFile(
                Path(output),
                run,
                overwrite=overwrite,
                retry_errors=retry_errors,
                inherited=unsettled | (set() if date else {"date"}),
                changeable=_REFUSAL_SETTINGS,
            )
        on_failure.pop_all()
        return OpenBatch(
            requests,
            rows,
            sampling=sampling,
            seed=seed,
            effort=effort,
            model=model,
            reasoning_share=reasoning_share,
            reasoning_field=reasoning_field,
            hide_reasoning=hide_reasoning,
        )


def run_batch(
    source: str | Path,
    output: str | Path,
    *,
    engine: Engine,
    encoding: HarmonyEncoding,
    progress: bool = False,
    **arguments: Unpack[BatchArguments],
) -> BatchReport:
    """Answers every line of a JSONL file that has no row in `output` yet.

    Rows are appended as soon as they are finished, in any order. A line that cannot be answered gets an error
    row, and the run continues. Blank lines are skipped. Of the whole file, only the rows' ids are kept in
    memory. `gptoss_jax.batch.answers` describes the rows, and `gptoss_jax.batch.output` how a killed run is
    continued.

    The arguments and errors are those of `open_batch` and `OpenBatch.answer`.
    """
    with open_batch(source, output, **arguments) as batch:
        return batch.answer(engine, encoding, progress=progress)


def _refuse_input_as_output(source: Source, output: str | Path, to_standard_output: bool) -> None:
    try:
        status = os.fstat(sys.stdout.fileno()) if to_standard_output else os.stat(output)
    except (OSError, ValueError, AttributeError):  # it does not exist yet, or is no real file
        return
    if source.is_regular and source.is_same_file(status):
        raise BatchError(f"{output} is the input: the output must be another file")


def _is_date(text: str) -> bool:
    try:
        return datetime.date.fromisoformat(text).isoformat() == text
    except ValueError:
        return False
