"""The inspector's command line."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Iterator, Sequence

import jax

from pallas_kernels.inspect import chips, counting, registry, text
from pallas_kernels.inspect.case import Case
from pallas_kernels.inspect.dump import DumpError
from pallas_kernels.inspect.execution import ExecutionError
from pallas_kernels.inspect.figures import Row, Step, row, steps
from pallas_kernels.platform import CHIPS, Chip

LABEL = "static count, never run on a TPU"


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command. Returns 0, or 1 if a kernel could not be counted, or 2 for a wrong call."""
    options = _parser().parse_args(arguments)
    jax.config.update("jax_enable_compilation_cache", False)  # a cached program would write no schedule
    wanted = tuple(CHIPS) if options.chip is None else (options.chip,)
    try:
        for chip in wanted:
            chips.facts(chip)
        counting.require_compiler()
        work = [(chip, registry.choose_cases(registry.all_cases(chip), options.kernel)) for chip in wanted]
    except (ValueError, counting.CountError) as error:
        print(f"pallas_kernels.inspect: {error}", file=sys.stderr)
        return 2
    rows: list[Row] = []
    sums: list[Step] = []
    failures = 0
    for chip, cases in work:
        results = list(_count(chip, cases))
        failures += len(cases) - len(results)
        rows += [figures for _, figures in results]
        if options.kernel is None:
            sums += steps(chip, results)
    if options.json:
        print(json.dumps(_as_json(rows, sums), indent=1))
    else:
        print(text.report(rows, sums, LABEL))
    return 1 if failures else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m pallas_kernels.inspect",
        description="Compile the kernels for TPUs, without a TPU, and count the scheduled cycles.",
    )
    parser.add_argument("--chip", help=f"one of {', '.join(CHIPS)}; default: all of them")
    parser.add_argument(
        "--kernel", help="count only cases whose operation/model/case contains TEXT, and print no sums"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    return parser


def _count(chip: Chip, cases: list[Case]) -> Iterator[tuple[Case, Row]]:
    """Counts the cases and yields those that could be counted.

    Prints progress and errors to standard error.
    """
    for number, case in enumerate(cases, 1):
        title = f"{chip} {case.operation} {case.model} {case.name}"
        print(f"[{number}/{len(cases)}] {title}", file=sys.stderr, flush=True)
        try:
            call = case.build()
            figures = row(chip, case, counting.count(call.fn, call.args, chip, case.kernel, call.scalars))
        except (counting.CountError, DumpError, ExecutionError) as error:
            print(f"pallas_kernels.inspect: {title}: {error}", file=sys.stderr)
            continue
        yield case, figures


def _as_json(rows: list[Row], sums: list[Step]) -> dict[str, object]:
    return {
        "label": LABEL,
        "kernels": [dataclasses.asdict(one) for one in rows],
        "steps": [dataclasses.asdict(one) for one in sums],
    }
