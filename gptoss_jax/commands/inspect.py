"""`gptoss-jax inspect`: describes a checkpoint."""

from __future__ import annotations

import argparse


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command and its options."""
    parser = commands.add_parser(
        "inspect",
        help="describe a checkpoint",
        description="Describe a checkpoint: its layout, sizes, parameters and files. The exit code is 0 if "
        "it can run, 1 if a part is missing or the vocabulary does not match, 2 if it is no checkpoint.",
        allow_abbrev=False,
    )
    parser.add_argument("checkpoint", metavar="DIR", help='a checkpoint folder, or "tiny"')
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Runs the command."""
    from checkpoints import CheckpointError, open_checkpoint
    from checkpoints.describe import describe
    from gptoss_jax.vocabulary import load_encoding_for

    found = describe(options.checkpoint)
    usable = found.complete
    if usable:
        try:
            load_encoding_for(open_checkpoint(options.checkpoint))
        except CheckpointError as error:
            usable = False
            found.rows["vocabulary"] = f"NOT usable: {error}"
    # File names may have bytes that are not text.
    print(str(found).encode("utf-8", "backslashreplace").decode())
    return 0 if usable else 1
