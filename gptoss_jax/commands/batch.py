"""`gptoss-jax batch`: answers a file of requests."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gptoss_jax.commands.batch_limits import (
    add_limit_options,
    check_limits,
    draining_on_sigterm,
    limits_of,
)
from gptoss_jax.commands.options import (
    add_header_guard_option,
    add_model_options,
    add_sampling_options,
    check_checkpoint,
    dtype_name,
    load_engine,
    sampling_of,
    whole_number,
)
from gptoss_jax.commands.parsing import CommandError

if TYPE_CHECKING:
    from gptoss_jax.batch import OpenBatch
    from gptoss_jax.engine import Engine
    from harmony import HarmonyEncoding

HISTORIES = ("guide", "compatible", "all")
"""The same as in `gptoss_jax.openai_api.rendering`, which is slow to import."""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command and its options."""
    parser = commands.add_parser(
        "batch",
        help="answer a file of requests",
        description="Answer a JSONL file of requests, in OpenAI's Batch format or as "
        '{"id", "messages"} or {"id", "prompt"}, one row of output for each. '
        "The same command continues a run that was stopped.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "input",
        metavar="IN.jsonl",
        help="the requests, one on each line, plain or gzip; - for standard input",
    )
    parser.add_argument(
        "--output",
        required=True,
        metavar="OUT.jsonl",
        help="the answers, added line by line as they finish; OUT.jsonl.run.json holds the settings. - for "
        "standard output: then a run that was stopped cannot be continued",
    )
    existing = parser.add_mutually_exclusive_group()
    existing.add_argument("--overwrite", action="store_true", help="start anew, even if the output exists")
    existing.add_argument(
        "--retry-errors",
        action="store_true",
        help="answer lines with an error row again; --max-length, --strict and --ignore-unknown-tools may "
        "then differ from the earlier run's",
    )
    parser.add_argument(
        "--max-errors",
        type=whole_number(0),
        metavar="N",
        help="exit with code 1 if the output has more than N error rows (default: no limit); the run ends "
        "early if more than N rows in succession, at least 100, become error rows",
    )
    parser.add_argument(
        "--strict",
        action="store_true",
        help="give rows with an unknown field an error row (default: count such fields in the report)",
    )
    parser.add_argument(
        "--ignore-unknown-tools",
        action="store_true",
        help="leave out tools that are no functions (default: their row becomes an error row)",
    )
    parser.add_argument(
        "--history",
        choices=HISTORIES,
        default="guide",
        metavar="WHAT",
        help="how much earlier reasoning stays in prompts: guide, as the model was trained (default); "
        "compatible, as openai-harmony does; or all",
    )
    parser.add_argument(
        "--shard",
        metavar="I/N",
        help="answer only every Nth line, from line I + 1 on, into an output of its own: OUT.jsonl becomes "
        "OUT-0000I-of-0000N.jsonl, and `gptoss-jax merge` joins them. auto takes I and N, and auto/N takes "
        "I, from the variables of a Kubernetes Job, a TPU pod or Slurm",
    )
    parser.add_argument(
        "--check",
        action=_CheckOnly,
        nargs=0,
        default=False,
        help="answer nothing, and need no --output: print each line that would become an error row, and "
        "counts; exit with code 1 if there is one. Loads no model",
    )
    parser.add_argument("--report", metavar="FILE.json", help="write the report to this file too, as JSON")
    add_model_options(parser, slots=True)
    add_sampling_options(parser)
    add_header_guard_option(parser)
    add_limit_options(parser)
    parser.set_defaults(run=run)


class _CheckOnly(argparse.Action):
    """An option that makes `--output` needless."""

    def __call__(self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, *_: object) -> None:
        """Sets the option."""
        namespace.check = True
        for action in parser._actions:
            if action.dest == "output":
                action.required = False


def run(options: argparse.Namespace) -> int:
    """Runs the command."""
    check_limits(options)
    if options.check:
        return _check(options)
    if options.shard is not None:
        _take_shard(options)
    if options.distributed is not None:
        return _run_distributed(options)
    with _open(options) as batch:
        _take_over(options, batch.run)
        engine, encoding, _ = load_engine(options, options.slots, announce=True)
        with engine:
            return _answer(options, batch, engine, encoding)


def _check(options: argparse.Namespace) -> int:
    """Prints what is wrong with the input's lines. Returns 1 if anything is."""
    import datetime

    from gptoss_jax.batch.check import Check, check_input
    from gptoss_jax.vocabulary import load_encoding_for

    checkpoint = check_checkpoint(options.checkpoint)
    found = Check()
    for problem in check_input(
        options.input,
        load_encoding_for(checkpoint),
        found,
        vocabulary_size=checkpoint.config.vocabulary_size,
        max_length=options.max_length or checkpoint.config.context_length,
        sampling=sampling_of(options),
        effort=options.effort,
        date=options.date or datetime.date.today().isoformat(),
        history=options.history,
        strict=options.strict,
        ignore_unknown_tools=options.ignore_unknown_tools,
    ):
        print(f"line {problem.line}: {problem.code}: {problem.message}")
    print(found)
    return 1 if found.problems else 0


def _take_shard(options: argparse.Namespace) -> None:
    """Makes a `Shard` of the option, and gives the shard an output of its own."""
    from gptoss_jax.batch.shards import shard_of

    options.shard = shard_of(options.shard)
    if options.output == "-":
        raise CommandError(
            "the output is standard output: with --shard it must be a file, which can be merged"
        )
    options.output = str(options.shard.path(options.output))
    if options.report:
        options.report = str(options.shard.path(options.report))


def _run_distributed(options: argparse.Namespace) -> int:
    """Runs the command in one of several processes.

    Only the first process opens the files, and only after all have connected: if it failed before, the others
    would wait for it.
    """
    engine, encoding, _ = load_engine(options, options.slots, announce=True)
    with engine:
        if not engine.is_leader:
            engine.follow()
            return 0
        with _open(options) as batch:
            return _answer(options, batch, engine, encoding)


def _open(options: argparse.Namespace) -> OpenBatch:
    """Opens the run's files, and checks all that can be checked without a model and without jax."""
    from gptoss_jax.batch import open_batch

    _check_report(options)
    return open_batch(
        options.input,
        options.output,
        sampling=sampling_of(options),
        seed=options.seed,
        effort=options.effort,
        date=options.date,
        model=Path(options.checkpoint).name,
        settings={
            "checkpoint": checkpoint_fingerprint(check_checkpoint(options.checkpoint).path),
            "dtype": options.dtype,
            "kv_dtype": options.kv_dtype or options.dtype,
            "max_length": options.max_length,
        },
        history=options.history,
        strict=options.strict,
        ignore_unknown_tools=options.ignore_unknown_tools,
        header_guard=options.header_guard,
        overwrite=options.overwrite,
        retry_errors=options.retry_errors,
        shard=options.shard,
    )


def _take_over(options: argparse.Namespace, run: Mapping[str, Any]) -> None:
    """Sets options that were not given to their values in the continued run."""
    for name in ("dtype", "kv_dtype", "max_length"):
        if getattr(options, name) is None:
            setattr(options, name, run[name])


def _answer(options: argparse.Namespace, batch: OpenBatch, engine: Engine, encoding: HarmonyEncoding) -> int:
    dtype, limits = dtype_name(options), limits_of(options)
    settled = {
        "dtype": dtype,
        "kv_dtype": options.kv_dtype or dtype,
        "max_length": engine.max_length,
    }
    try:
        with draining_on_sigterm(limits):
            report = batch.answer(engine, encoding, settled=settled, progress=True, limits=limits)
    except KeyboardInterrupt:
        hint = "" if batch.writes_standard_output else "; the same command continues from here"
        print(f"gptoss-jax: interrupted{hint}", file=sys.stderr)
        return 130
    if report.stopped:
        hint = "" if batch.writes_standard_output else "; the same command continues"
        rows = f"{report.unanswered} of {report.rows} rows left"
        print(f"gptoss-jax: stopped {report.stopped}, {rows}{hint}", file=sys.stderr)
    print(report, file=sys.stderr if batch.writes_standard_output else sys.stdout)
    if options.report:
        try:
            Path(options.report).write_text(json.dumps(report.as_json(), indent=2) + "\n", encoding="utf-8")
        except OSError as error:
            raise CommandError(f"cannot write {options.report}: {error.strerror or error}") from None
    return report.exit_code(options.max_errors)


def _check_report(options: argparse.Namespace) -> None:
    """Refuses a report that cannot be written, or that would replace the input or the output."""
    if not options.report:
        return
    path = Path(options.report)
    if path.is_dir():
        raise CommandError(f"cannot write {path}: it is a folder")
    if not path.parent.is_dir():
        raise CommandError(f"cannot write {path}: there is no folder {path.parent}")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise CommandError(f"cannot write {path}: permission denied")
    for name in (options.input, options.output, f"{options.output}.run.json", f"{options.output}.index"):
        if name != "-" and path.resolve() == Path(name).resolve():
            raise CommandError(f"the report and another file of this run are both {path}: give another name")


def checkpoint_fingerprint(folder: Path) -> str:
    """A hash that distinguishes checkpoints without reading them completely.

    It covers the configuration, the vocabulary, the source that a conversion recorded, and each safetensors
    file's name, size, and first and last MiB. Moving the checkpoint, or other files in its folder, do not
    change it.
    """
    ends = 1 << 20
    digest = hashlib.sha256()
    named = [folder / name for name in ("config.json", "checkpoint.json", "vocabulary.tiktoken")]
    for path in [*named, *sorted(folder.glob("*.safetensors"))]:
        if not path.is_file():
            continue
        size = path.stat().st_size
        digest.update(json.dumps([path.name, size]).encode())
        with open(path, "rb") as file:
            digest.update(file.read(ends))
            if size > ends:
                file.seek(max(ends, size - ends))
                digest.update(file.read())
    return digest.hexdigest()
