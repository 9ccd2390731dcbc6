"""Options of commands that answer with a model in this process or, with `--url`, ask a server."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable, Mapping
from typing import Any

from gptoss_jax.commands.options import check_checkpoint
from gptoss_jax.commands.parsing import CommandError

KEY_VARIABLE = "GPTOSS_JAX_API_KEY"
"""The environment variable with a server's key, unless `--api-key-env` names another one."""

MODEL_OPTIONS: Mapping[str, str] = {
    "checkpoint": "--checkpoint",
    "dtype": "--dtype",
    "max_length": "--max-length",
    "kv_dtype": "--kv-dtype",
    "memory": "--memory",
    "mesh": "--mesh",
    "distributed": "--distributed",
    "date": "--date",
    "header_guard": "--no-header-guard",
}
"""Options of a model in this process, which a server cannot be given."""


def defaults_of(parser: argparse.ArgumentParser, names: Iterable[str]) -> dict[str, Any]:
    """The options with the values that they have when they are not given."""
    return {name: parser.get_default(name) for name in names}


def check_choice(
    options: argparse.Namespace, here: Mapping[str, str], defaults: Mapping[str, Any], server: Iterable[str]
) -> None:
    """Refuses options of a server without `--url`, and options of a model in this process with it.

    Args:
        options: what was given.
        here: the options of a model in this process, by name, as they are written.
        defaults: their values when they are not given.
        server: the names of a server's options. None or False is their value when they are not given.

    Raises:
        CommandError: the options do not go together, the checkpoint is missing, or the key's variable is not
            set.
    """
    if options.url is None:
        for name in server:
            if getattr(options, name) not in (None, False):
                raise CommandError(f"--{name.replace('_', '-')} needs a server: give --url too")
        check_checkpoint(options.checkpoint)
        return
    for name, written in here.items():
        if getattr(options, name) != defaults[name]:
            raise CommandError(f"{written} is for a model in this process, and --url for a server: give one")
    if options.api_key_env is not None and not os.environ.get(options.api_key_env):
        raise CommandError(f"--api-key-env is {options.api_key_env!r}: this environment variable is not set")


def server_key(options: argparse.Namespace) -> str | None:
    """The key of the server; None if there is none."""
    return os.environ.get(options.api_key_env or KEY_VARIABLE, "").strip() or None
