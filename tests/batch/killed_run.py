"""`gptoss-jax batch` on the scripted engine, as a process that a test kills.

With TEAR=n the process writes only half of its n-th row and then dies, as if it were killed inside the write.
"""

from __future__ import annotations

import os
import signal
import sys
import types
from pathlib import Path

from scripted import ScriptedEngine, byte_encoding

from gptoss_jax import cli
from gptoss_jax.commands import batch


def load_scripted(options: object, slots: int | None = None) -> tuple[object, object, object]:
    folder = Path(os.environ["VOCABULARY_FOLDER"])
    encoding = byte_encoding(folder)
    checkpoint = types.SimpleNamespace(path=folder)
    return ScriptedEngine(encoding, slots=8, delay=0.001), encoding, checkpoint


def tear(rows: int) -> None:
    write, left = os.write, [rows]

    def torn(descriptor: int, data: bytes) -> int:
        left[0] -= 1
        if left[0] == 0:
            write(descriptor, data[: len(data) // 2])
            os.kill(os.getpid(), signal.SIGKILL)
        return write(descriptor, data)

    os.write = torn


if __name__ == "__main__":
    batch.load_engine = load_scripted
    if "TEAR" in os.environ:
        tear(int(os.environ["TEAR"]))
    sys.exit(cli.main(sys.argv[1:]))
