"""Keeps compiled programs on disk, so that only the first run of a model waits for the compiler."""

from __future__ import annotations

import logging
import os
from pathlib import Path

_logger = logging.getLogger(__name__)

VARIABLE = "GPTOSS_JAX_CACHE"
"""The environment variable with the folder's path. If it is empty, nothing is kept."""

_SHORTEST_SECONDS = 0.05
"""Programs that compile faster than this are not kept: reading them would take as long."""


def keep_compiled() -> Path | None:
    """Makes jax keep compiled programs in a folder. Returns the folder; None if nothing is kept.

    The folder is $GPTOSS_JAX_CACHE, or ``~/.cache/gptoss-jax`` if that is not set. A folder that is already
    set in jax, by $JAX_COMPILATION_CACHE_DIR or `jax.config`, is left as it is. If the folder cannot be made,
    programs are compiled in each process; the log says so.
    """
    import jax
    from jax.experimental.compilation_cache import compilation_cache

    if jax.config.jax_compilation_cache_dir:
        return Path(jax.config.jax_compilation_cache_dir)
    named = os.environ.get(VARIABLE)
    if named == "":
        return None
    try:
        folder = (Path(named) if named else Path.home() / ".cache" / "gptoss-jax").expanduser().absolute()
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(f"{folder} is not writable")
    except (OSError, RuntimeError) as error:  # RuntimeError: there is no home
        _logger.info("compiled programs are not kept: %s", error)
        return None
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", _SHORTEST_SECONDS)
    compilation_cache.reset_cache()  # jax reads the setting only once, when it first compiles
    _logger.info("compiled programs are kept in %s", folder)
    return folder
