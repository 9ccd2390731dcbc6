"""`gptoss-jax convert`: converts a published checkpoint to a sharded Orbax checkpoint."""

from __future__ import annotations

import argparse
from pathlib import Path


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command and its options."""
    parser = commands.add_parser(
        "convert",
        help="convert a published checkpoint once, to load it faster",
        description="Convert a published checkpoint (Hugging Face or original layout) to a sharded Orbax "
        "checkpoint. The same command continues a conversion that was stopped.",
        allow_abbrev=False,
    )
    parser.add_argument("source", type=Path, metavar="SRC", help="the published checkpoint's folder")
    parser.add_argument("destination", type=Path, metavar="DST", help="the folder of the Orbax checkpoint")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Runs the command."""
    from checkpoints.convert import convert

    convert(options.source, options.destination, progress=True)
    return 0
