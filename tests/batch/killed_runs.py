"""Runs `gptoss-jax batch` on the scripted engine again and again, and kills it each time at another moment.

    killed_runs.py FOLDER OUT SEED KILLS -- BATCH ARGUMENTS

Each run is a forked process. Every other one is killed from outside at a random moment; the rest write half
of some row and die inside the write. A last run goes to its end. Prints how each process ended.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from pathlib import Path

from gptoss_jax import cli
from gptoss_jax.batch import output
from tests.batch.scripted_command import use_scripted_engine


def main(folder: Path, out: Path, seed: int, kills: int, arguments: list[str]) -> None:
    output.INDEXED_FROM = 40
    use_scripted_engine(folder, slots=8, delay=0.001)
    rng = random.Random(seed)
    ends = []
    for attempt in range(kills):
        tear_at = rng.randint(1, 16) if attempt % 2 else None
        process = start(arguments, tear_at)
        if tear_at is None:
            target = rows_in(out) + rng.randint(0, 14)
            while rows_in(out) < target:
                time.sleep(0.0005)
            time.sleep(rng.random() * 0.01)
            os.kill(process, signal.SIGKILL)
        code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
        ends.append({"code": code, "rows": rows_in(out), "torn": not out.read_bytes().endswith(b"\n")})
    code = os.waitstatus_to_exitcode(os.waitpid(start(arguments, None), 0)[1])
    ends.append({"code": code, "rows": rows_in(out), "torn": False})
    print(json.dumps(ends))


def start(arguments: list[str], tear_at: int | None) -> int:
    process = os.fork()
    if process:
        return process
    if tear_at is not None:
        die_inside_write(tear_at)
    os.dup2(2, 1)
    os._exit(cli.main(["batch", *arguments]))


def die_inside_write(row: int) -> None:
    write, left = os.write, [row]

    def torn(descriptor: int, data: bytes) -> int:
        left[0] -= data.startswith(b"{")  # rows, not records of the index
        if left[0] == 0:
            write(descriptor, data[: len(data) // 2])
            os.kill(os.getpid(), signal.SIGKILL)
        return write(descriptor, data)

    os.write = torn


def rows_in(out: Path) -> int:
    return out.read_bytes().count(b"\n") if out.exists() else 0


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), sys.argv[6:])
