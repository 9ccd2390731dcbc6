"""Who answers, from the options of the command line: a model in this process, or one behind a server."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from gptoss_jax.commands.options import dtype_name, load_engine, sampling_of
from gptoss_jax.commands.parsing import CommandError

if TYPE_CHECKING:
    from gptoss_jax.engine import Engine
    from gptoss_jax.evals.remote import Api, ServerModel
    from gptoss_jax.evals.samplers import LocalModel
    from harmony import HarmonyEncoding
    from harmony.json_types import JsonObject


def server_model(url: str, model: str | None, api: Api, key: str, connections: int) -> ServerModel:
    """A model behind a server. `model`: None for its only one. `key`: "" for none.

    Raises:
        CommandError: a package is missing.
        gptoss_jax.evals.types.EvaluationError: the server cannot be used.
    """
    try:
        from gptoss_jax.evals.remote import ServerModel
    except ImportError as error:
        raise CommandError(f"a URL needs the package {error.name}: pip install 'gptoss-jax[eval]'") from None
    return ServerModel(url, model, api=api, key=key or None, connections=connections)


@contextlib.contextmanager
def local_model(options: argparse.Namespace, date: str) -> Iterator[tuple[LocalModel, JsonObject]]:
    """A model in this process, and the settings that were settled when it was loaded. Freed at the end.

    `date`: the date in the system message, YYYY-MM-DD.
    """
    engine, encoding, _ = load_engine(options, options.slots, announce=True)
    with serving(options, engine, encoding, date) as opened:
        del engine  # nothing keeps its memory when it ends
        yield opened


@contextlib.contextmanager
def serving(
    options: argparse.Namespace, engine: Engine, encoding: HarmonyEncoding, date: str
) -> Iterator[tuple[LocalModel, JsonObject]]:
    """As `local_model`, of an engine that is loaded, and is closed at the end."""
    from gptoss_jax.evals.samplers import LocalModel

    dtype = dtype_name(options)
    settled: JsonObject = {
        "dtype": dtype,
        "kv_dtype": options.kv_dtype or dtype,
        "max_length": engine.max_length,
    }
    with LocalModel(
        engine, encoding, sampling=sampling_of(options), date=date, header_guard=options.header_guard
    ) as model:
        del engine
        yield model, settled
