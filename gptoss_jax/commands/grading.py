"""The options of evaluations that a model grades, and the grader that they name."""

from __future__ import annotations

import argparse
import contextlib
import copy
import datetime
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from gptoss_jax.commands.options import check_checkpoint, load_engine, whole_number
from gptoss_jax.commands.parsing import CommandError

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from gptoss_jax.evals.grader import Grader
    from gptoss_jax.evals.types import Ask
    from harmony.json_types import Json, JsonObject

KEY_VARIABLE = "OPENAI_API_KEY"

_MODEL = "gpt-4.1-2025-04-14"
"""The grader of the published scores."""

_CALLS = 64
"""Rubric items that are graded at a time, unless `--grader-parallel` says otherwise."""

_SECONDS = 600.0
"""How long a call of the grader's server may be silent until it is made again."""

_RETRIES = 7
"""How often a call that fails is made again."""


def add_grader_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options that say which model grades."""
    group = parser.add_argument_group(
        "grader", f"the published scores are graded by {_MODEL} at https://api.openai.com/v1"
    )
    where = group.add_mutually_exclusive_group(required=True)
    where.add_argument("--grader-url", metavar="URL", help="a server of Chat Completions that grades")
    where.add_argument(
        "--grader-checkpoint",
        metavar="DIR",
        help='a checkpoint that grades, held to a schema, or "tiny"; it is loaded when all is answered',
    )
    group.add_argument("--grader-model", metavar="NAME", help=f"its name at the URL (default: {_MODEL})")
    group.add_argument(
        "--grader-key-env",
        metavar="VARIABLE",
        help=f"the environment variable that holds the key for the URL (default: {KEY_VARIABLE})",
    )
    group.add_argument(
        "--grader-parallel",
        type=whole_number(1),
        default=_CALLS,
        metavar="N",
        help=f"rubric items that are graded at a time (default: {_CALLS})",
    )


def check_grader_options(options: argparse.Namespace) -> None:
    """Refuses what cannot grade, before anything is loaded.

    Raises:
        CommandError: options do not go together, or the variable of the key is not set.
        checkpoints.config.CheckpointError: the grader's checkpoint is missing or broken.
    """
    if options.grader_checkpoint is not None:
        for name in ("grader_model", "grader_key_env"):
            if getattr(options, name) is not None:
                raise CommandError(f"--{name.replace('_', '-')} is for a server: give --grader-url")
        if options.distributed is not None:
            raise CommandError(
                "--grader-checkpoint runs in one process: with --distributed give --grader-url"
            )
        check_checkpoint(options.grader_checkpoint)
        return
    if not options.grader_url.startswith(("http://", "https://")):
        raise CommandError(f"--grader-url is {options.grader_url!r}: it must begin with http:// or https://")
    if options.grader_key_env is not None and not os.environ.get(options.grader_key_env):
        raise CommandError(
            f"--grader-key-env is {options.grader_key_env!r}: this environment variable is not set"
        )


@contextlib.contextmanager
def open_grader(options: argparse.Namespace) -> Iterator[Grader]:
    """The grader of a run, with the verdicts that the run has so far.

    Raises:
        CommandError: a package is missing.
        gptoss_jax.evals.types.EvaluationError: the verdicts beside the output are those of another grader.
    """
    from gptoss_jax.commands.batch import checkpoint_fingerprint
    from gptoss_jax.evals.grader import Grader, GraderModel
    from gptoss_jax.evals.verdicts import VerdictFile, verdicts_path

    connect: Callable[[], AbstractContextManager[Ask]]
    if options.grader_url is not None:
        model = GraderModel(options.grader_model or _MODEL, options.grader_url.rstrip("/"))
        connect = _server(options, _RETRIES)
    else:
        path = check_checkpoint(options.grader_checkpoint).path
        model = GraderModel(path.name, None, checkpoint_fingerprint(path))
        connect = _checkpoint(options)
    print(f"grader: {model}", file=sys.stderr)
    verdicts = VerdictFile(
        verdicts_path(Path(options.output)), {"grader": model.settings}, overwrite=options.overwrite
    )
    with verdicts, Grader(model, connect, kept=verdicts, calls=options.grader_parallel) as grader:
        yield grader


def check_grader(options: argparse.Namespace) -> None:
    """Asks a grader's server something small: a wrong key or name is known before anything is answered.

    Raises:
        CommandError: the server refuses the request, or a package is missing.
        gptoss_jax.evals.types.EvaluationError: the server is not reached, or refuses the key or the name.
    """
    from gptoss_jax.evals.samplers import AskError

    if options.grader_url is None:
        return
    with _server(options, retries=1)() as ask:
        try:
            ask({"messages": [{"role": "user", "content": "Say yes."}], "max_tokens": 16})
        except AskError as error:
            if error.code in ("http_400", "http_422"):  # a busy server may be less so when all is answered
                raise CommandError(f"--grader-url: {options.grader_url} refuses to grade: {error}") from None


def _server(options: argparse.Namespace, retries: int) -> Callable[[], AbstractContextManager[Ask]]:
    try:
        from gptoss_jax.evals.remote import ServerModel
    except ImportError as error:
        raise CommandError(
            f"--grader-url needs the package {error.name}: pip install 'gptoss-jax[eval]'"
        ) from None
    key = os.environ.get(options.grader_key_env or KEY_VARIABLE, "").strip()

    def connect() -> AbstractContextManager[Ask]:
        return ServerModel(
            options.grader_url,
            options.grader_model or _MODEL,
            api="chat",
            key=key or None,
            retries=retries,
            connections=options.grader_parallel,
            seconds=_SECONDS,
        )

    return connect


def _checkpoint(options: argparse.Namespace) -> Callable[[], AbstractContextManager[Ask]]:
    @contextlib.contextmanager
    def connect() -> Iterator[Ask]:
        from gptoss_jax.engine.request import SamplingParams
        from gptoss_jax.evals.samplers import LocalModel

        own = copy.copy(options)
        own.checkpoint, own.max_length = options.grader_checkpoint, None
        engine, encoding, _ = load_engine(own, options.slots, announce=True)
        date = options.date or datetime.date.today().isoformat()
        with LocalModel(engine, encoding, sampling=SamplingParams(), date=date) as model:
            # An answer of a server may hold half a character, which no prompt can.
            yield lambda body: model(_readable(body))

    return connect


def _readable(body: JsonObject) -> JsonObject:
    """The body with U+FFFD in place of lone surrogates in its messages."""
    from harmony.surrogates import without_surrogates

    messages = body["messages"]
    assert isinstance(messages, list)
    read: list[Json] = [
        {
            name: without_surrogates(value, "replace") if isinstance(value, str) else value
            for name, value in message.items()
        }
        for message in messages
        if isinstance(message, dict)
    ]
    return {**body, "messages": read}
