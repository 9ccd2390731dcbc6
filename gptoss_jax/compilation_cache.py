"""Compiled programs are kept between processes: only the first run of a model waits for the compiler."""

from __future__ import annotations

import os
from pathlib import Path

VARIABLE = "GPTOSS_JAX_CACHE"
"""The environment variable that names the folder; empty, nothing is kept."""

_SHORTEST_SECONDS = 0.5


def keep_compiled() -> Path | None:
    """Makes jax keep compiled programs in a folder, and gives it; None if it keeps none.

    The folder is $GPTOSS_JAX_CACHE, or else ``~/.cache/gptoss-jax``. One that jax was told itself, by
    $JAX_COMPILATION_CACHE_DIR or `jax.config`, stays as it is. Where the folder cannot be made, programs are
    compiled each time, without a word.
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
            return None
    except (OSError, RuntimeError):  # RuntimeError: there is no home
        return None
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", _SHORTEST_SECONDS)
    compilation_cache.reset_cache()  # jax looks for a cache once only, when it first compiles
    return folder
