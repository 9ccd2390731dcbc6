"""`gptoss-jax eval`: evaluates a checkpoint, or a model behind a server."""

from __future__ import annotations

import argparse

from gptoss_jax.commands.evaluate import grading, running
from gptoss_jax.commands.options import (
    add_header_guard_option,
    add_model_options,
    add_sampling_options,
    start_jax,
    whole_number,
)

_ATTEMPTS = {"aime": 16, "gpqa": 8, "healthbench": 1}
"""Attempts at each problem unless `--attempts` says otherwise."""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command and its options."""
    parser = commands.add_parser(
        "eval",
        help="evaluate a checkpoint",
        description="Run an evaluation and print its scores. docs/evals.md says where the data comes from.",
        allow_abbrev=False,
    )
    evaluations = parser.add_subparsers(dest="evaluation", metavar="EVALUATION", required=True)
    _add_evaluation(
        evaluations,
        "aime",
        "AIME 2025: 30 problems of mathematics, 16 attempts at each",
        "aime2025-I.jsonl and aime2025-II.jsonl",
    )
    _add_evaluation(
        evaluations,
        "gpqa",
        "GPQA diamond: 198 questions of science with four choices, 8 attempts at each",
        "gpqa_diamond.csv",
    )
    healthbench = _add_evaluation(
        evaluations,
        "healthbench",
        "HealthBench: 5,000 conversations about health, whose answers another model grades",
        "the published JSONL file",
    )
    grading.add_options(healthbench)
    tiny = evaluations.add_parser(
        "tiny",
        help="held-out requests of the kinds the tiny model was trained on",
        description="Held-out requests of the kinds the tiny model was trained on.",
        allow_abbrev=False,
    )
    tiny.add_argument(
        "--checkpoint", default="tiny", metavar="DIR", help='a checkpoint folder, or "tiny" (default)'
    )
    tiny.add_argument(
        "--count", type=whole_number(1), default=500, metavar="N", help="requests of each kind (default: 500)"
    )
    tiny.set_defaults(run=_run_tiny)


def _add_evaluation(
    evaluations: argparse._SubParsersAction[argparse.ArgumentParser], name: str, what: str, files: str
) -> argparse.ArgumentParser:
    """Adds an evaluation with the options that all of them have."""
    parser = evaluations.add_parser(
        name,
        help=what,
        description=f"{what}. The same command continues a run that was stopped.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--data",
        required=True,
        metavar="DIR",
        help=f'the folder that holds {files}, or "sample" for three rows of our own making',
    )
    parser.add_argument(
        "--output",
        required=True,
        metavar="OUT.jsonl",
        help="the answers with their grades, added line by line; OUT.jsonl.run.json holds the settings, "
        "OUT.report.json the scores, OUT.html every answer to read",
    )
    parser.add_argument(
        "--attempts",
        type=whole_number(1),
        default=_ATTEMPTS[name],
        metavar="N",
        help=f"attempts at each problem (default: {_ATTEMPTS[name]})",
    )
    parser.add_argument(
        "--examples",
        type=whole_number(1),
        metavar="N",
        help="only N of the problems, drawn as the published harness draws them (default: all)",
    )
    existing = parser.add_mutually_exclusive_group()
    existing.add_argument("--overwrite", action="store_true", help="start anew, even if the output exists")
    existing.add_argument(
        "--retry-errors",
        action="store_true",
        help="try again where an attempt has an error in place of an answer or a grade",
    )
    server = parser.add_argument_group("server", "in place of a model in this process")
    server.add_argument("--url", metavar="URL", help="a server, such as http://127.0.0.1:8000/v1")
    server.add_argument(
        "--api",
        choices=("responses", "chat"),
        help="which of its APIs to use: responses (default), or chat for Chat Completions",
    )
    server.add_argument("--model", metavar="NAME", help="the model's name (default: the server's only one)")
    server.add_argument(
        "--api-key-env",
        metavar="VARIABLE",
        help=f"the environment variable that holds the API key (default: {running.KEY_VARIABLE})",
    )
    server.add_argument(
        "--parallel",
        type=whole_number(1),
        metavar="N",
        help=f"requests that the server gets at a time (default: {running.CONNECTIONS})",
    )
    server.add_argument(
        "--no-seed", action="store_true", help="send no seeds, to a server that refuses a body with one"
    )
    add_model_options(parser, slots=True)
    add_sampling_options(parser)
    add_header_guard_option(parser)
    defaults = {option: parser.get_default(option) for option in running.LOCAL}
    parser.set_defaults(run=running.run, model_defaults=defaults)
    return parser


def _run_tiny(options: argparse.Namespace) -> int:
    from gptoss_jax.evals import tiny

    start_jax()
    print(tiny.run(options.checkpoint, options.count))
    return 0
