"""The command line: `gptoss-jax COMMAND`. Each command is a module of `gptoss_jax.commands`."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Iterator, Sequence

from gptoss_jax.commands import (
    batch,
    bench,
    chat,
    convert,
    evaluate,
    generate,
    harmony,
    inspect,
    merge,
    serve,
    verify,
)
from gptoss_jax.commands.parsing import CommandParser, PrintCompletion, ShowVersion

_EXIT_CODES = (
    "Exit codes: 0 success; 1 the command ran and did not succeed (batch: no row was answered, or more than "
    "--max-errors rows failed; generate: there is no answer; verify: a check failed; chat: a line of "
    "standard input got none); 2 the command could not run, because of its options, its input or the "
    "machine; 75 batch: stopped by --deadline or SIGTERM, and the same command continues; 130 interrupted."
)

_INPUT_ERRORS = {
    "checkpoints.config": "CheckpointError",
    "gptoss_jax.batch.errors": "BatchError",
    "gptoss_jax.chat.errors": "ChatError",
    "gptoss_jax.batch_api.records": "RecordsError",
    "gptoss_jax.commands.parsing": "CommandError",
    "gptoss_jax.evals.types": "EvaluationError",
    "gptoss_jax.engine.memory": "EngineMemoryError",
    "gptoss_jax.engine.request": "RequestError",
    "gptoss_jax.openai_api.errors": "ApiError",
    "gptoss_jax.serve.store": "StoreError",
    "gptoss_jax.sizes": "ShardingError",
    "harmony.errors": "HarmonyFormatError",
    "pallas_kernels.platform": "PlatformError",
}
"""Module → its exception for errors in what the user gave."""


def new_parser() -> CommandParser:
    """The parser of the whole command line."""
    parser = CommandParser(
        prog="gptoss-jax", description="Run OpenAI's gpt-oss models on JAX.", epilog=_EXIT_CODES
    )
    parser.add_argument("--version", action=ShowVersion)
    parser.add_argument("--print-completion", action=PrintCompletion)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for module in (batch, merge, serve, chat, generate, convert, inspect, verify, evaluate, harmony, bench):
        module.add_parser(commands)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command. Returns its exit code; ``gptoss-jax --help`` explains the codes."""
    try:
        try:
            options = new_parser().parse_args(arguments)
            with _logging(getattr(options, "verbose", 0)):
                code: int = options.run(options)
        finally:
            if sys.stdout is not None:
                sys.stdout.flush()  # here, where errors of a full disk and a closed pipe are still handled
        return code
    except KeyboardInterrupt:
        return _fail("interrupted", 130)
    except BrokenPipeError:  # nobody reads our output any more
        _drop_unwritten_output()
        return 1
    except OSError as error:
        _drop_unwritten_output()
        return _fail(_described(error), 2)
    except ValueError as error:
        if not _is_input_error(error):
            raise
        return _fail(error, 2)


@contextlib.contextmanager
def _logging(verbosity: int) -> Iterator[None]:
    """Writes this project's log to standard error: nothing for 0, information for 1, details from 2 on."""
    if not verbosity:
        yield
        return
    handler = _BesideProgress()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s", "%H:%M:%S"))
    loggers = [logging.getLogger(name) for name in ("gptoss_jax", "checkpoints")]
    for logger in loggers:
        logger.addHandler(handler)
        logger.setLevel(logging.DEBUG if verbosity > 1 else logging.INFO)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeHandler(handler)
            logger.setLevel(logging.NOTSET)


class _BesideProgress(logging.StreamHandler):  # type: ignore[type-arg]
    """Writes to standard error, above the progress bar if one is shown."""

    def emit(self, record: logging.LogRecord) -> None:
        bars = sys.modules.get("tqdm")
        with bars.tqdm.external_write_mode(file=sys.stderr) if bars else contextlib.nullcontext():
            super().emit(record)


def _is_input_error(error: ValueError) -> bool:
    """True if the user's input caused the error. Checks only the modules that are already imported."""
    return any(
        isinstance(error, getattr(sys.modules[module], name))
        for module, name in _INPUT_ERRORS.items()
        if module in sys.modules
    )


def _described(error: OSError) -> str:
    """The error as "FILE: the system's reason", without the error's number."""
    reason = error.strerror or str(error)
    return f"{error.filename}: {reason}" if error.filename is not None else reason


def _drop_unwritten_output() -> None:
    """Discards the rest of standard output's buffer, so that Python does not fail on it at exit."""
    if sys.stdout is None:
        return
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _fail(reason: object, code: int) -> int:
    print(f"gptoss-jax: {' '.join(str(reason).split())}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
