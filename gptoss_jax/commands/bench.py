"""`gptoss-jax bench`: compare with what others use, side by side on this machine."""

from __future__ import annotations

import argparse
import json
import sys

from gptoss_jax.commands.options import whole_number


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command and its options."""
    parser = commands.add_parser(
        "bench",
        help="compare with what others use",
        description="Check that both sides give the same output, time them in turns, and print the ratios.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "benchmark",
        choices=("harmony",),
        help="harmony: rendering, parsing, streaming and loading against openai-harmony 0.0.8",
    )
    parser.add_argument(
        "--rounds", type=whole_number(1), default=7, metavar="N", help="timings of each side (default: 7)"
    )
    parser.add_argument("--json", action="store_true", help="print every timing as JSON")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Runs the command."""
    from gptoss_jax.bench import harmony
    from gptoss_jax.bench.comparison import BenchError

    try:
        report = harmony.run(options.rounds)
    except BenchError as error:
        print(f"gptoss-jax: {error}", file=sys.stderr)
        return 1
    print(json.dumps(report.as_json(), indent=2) if options.json else report)
    return 0
