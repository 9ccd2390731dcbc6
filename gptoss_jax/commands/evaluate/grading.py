"""The model that grades HealthBench's answers, from the options of the command line."""

from __future__ import annotations

import argparse
import contextlib
import copy
import datetime
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from gptoss_jax.commands.evaluate.models import local_model, server_model
from gptoss_jax.commands.options import check_checkpoint, whole_number
from gptoss_jax.commands.parsing import CommandError

if TYPE_CHECKING:
    from gptoss_jax.evals.grader import Grader, GraderModel
    from gptoss_jax.evals.types import Ask

KEY_VARIABLE = "GPTOSS_JAX_GRADER_API_KEY"
CALLS = 64
"""Rubric items that a grader behind a server gets at a time, unless `--grader-parallel` says otherwise."""

SUBSETS = ("all", "hard", "consensus")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of HealthBench alone."""
    parser.add_argument(
        "--subset",
        choices=SUBSETS,
        default="all",
        help="all conversations (default), or a smaller set of them: hard or consensus",
    )
    group = parser.add_argument_group("grader", "a model that grades every answer; one is needed")
    chosen = group.add_mutually_exclusive_group(required=True)
    chosen.add_argument(
        "--grader-url",
        metavar="URL",
        help="a server that speaks Chat Completions; https://api.openai.com/v1 has the grader of the "
        "published scores",
    )
    chosen.add_argument(
        "--grader-checkpoint",
        metavar="DIR",
        help="a checkpoint, run in this process after the answers; its scores compare with no others",
    )
    group.add_argument(
        "--grader-model",
        metavar="NAME",
        help="the model's name at the grader's server (default: gpt-4.1-2025-04-14 at OpenAI's, the only one "
        "at others)",
    )
    group.add_argument(
        "--grader-api-key-env",
        metavar="VARIABLE",
        help=f"the environment variable that holds the grader's API key (default: {KEY_VARIABLE})",
    )
    group.add_argument(
        "--grader-parallel",
        type=whole_number(1),
        metavar="N",
        help=f"rubric items that the grader's server gets at a time (default: {CALLS})",
    )


def check_options(options: argparse.Namespace) -> None:
    """Refuses options of a grader that do not fit together.

    Raises:
        CommandError: the options contradict each other, or a key is missing.
        checkpoints.config.CheckpointError: the grader's checkpoint is missing or broken.
    """
    if options.grader_checkpoint is not None:
        for name in ("grader_model", "grader_api_key_env", "grader_parallel"):
            if getattr(options, name) is not None:
                raise CommandError(f"--{name.replace('_', '-')} needs a server: give --grader-url too")
        if options.distributed is not None:
            raise CommandError(
                "--grader-checkpoint runs in one process: with --distributed give --grader-url"
            )
        check_checkpoint(options.grader_checkpoint)
    elif options.grader_api_key_env is not None and not os.environ.get(options.grader_api_key_env):
        raise CommandError(
            f"--grader-api-key-env is {options.grader_api_key_env!r}: this environment variable is not set"
        )


def calls(options: argparse.Namespace) -> int:
    """How many rubric items are asked for at a time."""
    return int(options.grader_parallel or CALLS)


@contextlib.contextmanager
def opened_grader(options: argparse.Namespace) -> Iterator[Grader]:
    """The grader, with its verdicts beside the output. It is asked, or loaded, when it is first needed."""
    from gptoss_jax.evals.grader import Grader
    from gptoss_jax.evals.verdicts import VerdictFile

    model = _model(options)

    @contextlib.contextmanager
    def connect() -> Iterator[Ask]:
        if model.url is not None:
            key = os.environ.get(options.grader_api_key_env or KEY_VARIABLE, "").strip()
            with server_model(model.url, model.name, "chat", key, calls(options)) as server:
                yield server
        else:
            chosen = copy.copy(options)
            chosen.checkpoint, chosen.max_length = options.grader_checkpoint, None
            with local_model(chosen, datetime.date.today().isoformat()) as (answerer, _):
                yield answerer

    path = Path(options.output)
    verdicts = path.with_name(f"{path.name.removesuffix('.jsonl')}.verdicts.jsonl")
    with (
        VerdictFile(verdicts, model.settings, overwrite=options.overwrite) as kept,
        Grader(model, connect, kept=kept, calls=calls(options)) as grader,
    ):
        yield grader


def _model(options: argparse.Namespace) -> GraderModel:
    from gptoss_jax.commands.batch import checkpoint_fingerprint
    from gptoss_jax.evals.grader import PUBLISHED_MODEL, PUBLISHED_URL, GraderModel

    if options.grader_checkpoint is not None:
        path = check_checkpoint(options.grader_checkpoint).path
        return GraderModel(path.name, None, checkpoint_fingerprint(path))
    url = options.grader_url
    name = options.grader_model or (PUBLISHED_MODEL if url.rstrip("/") == PUBLISHED_URL else None)
    if name is None:
        key = os.environ.get(options.grader_api_key_env or KEY_VARIABLE, "").strip()
        with server_model(url, None, "chat", key, 1) as server:
            name = server.name
    return GraderModel(name, url)
