"""Servers on a scripted engine that are killed: killed_servers.py FOLDER

Each line of standard input starts one, and is how it dies by itself: "write N" in the midst of writing the
Nth row of a batch, "replace N" before the Nth renaming of a file, "-" not at all. Its process and its address
are printed; "by itself" if it does; and "dead" when the next line is read. Servers are forked, since imports
take longer than they live.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from checkpoints import open_checkpoint
from gptoss_jax.batch_api import BatchApi, BatchSettings
from gptoss_jax.engine.request import Update
from gptoss_jax.serve import ServerSettings, create_app, run_server
from gptoss_jax.serve.server import listen
from gptoss_jax.serve.store import ResponseStore
from gptoss_jax.vocabulary import load_encoding_for
from harmony import HarmonyEncoding
from tests.batch_api.batching import echo
from tests.llm.fake_engine import FakeEngine


class SlowEngine(FakeEngine):
    def step(self) -> list[Update]:
        time.sleep(0.003)
        return super().step()


def serve(folder: Path, encoding: HarmonyEncoding) -> None:
    settings = ServerSettings(model="tiny")
    store = ResponseStore(folder / "store.sqlite", max_bytes=10**8, max_age_seconds=10**6)
    batches = BatchApi(BatchSettings(folder / "data", at_once=2), settings, {})
    engine = SlowEngine(echo(encoding), chunk=8)
    listening = listen("127.0.0.1", 0)
    app = create_app(engine, encoding, settings, store=store, extensions=[batches])
    print(os.getpid(), f"http://127.0.0.1:{listening.getsockname()[1]}", flush=True)
    run_server(app, listening, drain_seconds=5)


def die_by(what: str, number: int) -> None:
    """Makes this process kill itself in one of its next calls of the system."""
    left = [number]
    real_write, real_replace = os.write, os.replace

    def die() -> None:
        real_write(1, b"by itself\n")
        os.kill(os.getpid(), signal.SIGKILL)

    def write(descriptor: int, data: bytes) -> int:
        if bytes(data[:16]) == b'{"id":"batch_req':
            left[0] -= 1
            if not left[0]:
                real_write(descriptor, data[: len(data) // 2])
                die()
        return real_write(descriptor, data)

    def replace(*paths: Any) -> None:
        left[0] -= 1
        if not left[0]:
            die()
        real_replace(*paths)

    if what == "write":
        os.write = write
    else:
        os.replace = replace  # type: ignore[assignment]


def main(folder: Path) -> None:
    encoding = load_encoding_for(open_checkpoint("tiny"))
    for line in iter(sys.stdin.readline, ""):
        process = os.fork()
        if not process:
            what, _, number = line.strip().partition(" ")
            if number:
                die_by(what, int(number))
            serve(folder, encoding)
            os._exit(0)
        os.waitpid(process, 0)
        print("dead", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
