"""`gptoss-jax batch`: a file of requests in, a file of answers out."""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from pathlib import Path

from gptoss_jax.commands.options import (
    add_model_options,
    add_sampling_options,
    dtype_name,
    load_engine,
    sampling_of,
)


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command and its options."""
    parser = commands.add_parser(
        "batch",
        help="answer a file of requests",
        description="Answer a JSONL file of requests, in OpenAI's Batch format or as "
        '{"id", "messages"} or {"id", "prompt"}, one row of output for each. '
        "A run that was stopped goes on where it was when the same command is given again.",
        allow_abbrev=False,
    )
    parser.add_argument("input", type=Path, metavar="IN.jsonl", help="the requests, one on each line")
    parser.add_argument(
        "--output",
        type=Path,
        required=True,
        metavar="OUT.jsonl",
        help="the answers, added line by line as they finish; OUT.jsonl.run.json says what made them",
    )
    parser.add_argument("--overwrite", action="store_true", help="start anew, even if the output is there")
    parser.add_argument("--report", type=Path, metavar="FILE.json", help="write the report here too, as JSON")
    add_model_options(parser, slots=True)
    add_sampling_options(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Runs the command."""
    from gptoss_jax.batch import BatchError, run_batch

    if options.distributed is None:  # else only the first process needs the files, and must not leave alone
        if not options.input.is_file():
            raise BatchError(f"cannot read {options.input}: no such file")
        if options.report and not options.report.parent.is_dir():
            raise BatchError(f"cannot write {options.report}: no such folder")
    engine, encoding, checkpoint = load_engine(options, options.slots, announce=True)
    with engine:
        if not engine.speaks:
            engine.follow()
            return 0
        try:
            report = run_batch(
                options.input,
                options.output,
                engine=engine,
                encoding=encoding,
                sampling=sampling_of(options),
                seed=options.seed,
                effort=options.effort,
                date=options.date,
                model=Path(options.checkpoint).name,
                settings={
                    "checkpoint": checkpoint_fingerprint(checkpoint.path),
                    "dtype": dtype_name(options),
                    "kv_dtype": options.kv_dtype or dtype_name(options),
                    "max_length": engine.max_length,
                },
                overwrite=options.overwrite,
                progress=True,
            )
        except KeyboardInterrupt:
            print("gptoss-jax: interrupted; the same command goes on from here", file=sys.stderr)
            return 130
    if options.report:
        options.report.write_text(json.dumps(report.as_json(), indent=2) + "\n", encoding="utf-8")
    print(report)
    return 0


def checkpoint_fingerprint(folder: Path) -> str:
    """A hash that tells checkpoints apart without reading them whole.

    It covers the configuration, the vocabulary, what a conversion noted of its source, and each safetensors
    file's name, size and first and last MiB. Neither moving a checkpoint nor what else lies in its folder
    changes it.
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
