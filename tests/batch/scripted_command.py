"""`gptoss-jax` on the scripted engine, as a program: scripted_command.py VOCABULARY_FOLDER ARGUMENT…"""

from __future__ import annotations

import sys
import types
from pathlib import Path

from gptoss_jax import cli
from gptoss_jax.commands import batch
from tests.batch.scripted import ScriptedEngine, byte_encoding


def use_scripted_engine(folder: Path, **options: float) -> None:
    """Makes `gptoss-jax batch` load the scripted engine; the folder takes its vocabulary."""
    encoding = byte_encoding(folder)
    checkpoint = types.SimpleNamespace(path=folder)
    batch.load_engine = lambda _, slots, announce: (ScriptedEngine(encoding, **options), encoding, checkpoint)


if __name__ == "__main__":
    use_scripted_engine(Path(sys.argv[1]), delay=0.01)
    sys.exit(cli.main(sys.argv[2:]))
