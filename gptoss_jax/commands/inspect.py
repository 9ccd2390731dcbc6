"""`gptoss-jax inspect`: what a checkpoint is."""

from __future__ import annotations

import argparse


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command and its options."""
    parser = commands.add_parser(
        "inspect",
        help="say what a checkpoint is",
        description="Say what a checkpoint is: its layout, sizes, parameters and files.",
        allow_abbrev=False,
    )
    parser.add_argument("checkpoint", metavar="DIR", help='a checkpoint folder, or "tiny"')
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Runs the command."""
    from checkpoints.describe import describe

    print(describe(options.checkpoint))
    return 0
