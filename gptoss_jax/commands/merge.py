"""`gptoss-jax merge`: joins the outputs of a batch's shards."""

from __future__ import annotations

import argparse


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command and its options."""
    parser = commands.add_parser(
        "merge",
        help="join the outputs of a batch's shards",
        description="Join the outputs of `gptoss-jax batch --shard` into one, in the order of the input. All "
        "shards must be there and finished, of the same input, with the same settings.",
        allow_abbrev=False,
    )
    parser.add_argument("shards", nargs="+", metavar="SHARD.jsonl", help="the outputs of all shards")
    parser.add_argument(
        "--output",
        required=True,
        metavar="OUT.jsonl",
        help="all rows, as a run without --shard would have left them",
    )
    parser.add_argument(
        "--overwrite", action="store_true", help="replace the rows of an output that has some"
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Runs the command."""
    from gptoss_jax.batch.merging import merge

    merged = merge(options.shards, options.output, overwrite=options.overwrite)
    print(f"{options.output}: {merged.rows} rows of {merged.shards} shards, {merged.errors} of them errors")
    return 0
