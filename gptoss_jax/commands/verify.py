"""`gptoss-jax verify`: checks that this installation computes gpt-oss on its devices."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

from gptoss_jax.commands.options import add_model_options, dtype_name, start_jax


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command and its options."""
    parser = commands.add_parser(
        "verify",
        help="check that this installation computes gpt-oss",
        description="Check that this installation computes gpt-oss on the devices of this machine: files and "
        "weights of a checkpoint, operations against their definitions, log-probabilities against stored "
        "ones, tool calls, structured output, throughput. Prints one page, to be pasted into an issue. The "
        "exit code is 0 if nothing failed, 1 if something did, 2 if there is no checkpoint.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "checkpoint",
        nargs="?",
        default="tiny",
        metavar="CHECKPOINT",
        help='a checkpoint folder, or "tiny" for the one in the package (default)',
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="do not read all weights of a large checkpoint, and measure speed more shortly",
    )
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="write all figures to this file, too, as JSON"
    )
    add_model_options(parser, checkpoint=False, slots=True)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Runs the command."""
    from checkpoints.opening import find_checkpoint

    folder, _, _ = find_checkpoint(options.checkpoint)
    start_jax(options.distributed)

    import jax

    from gptoss_jax.sizes import MeshShape
    from gptoss_jax.verify.page import as_json, page, passed
    from gptoss_jax.verify.rows import without_paths
    from gptoss_jax.verify.run import Settings, verify

    memory = None if options.memory is None else max(1, int(options.memory * 2**30))
    settings = Settings(
        options.checkpoint,
        dtype_name(options),
        MeshShape(**options.mesh) if options.mesh else None,
        {
            "slots": options.slots,
            "max_length": options.max_length,
            "kv_dtype": options.kv_dtype,
            "memory": memory,
        },
        options.quick,
    )
    tells = jax.process_index() == 0
    began, rows = time.perf_counter(), []

    def begins(name: str) -> None:
        if tells:
            print(f"gptoss-jax: {name} ...", file=sys.stderr, flush=True)

    for row in verify(settings, begins):
        rows.append(row)
        if tells:
            print(f"gptoss-jax: {row.name} {row.status} ({row.seconds:.1f} s)", file=sys.stderr, flush=True)
    if not tells:
        return 0
    seconds = time.perf_counter() - began
    clean = without_paths(folder, options.checkpoint, Path.cwd())
    if options.json is not None:
        text = json.dumps(as_json(rows, seconds, clean), indent=2)
        options.json.write_text(text + "\n", encoding="utf-8")
    print(page(rows, seconds, clean), end="")
    return 0 if passed(rows) else 1
