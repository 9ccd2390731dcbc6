"""Runs an evaluation: what is checked, who answers, who grades, and the report."""

from __future__ import annotations

import argparse
import contextlib
import datetime
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from gptoss_jax.commands.evaluate import grading
from gptoss_jax.commands.evaluate.models import local_model, server_model, serving
from gptoss_jax.commands.options import check_checkpoint, load_engine
from gptoss_jax.commands.parsing import CommandError

if TYPE_CHECKING:
    from gptoss_jax.evals.data import DataFile
    from gptoss_jax.evals.grader import Grader
    from gptoss_jax.evals.run import Run
    from gptoss_jax.evals.types import Evaluation
    from harmony.json_types import Json, JsonObject

KEY_VARIABLE = "GPTOSS_JAX_API_KEY"

LOCAL = {
    "checkpoint": "--checkpoint",
    "dtype": "--dtype",
    "max_length": "--max-length",
    "kv_dtype": "--kv-dtype",
    "memory": "--memory",
    "mesh": "--mesh",
    "distributed": "--distributed",
    "slots": "--slots",
    "date": "--date",
    "header_guard": "--no-header-guard",
}
"""Options of a model in this process, which a server cannot be given."""

_OF_GRADER = frozenset({"dtype", "kv_dtype", "memory", "mesh", "slots"})
"""The part of `LOCAL` that a grader in this process has too."""

CONNECTIONS = 64
"""Requests that a server gets at a time, unless `--parallel` says otherwise."""

_SLOTS = 32
"""Sequences that an engine decodes at a time, unless `--slots` says otherwise."""

_GRADED_AT_ONCE = 16
"""Answers that are graded at a time, where each needs many calls of a grader."""

_SETTLED = ("dtype", "kv_dtype", "max_length")


def run(options: argparse.Namespace) -> int:
    """Runs the evaluation of the options. Returns the exit code."""
    _check_options(options)
    if options.distributed is not None:
        return _run_distributed(options)
    with _grader(options) as grader, _open(options, grader) as opened, _continuable() as interrupted:
        if opened.is_answered:
            pass
        elif options.url is not None:
            _ask_server(options, opened)
        else:
            for name in _SETTLED:
                if getattr(options, name) is None:
                    setattr(options, name, opened.run[name])
            with local_model(options, str(opened.run["date"])) as (model, settled):
                opened.answer(model, settled=settled, parallel=_parallel(options), progress=True)
        if not interrupted:
            _finish(opened)
    return 130 if interrupted else 0


def _run_distributed(options: argparse.Namespace) -> int:
    """Runs the evaluation in one of several processes.

    Only the first process opens the files, and only after all have connected: if it failed before, the others
    would wait for it.
    """
    engine, encoding, _ = load_engine(options, options.slots, announce=True)
    with engine:
        if not engine.is_leader:
            engine.follow()
            return 0
        with _grader(options) as grader, _open(options, grader) as opened, _continuable() as interrupted:
            if not opened.is_answered:
                with serving(options, engine, encoding, str(opened.run["date"])) as (model, settled):
                    opened.answer(model, settled=settled, parallel=_parallel(options), progress=True)
            _finish(opened)
    return 130 if interrupted else 0


@contextlib.contextmanager
def _continuable() -> Iterator[list[bool]]:
    """Says how to go on where a run is interrupted, or cannot go on now. Yields what is not empty then."""
    from gptoss_jax.evals.types import EvaluationError

    interrupted: list[bool] = []
    try:
        yield interrupted
    except KeyboardInterrupt:
        interrupted.append(True)
        print("gptoss-jax: interrupted; the same command continues from here", file=sys.stderr)
    except EvaluationError as error:
        raise EvaluationError(f"{error}; the same command continues from here") from error


def _finish(opened: Run) -> None:
    """Grades what a model must grade, and reports."""
    from gptoss_jax.evals.report import write_report

    opened.grade(parallel=_GRADED_AT_ONCE, progress=True)
    opened.close()
    print(write_report(opened.path))


def _parallel(options: argparse.Namespace) -> int:
    """Requests that an engine gets at a time: as many wait as run, so no slot is free."""
    return 2 * int(options.slots or _SLOTS)


def _ask_server(options: argparse.Namespace, opened: Run) -> None:
    key = os.environ.get(options.api_key_env or KEY_VARIABLE, "").strip()
    model, parallel = options.model or opened.run["model"], options.parallel or CONNECTIONS
    with server_model(
        options.url, None if model is None else str(model), options.api or "responses", key, parallel
    ) as server:
        opened.answer(server, settled={"model": server.name}, parallel=parallel, progress=True)


def _check_options(options: argparse.Namespace) -> None:
    """Refuses options that do not fit together.

    A server's need one, and those of a model in this process need that there is none.
    """
    has_grader = options.evaluation == "healthbench"
    if has_grader:
        grading.check_options(options)
    if options.url is None:
        given = {name: getattr(options, name) for name in ("api", "model", "api_key_env", "parallel")}
        for name, value in {**given, "no_seed": options.no_seed or None}.items():
            if value is not None:
                raise CommandError(f"--{name.replace('_', '-')} needs a server: give --url too")
        check_checkpoint(options.checkpoint)
        return
    shared = _OF_GRADER if has_grader and options.grader_checkpoint is not None else frozenset()
    for name, default in options.model_defaults.items():
        if getattr(options, name) != default and name not in shared:
            raise CommandError(
                f"{LOCAL[name]} is for a model in this process, and --url for a server: give one"
            )
    if options.api_key_env is not None and not os.environ.get(options.api_key_env):
        raise CommandError(f"--api-key-env is {options.api_key_env!r}: this environment variable is not set")


def _grader(options: argparse.Namespace) -> contextlib.AbstractContextManager[Grader | None]:
    if options.evaluation == "healthbench":
        return grading.opened_grader(options)
    return contextlib.nullcontext()


def _evaluation(options: argparse.Namespace, grader: Grader | None) -> tuple[Evaluation, list[DataFile]]:
    """Reads the data. Returns the evaluation and the files that it comes from."""
    if grader is not None:
        from gptoss_jax.evals.healthbench import HealthBench

        healthbench = HealthBench(options.data, options.subset, grader, options.examples)
        return healthbench, healthbench.files
    if options.evaluation == "aime":
        from gptoss_jax.evals.aime import Aime

        aime = Aime(options.data, options.examples)
        return aime, aime.files
    from gptoss_jax.evals.gpqa import Gpqa

    gpqa = Gpqa(options.data, options.examples)
    return gpqa, gpqa.files


def _open(options: argparse.Namespace, grader: Grader | None) -> Run:
    """Reads the data and opens the output: all that can be checked without a model."""
    from gptoss_jax.evals.run import Run
    from gptoss_jax.evals.types import HARNESS_REVISION

    evaluation, files = _evaluation(options, grader)
    for file in files:
        print(f"data: {file}", file=sys.stderr)
    if grader is not None:
        print(f"grader: {grader.model}", file=sys.stderr)
    effort = options.effort or "medium"
    settings: JsonObject = {
        "effort": effort,
        "temperature": options.temperature,
        "top_p": options.top_p,
        "max_tokens": options.max_tokens,
        "examples": options.examples,
        "data": {file.name: file.sha256 for file in files},
        "harness": HARNESS_REVISION,
    }
    if options.url is not None:
        settings |= {"url": options.url, "api": options.api or "responses", "model": options.model}
        unsettled = {"model"} if options.model is None else set()
    else:
        settings |= _local_settings(options)
        unsettled = {name for name in _SETTLED if settings[name] is None}
        unsettled |= {"date"} if options.date is None else set()
    return Run(
        evaluation,
        Path(options.output),
        attempts=options.attempts,
        fields=_fields(options, effort),
        seed=None if options.no_seed else options.seed,
        settings=settings,
        unsettled=unsettled,
        grading=None if grader is None else {"grader": grader.model.settings},
        overwrite=options.overwrite,
        retry_errors=options.retry_errors,
    )


def _local_settings(options: argparse.Namespace) -> JsonObject:
    from gptoss_jax.commands.batch import checkpoint_fingerprint

    path = check_checkpoint(options.checkpoint).path
    return {
        "model": path.name,
        "checkpoint": checkpoint_fingerprint(path),
        "dtype": options.dtype,
        "kv_dtype": options.kv_dtype or options.dtype,
        "max_length": options.max_length,
        "date": options.date or datetime.date.today().isoformat(),
        "header_guard": options.header_guard,
    }


def _fields(options: argparse.Namespace, effort: str) -> Mapping[str, Json]:
    """The fields of every request. One that says what every server does anyway is left out."""
    fields: dict[str, Json] = {"reasoning_effort": effort, "temperature": options.temperature}
    if options.top_p != 1:
        fields["top_p"] = options.top_p
    if options.max_tokens is not None:
        fields["max_tokens"] = options.max_tokens
    return fields
