"""`gptoss-jax eval`: evaluates a checkpoint, or a model behind a server."""

from __future__ import annotations

import argparse
import contextlib
import datetime
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from gptoss_jax import terminal
from gptoss_jax.commands.grading import (
    add_grader_options,
    check_grader,
    check_grader_options,
    open_grader,
)
from gptoss_jax.commands.here_or_server import (
    KEY_VARIABLE,
    MODEL_OPTIONS,
    check_choice,
    defaults_of,
    server_key,
)
from gptoss_jax.commands.options import (
    add_header_guard_option,
    add_model_options,
    add_sampling_options,
    check_checkpoint,
    dtype_name,
    load_engine,
    sampling_of,
    start_jax,
    whole_number,
)
from gptoss_jax.commands.parsing import CommandError

if TYPE_CHECKING:
    from gptoss_jax.engine import Engine
    from gptoss_jax.evals.data import DataFile
    from gptoss_jax.evals.grader import Grader
    from gptoss_jax.evals.run import Run
    from gptoss_jax.evals.types import Ask, Evaluation
    from harmony import HarmonyEncoding
    from harmony.json_types import Json, JsonObject

_HERE = {**MODEL_OPTIONS, "slots": "--slots"}
"""Options of a model in this process."""

_SERVER = ("api", "model", "api_key_env", "parallel", "no_seed")
"""Options of a server."""

_ATTEMPTS = {"aime": 16, "gpqa": 8, "healthbench": 1}
"""Attempts at each problem unless `--attempts` says otherwise."""

_CONNECTIONS = 64
"""Requests that a server gets at a time, unless `--parallel` says otherwise."""

_SLOTS = 32
"""Sequences that an engine decodes at a time, unless `--slots` says otherwise."""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command and its options."""
    parser = commands.add_parser(
        "eval",
        help="evaluate a checkpoint",
        description="Run an evaluation and print its scores. docs/evals.md says where the data comes from.",
        allow_abbrev=False,
    )
    evaluations = parser.add_subparsers(dest="evaluation", metavar="EVALUATION", required=True)
    aime = _add_evaluation(
        evaluations,
        "aime",
        "AIME 2025: 30 problems of mathematics, 16 attempts at each",
        "aime2025-I.jsonl and aime2025-II.jsonl",
    )
    gpqa = _add_evaluation(
        evaluations,
        "gpqa",
        "GPQA diamond: 198 questions of science with four choices, 8 attempts at each",
        "gpqa_diamond.csv",
    )
    healthbench = _add_evaluation(
        evaluations,
        "healthbench",
        "HealthBench: 5,000 conversations about health, graded by a model against rubrics",
        "the part's file",
    )
    healthbench.add_argument(
        "--subset",
        choices=("all", "hard", "consensus"),
        default="all",
        help="the part of the data: all (default), hard (1,000 conversations) or consensus (3,671)",
    )
    add_grader_options(healthbench)
    for parser in (aime, gpqa, healthbench):
        parser.set_defaults(run=run)
    tiny = evaluations.add_parser(
        "tiny",
        help="held-out requests of the kinds the tiny model was trained on",
        description="Held-out requests of the kinds the tiny model was trained on.",
        allow_abbrev=False,
    )
    tiny.add_argument(
        "--checkpoint", default="tiny", metavar="DIR", help='a checkpoint folder, or "tiny" (default)'
    )
    tiny.add_argument(
        "--count", type=whole_number(1), default=500, metavar="N", help="requests of each kind (default: 500)"
    )
    tiny.set_defaults(run=_run_tiny)
    report = evaluations.add_parser(
        "report",
        help="the figures and the page of a run once more, also while it is at work",
        description="Write OUT.report.json and OUT.html anew from the answers in OUT.jsonl, and print the "
        "figures. The run need not be finished: what is missing is told.",
        allow_abbrev=False,
    )
    report.add_argument("output", metavar="OUT.jsonl", help="the output of a run")
    report.set_defaults(run=_run_report)


def _add_evaluation(
    evaluations: argparse._SubParsersAction[argparse.ArgumentParser], name: str, what: str, files: str
) -> argparse.ArgumentParser:
    """Adds an evaluation with the options that all of them have."""
    parser = evaluations.add_parser(
        name,
        help=what,
        description=f"{what}. The same command continues a run that was stopped.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--data",
        required=True,
        metavar="DIR",
        help=f'the folder that holds {files}, or "sample" for three rows of our own making',
    )
    parser.add_argument(
        "--output",
        required=True,
        metavar="OUT.jsonl",
        help="the answers with their grades, added line by line; OUT.jsonl.run.json holds the settings, "
        "OUT.report.json the scores, OUT.html every answer to read",
    )
    parser.add_argument(
        "--attempts",
        type=whole_number(1),
        default=_ATTEMPTS[name],
        metavar="N",
        help=f"attempts at each problem (default: {_ATTEMPTS[name]})",
    )
    parser.add_argument(
        "--examples",
        type=whole_number(1),
        metavar="N",
        help="only N of the problems, drawn as the published harness draws them (default: all)",
    )
    existing = parser.add_mutually_exclusive_group()
    existing.add_argument("--overwrite", action="store_true", help="start anew, even if the output exists")
    existing.add_argument(
        "--retry-errors",
        action="store_true",
        help="try again where an attempt has an error in place of a grade",
    )
    server = parser.add_argument_group("server", "in place of a model in this process")
    server.add_argument("--url", metavar="URL", help="a server, such as http://127.0.0.1:8000/v1")
    server.add_argument(
        "--api",
        choices=("responses", "chat"),
        help="which of its APIs to use: responses (default), or chat for Chat Completions",
    )
    server.add_argument("--model", metavar="NAME", help="the model's name (default: the server's only one)")
    server.add_argument(
        "--api-key-env",
        metavar="VARIABLE",
        help=f"the environment variable that holds the API key (default: {KEY_VARIABLE})",
    )
    server.add_argument(
        "--parallel",
        type=whole_number(1),
        metavar="N",
        help=f"requests that the server gets at a time (default: {_CONNECTIONS})",
    )
    server.add_argument(
        "--no-seed", action="store_true", help="send no seeds, to a server that refuses a body with one"
    )
    add_model_options(parser, slots=True)
    add_sampling_options(parser)
    add_header_guard_option(parser)
    parser.set_defaults(model_defaults=defaults_of(parser, _HERE))
    return parser


def run(options: argparse.Namespace) -> int:
    """Runs an evaluation."""
    if options.evaluation == "healthbench":
        check_grader_options(options)
    check_choice(options, _HERE, options.model_defaults, _SERVER)
    try:
        return _run_in_several(options) if options.distributed is not None else _run(options)
    except KeyboardInterrupt:
        print("gptoss-jax: interrupted; the same command continues from here", file=sys.stderr)
        return 130


def _run(options: argparse.Namespace) -> int:
    with _open(options) as opened:
        if opened.is_answered:
            return _finish(options, opened)
        if options.url is not None:
            with _server(options, opened.run) as (ask, settled):
                parallel = options.parallel or _CONNECTIONS
                opened.answer(ask, settled=settled, parallel=parallel, progress=True)
            return _finish(options, opened)
        for name in ("dtype", "kv_dtype", "max_length"):
            if getattr(options, name) is None:
                setattr(options, name, opened.run[name])
        engine, encoding, _ = load_engine(options, options.slots, announce=True)
        _answer_here(options, opened, engine, encoding)
        del engine  # a grader may need its memory
        return _finish(options, opened)


def _run_in_several(options: argparse.Namespace) -> int:
    """Runs the part of one of several processes."""
    # All processes connect first: if one failed before, the others would wait for it.
    engine, encoding, _ = load_engine(options, options.slots, announce=True)
    if not engine.is_leader:
        with engine:
            engine.follow()
        return 0
    with contextlib.ExitStack() as files:
        with contextlib.ExitStack() as on_failure:
            on_failure.callback(engine.close)
            opened = files.enter_context(_open(options))
            on_failure.pop_all()
        _answer_here(options, opened, engine, encoding)
        return _finish(options, opened)


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


@contextlib.contextmanager
def _open(options: argparse.Namespace) -> Iterator[Run]:
    """Reads the data and opens the output: all that can be checked without a model."""
    with contextlib.ExitStack() as files:
        grader = files.enter_context(open_grader(options)) if options.evaluation == "healthbench" else None
        opened = files.enter_context(_opened(options, grader))
        if grader is not None and not opened.is_answered:
            check_grader(options)
        yield opened


def _opened(options: argparse.Namespace, grader: Grader | None) -> Run:
    from gptoss_jax.evals.run import Run
    from gptoss_jax.evals.types import HARNESS_REVISION

    evaluation, files = _evaluation(options, grader)
    for file in files:
        print(f"data: {file}", file=sys.stderr)
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
        unsettled = {name for name in ("dtype", "kv_dtype", "max_length") if settings[name] is None}
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


def _fields(options: argparse.Namespace, effort: str) -> dict[str, Json]:
    """The fields of every request. One that would say what every server does anyway is left out."""
    fields: dict[str, Json] = {"reasoning_effort": effort, "temperature": options.temperature}
    if options.top_p != 1:
        fields["top_p"] = options.top_p
    if options.max_tokens is not None:
        fields["max_tokens"] = options.max_tokens
    return fields


@contextlib.contextmanager
def _server(options: argparse.Namespace, run: Mapping[str, Json]) -> Iterator[tuple[Ask, JsonObject]]:
    try:
        from gptoss_jax.evals.remote import ServerModel
    except ImportError as error:
        raise CommandError(f"--url needs the package {error.name}: pip install 'gptoss-jax[eval]'") from None
    model = options.model or run["model"]
    with ServerModel(
        options.url,
        None if model is None else str(model),
        api=options.api or "responses",
        key=server_key(options),
        connections=options.parallel or _CONNECTIONS,
    ) as server:
        yield server, {"model": server.name}


def _answer_here(options: argparse.Namespace, opened: Run, engine: Engine, encoding: HarmonyEncoding) -> None:
    """Answers what is missing, and closes the engine."""
    from gptoss_jax.evals.samplers import LocalModel

    dtype = dtype_name(options)
    settled: JsonObject = {
        "dtype": dtype,
        "kv_dtype": options.kv_dtype or dtype,
        "max_length": engine.max_length,
    }
    with LocalModel(
        engine,
        encoding,
        sampling=sampling_of(options),
        date=str(opened.run["date"]),
        header_guard=options.header_guard,
    ) as model:
        opened.answer(model, settled=settled, parallel=2 * (options.slots or _SLOTS), progress=True)


def _finish(options: argparse.Namespace, opened: Run) -> int:
    """Grades the answers that wait for a model's grade, and reports."""
    from gptoss_jax.evals.report import write_report

    if options.evaluation == "healthbench":
        opened.grade(parallel=options.grader_parallel, progress=True)
    opened.close()
    terminal.write(write_report(opened.path) + "\n")
    return 0


def _run_report(options: argparse.Namespace) -> int:
    from gptoss_jax.evals.report import write_report

    terminal.write(write_report(Path(options.output)) + "\n")
    return 0


def _run_tiny(options: argparse.Namespace) -> int:
    from gptoss_jax.evals import tiny

    start_jax()
    print(tiny.run(options.checkpoint, options.count))
    return 0
