"""`gptoss-jax bench`: measures this package on this machine, and compares it with others."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from typing import TYPE_CHECKING, Any

from gptoss_jax.commands.options import start_jax, whole_number
from gptoss_jax.commands.parsing import CommandError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gptoss_jax.bench.engine.report import LeftOut, Part
    from gptoss_jax.bench.engine.run import Report
    from gptoss_jax.bench.engine.target import BenchTarget
    from gptoss_jax.bench.serve.run import Report as ServeReport

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
    _add_model(engine)
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
    _add_serve(benchmarks)


def _add_serve(benchmarks: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    serve = benchmarks.add_parser(
        "serve",
        help="the server over HTTP against the engine alone, or any server by its address",
        description="Many streams at once over Chat Completions and Responses: tokens/s, time to the first "
        "text, and what HTTP adds to a step, against the engine alone in turns. The client is a process of "
        "its own. With --url, the figures of any server of the two APIs.",
        allow_abbrev=False,
    )
    serve.add_argument("--url", metavar="URL", help="the address of a server, which ends in /v1")
    serve.add_argument(
        "--model", metavar="NAME", help="what requests to --url name (default: the first model it lists)"
    )
    serve.add_argument(
        "--fields",
        type=_fields,
        default={},
        metavar="JSON",
        help="fields that each request has besides, as a JSON object",
    )
    serve.add_argument(
        "--streams",
        type=whole_number(1),
        nargs="+",
        default=[1, 8, 32, 64],
        metavar="N",
        help="how many answers come at once (default: 1 8 32 64)",
    )
    serve.add_argument(
        "--generated",
        type=whole_number(1),
        default=256,
        metavar="N",
        help="tokens of an answer (default: 256)",
    )
    serve.add_argument(
        "--apis",
        nargs="+",
        choices=("chat", "responses"),
        default=["chat", "responses"],
        metavar="API",
        help="measure only these: chat, responses",
    )
    _add_model(serve)
    serve.add_argument(
        "--slots",
        type=whole_number(1),
        default=64,
        metavar="N",
        help="sequences that decode at the same time (default: 64)",
    )
    _add_shared(serve, 3)
    serve.set_defaults(run=run_serve)


def _fields(text: str) -> dict[str, Any]:
    try:
        fields = json.loads(text)
    except ValueError:
        fields = None
    if not isinstance(fields, dict):
        raise argparse.ArgumentTypeError(f"must be a JSON object, not {text!r}")
    return fields


def _add_model(parser: argparse.ArgumentParser) -> None:
    model = parser.add_mutually_exclusive_group()
    model.add_argument(
        "--checkpoint",  # no default: with one, argparse would accept "tiny" together with --random
        metavar="DIR",
        help='a checkpoint folder, or "tiny" for the one in the package (default)',
    )
    model.add_argument(
        "--random", choices=("20b", "120b"), help="random weights of that model, made on the device"
    )


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
    from gptoss_jax.bench.engine import run
    from gptoss_jax.bench.engine.settings import settings_here

    start_jax()
    given = {"rounds": options.rounds, "slots": options.slots, "sequences": options.sequences}
    changes = {name: value for name, value in given.items() if value is not None}
    settings = dataclasses.replace(settings_here(), **changes)
    target = _target(options)
    report = run.new_report(target, settings)
    return _show(report, run.measure(target, settings, options.only or PARTS), options.json)


def run_serve(options: argparse.Namespace) -> int:
    """Runs `bench serve`. Returns 1 if a part failed, else 0."""
    try:
        from gptoss_jax.bench.serve import run
    except ImportError as error:
        raise CommandError(f"serve needs the package {error.name}: pip install 'gptoss-jax[serve]'") from None
    settings = run.Settings(options.streams, options.rounds, options.generated, options.apis, options.fields)
    if options.url is not None:
        return _show(
            run.Report(options.url, settings),
            run.measure_url(options.url, options.model, settings),
            options.json,
        )
    cores = run.split_cores()
    start_jax()
    target = _target(options)
    parts = run.measure_beside(target, settings, options.slots, cores)
    return _show(run.report_beside(target, settings, cores), parts, options.json)


def _target(options: argparse.Namespace) -> BenchTarget:
    from checkpoints.random import named_config
    from gptoss_jax.bench.engine.target import checkpoint_target, random_target

    if options.random:
        return random_target(options.random, named_config(options.random))
    return checkpoint_target(options.checkpoint or "tiny")


def _show(report: Report | ServeReport, parts: Iterator[Part | LeftOut], as_json: bool) -> int:
    """Prints parts as they are measured; with `as_json` on standard error, and JSON at the end."""
    from gptoss_jax.bench.comparison import BenchError

    out = sys.stderr if as_json else sys.stdout
    print(report.head, file=out, flush=True)
    try:
        for part in parts:
            report.parts.append(part)
            print(f"\n{part}", file=out, flush=True)
    except BenchError as error:
        print(f"gptoss-jax: {error}", file=sys.stderr)
        return 1
    finally:
        if as_json:
            print(json.dumps(report.as_json(), indent=2), flush=True)
    return 1 if report.failed else 0
