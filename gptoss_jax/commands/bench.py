"""`gptoss-jax bench`: measures this package on this machine, and compares it with others."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys

from gptoss_jax.commands.options import start_jax, whole_number

PARTS = ("throughput", "overhead", "batching", "prefix", "grammar", "kv")
"""The same as in `gptoss_jax.bench.engine.run`, which is slow to import."""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command and its options."""
    parser = commands.add_parser(
        "bench",
        help="measure speed, and compare it with other packages",
        description="Check that both sides give the same output, time them in turns, and print the ratios.",
        allow_abbrev=False,
    )
    benchmarks = parser.add_subparsers(dest="benchmark", metavar="BENCHMARK", required=True)
    harmony = benchmarks.add_parser(
        "harmony",
        help="rendering, parsing, streaming and loading against openai-harmony 0.0.8",
        description="Rendering, parsing, streaming and loading against openai-harmony 0.0.8.",
        allow_abbrev=False,
    )
    _add_shared(harmony, 7)
    harmony.set_defaults(run=run_harmony)
    engine = benchmarks.add_parser(
        "engine",
        help="the engine's throughput, and what each of its parts contributes",
        description="The engine: throughput against the limit of memory bandwidth, time lost to the host, "
        "continuous against static batches, prefix reuse, grammars, 8-bit keys and values.",
        allow_abbrev=False,
    )
    model = engine.add_mutually_exclusive_group()
    model.add_argument(
        "--checkpoint",  # no default: with one, argparse would accept "tiny" together with --random
        metavar="DIR",
        help='a checkpoint folder, or "tiny" for the one in the package (default)',
    )
    model.add_argument(
        "--random", choices=("20b", "120b"), help="random weights of that model, made on the device"
    )
    engine.add_argument(
        "--slots",
        type=whole_number(1),
        metavar="N",
        help="sequences that decode at the same time, in all parts but throughput (default: 64, on a CPU 8)",
    )
    engine.add_argument(
        "--sequences",
        type=whole_number(1),
        nargs="+",
        metavar="N",
        help="sequences that decode at the same time in throughput (default: 1 8 64 256, on a CPU 1 4 16)",
    )
    engine.add_argument(
        "--only",
        nargs="+",
        choices=PARTS,
        metavar="NAME",
        help=f"measure only these parts: {', '.join(PARTS)}",
    )
    _add_shared(engine, 3)
    engine.set_defaults(run=run_engine)


def _add_shared(parser: argparse.ArgumentParser, rounds: int) -> None:
    parser.add_argument(
        "--rounds",
        type=whole_number(1),
        default=rounds,
        metavar="N",
        help=f"how often each side is timed (default: {rounds})",
    )
    parser.add_argument("--json", action="store_true", help="print every timing as JSON")


def run_harmony(options: argparse.Namespace) -> int:
    """Runs `bench harmony`. Returns 1 if the two sides give different output, else 0."""
    from gptoss_jax.bench import harmony
    from gptoss_jax.bench.comparison import BenchError

    try:
        report = harmony.run(options.rounds)
    except BenchError as error:
        print(f"gptoss-jax: {error}", file=sys.stderr)
        return 1
    print(json.dumps(report.as_json(), indent=2) if options.json else report)
    return 0


def run_engine(options: argparse.Namespace) -> int:
    """Runs `bench engine`. Returns 1 if a part failed, else 0."""
    from checkpoints.random import named_config
    from gptoss_jax.bench.engine import run
    from gptoss_jax.bench.engine.settings import settings_here
    from gptoss_jax.bench.engine.target import checkpoint_target, random_target

    start_jax()
    given = {"rounds": options.rounds, "slots": options.slots, "sequences": options.sequences}
    changes = {name: value for name, value in given.items() if value is not None}
    settings = dataclasses.replace(settings_here(), **changes)
    if options.random:
        target = random_target(options.random, named_config(options.random))
    else:
        target = checkpoint_target(options.checkpoint or "tiny")
    report = run.new_report(target, settings)
    # Parts are printed as they are measured; with --json on standard error, as the JSON comes at the end.
    out = sys.stderr if options.json else sys.stdout
    print(report.head, file=out, flush=True)
    try:
        for part in run.measure(target, settings, options.only or PARTS):
            report.parts.append(part)
            print(f"\n{part}", file=out, flush=True)
    finally:
        if options.json:
            print(json.dumps(report.as_json(), indent=2), flush=True)
    return 1 if report.failed else 0
