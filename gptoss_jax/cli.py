"""The command line: `gptoss-jax COMMAND`. Each command is a module of `gptoss_jax.commands`."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from gptoss_jax.commands import batch, bench, convert, evaluate, generate, harmony, inspect

_INPUT_ERRORS = {
    "checkpoints.config": "CheckpointError",
    "gptoss_jax.batch.output": "BatchError",
    "gptoss_jax.batch.fields": "RowError",
    "gptoss_jax.engine.memory": "EngineMemoryError",
    "gptoss_jax.engine.request": "RequestError",
    "gptoss_jax.sharding": "ShardingError",
    "harmony.errors": "HarmonyFormatError",
    "pallas_kernels.platform": "PlatformError",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns the exit code: 0, 1 for a failure, 2 for a wrong use or input."""
    parser = argparse.ArgumentParser(
        prog="gptoss-jax", description="Run OpenAI's gpt-oss models on JAX.", allow_abbrev=False
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for module in (batch, generate, convert, inspect, evaluate, harmony, bench):
        module.add_parser(commands)
    options = parser.parse_args(arguments)
    try:
        code: int = options.run(options)
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        return _fail("interrupted", 130)
    except BrokenPipeError:  # the reader of our output has gone; there is nobody to tell
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        return _fail(error, 1)
    except ValueError as error:
        if not _is_input_error(error):
            raise
        return _fail(error, 2)


def _is_input_error(error: ValueError) -> bool:
    """Whether a user's input raised it. No module is loaded to tell: one that is not there raised nothing."""
    return any(
        isinstance(error, getattr(sys.modules[module], name))
        for module, name in _INPUT_ERRORS.items()
        if module in sys.modules
    )


def _fail(reason: object, code: int) -> int:
    print(f"gptoss-jax: {' '.join(str(reason).split())}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
