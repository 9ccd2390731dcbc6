"""`gptoss-jax bench`: side by side on this machine, what this package does and what there is to compare."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys

from gptoss_jax.commands.options import whole_number

PARTS = ("throughput", "overhead", "batching", "prefix", "grammar", "kv")
"""As in `gptoss_jax.bench.engine.run`, which takes long to import."""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command and its options."""
    parser = commands.add_parser(
        "bench",
        help="measure, and compare with what others use",
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
        help="the engine's throughput, and what its parts are worth",
        description="The engine: throughput and its distance from what memory allows, time lost to the host, "
        "continuous against static batches, prefix reuse, grammars, 8-bit keys and values.",
        allow_abbrev=False,
    )
    model = engine.add_mutually_exclusive_group()
    model.add_argument(
        "--checkpoint",  # argparse takes one that is given as its default for one that is not given
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
        help="sequences side by side, in all parts but throughput (default: 64, on a CPU 8)",
    )
    engine.add_argument(
        "--sequences",
        type=whole_number(1),
        nargs="+",
        metavar="N",
        help="sequences at once in throughput (default: 1 8 64 256, on a CPU 1 4 16)",
    )
    engine.add_argument("--only", nargs="+", choices=PARTS, metavar="NAME", help=f"of {', '.join(PARTS)}")
    _add_shared(engine, 3)
    engine.set_defaults(run=run_engine)


def _add_shared(parser: argparse.ArgumentParser, rounds: int) -> None:
    parser.add_argument(
        "--rounds",
        type=whole_number(1),
        default=rounds,
        metavar="N",
        help=f"timings of each side (default: {rounds})",
    )
    parser.add_argument("--json", action="store_true", help="print every timing as JSON")


def run_harmony(options: argparse.Namespace) -> int:
    """Runs `bench harmony`."""
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
    """Runs `bench engine`; 1 if a part was left out."""
    from checkpoints.random import named_config
    from gptoss_jax.bench.engine import run
    from gptoss_jax.bench.engine.settings import settings_here
    from gptoss_jax.bench.engine.subject import checkpoint_subject, random_subject
    from gptoss_jax.compilation_cache import keep_compiled

    keep_compiled()
    given = {"rounds": options.rounds, "slots": options.slots, "sequences": options.sequences}
    changes = {name: value for name, value in given.items() if value is not None}
    settings = dataclasses.replace(settings_here(), **changes)
    if options.random:
        subject = random_subject(options.random, named_config(options.random))
    else:
        subject = checkpoint_subject(options.checkpoint or "tiny")
    report = run.new_report(subject, settings)
    # The parts come as they are measured; as JSON they are one document, so they are told of meanwhile.
    out = sys.stderr if options.json else sys.stdout
    print(report.head, file=out, flush=True)
    try:
        for part in run.measure(subject, settings, options.only or PARTS):
            report.parts.append(part)
            print(f"\n{part}", file=out, flush=True)
    finally:
        if options.json:
            print(json.dumps(report.as_json(), indent=2), flush=True)
    return 1 if report.failed else 0
