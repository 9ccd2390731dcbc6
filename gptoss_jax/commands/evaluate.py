"""`gptoss-jax eval`: evaluates a checkpoint."""

from __future__ import annotations

import argparse

from gptoss_jax.commands.options import start_jax, whole_number


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command and its options."""
    parser = commands.add_parser(
        "eval",
        help="evaluate a checkpoint",
        description="Run an evaluation and print a table of scores.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "evaluation",
        choices=("tiny",),
        help="tiny: held-out requests of the kinds the tiny model was trained on",
    )
    parser.add_argument(
        "--checkpoint", default="tiny", metavar="DIR", help='a checkpoint folder, or "tiny" (default)'
    )
    parser.add_argument(
        "--count", type=whole_number(1), default=500, metavar="N", help="requests of each kind (default: 500)"
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Runs the command."""
    from gptoss_jax.evals import tiny

    start_jax()
    print(tiny.run(options.checkpoint, options.count))
    return 0
