"""`gptoss-jax eval` with a scripted answerer in place of a model, as a program that may be killed.

    scripted_eval.py OUT KILLS SEED -- ARGUMENTS

Runs the command KILLS times in forked processes. They die inside the write of a row, with half of it written,
or from outside at a random moment. Then runs it once more, to its end. Prints how each process ended, and how
many rows were there.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from pathlib import Path
from typing import Any

from gptoss_jax import cli
from gptoss_jax.commands import evaluate
from gptoss_jax.evals.types import Answer

USAGE = {"prompt_tokens": 9, "completion_tokens": 5, "reasoning_tokens": 2}


def answer(body: dict[str, Any]) -> Answer:
    """An answer that tells the seed that it was asked with."""
    return Answer(f"\\boxed{{{body['seed']}}}", "Hmm.", "stop", dict(USAGE))


def use_scripted_model(asked: Path | None = None, delay: float = 0.0, ask: Any = answer) -> None:
    """Makes the command ask `ask` instead of a model. Each seed is written to `asked`."""

    def logged(body: dict[str, Any]) -> Answer:
        time.sleep(delay)
        if asked is not None:
            with asked.open("a") as file:
                file.write(f"{body['seed']}\n")
        return ask(body)  # type: ignore[no-any-return]

    def answer_here(options: Any, opened: Any, *_: Any) -> None:
        settled = {"dtype": "float32", "kv_dtype": "float32", "max_length": 512}
        opened.answer(logged, settled=settled, parallel=options.slots or 8, progress=True)

    evaluate.load_engine, evaluate._answer_here = lambda *_, **__: (None, None, None), answer_here


def main(out: Path, kills: int, seed: int, arguments: list[str]) -> None:
    use_scripted_model(delay=0.001)
    rng, ends = random.Random(seed), []
    for number in range(kills):
        tear_at = rng.randint(1, 9) if number % 2 == 0 else None
        process = start(arguments, tear_at)
        if tear_at is None:
            target = rows_in(out) + rng.randint(0, 9)
            while rows_in(out) < target:
                time.sleep(0.0005)
            time.sleep(rng.random() * 0.01)
            os.kill(process, signal.SIGKILL)
        ends.append(ended(process, out))
    ends.append(ended(start(arguments, None), out))
    print(json.dumps(ends))


def ended(process: int, out: Path) -> dict[str, Any]:
    code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    return {"code": code, "rows": rows_in(out), "torn": not out.read_bytes().endswith(b"\n")}


def start(arguments: list[str], tear_at: int | None) -> int:
    process = os.fork()
    if process:
        return process
    if tear_at is not None:
        die_inside_write(tear_at)
    os.dup2(2, 1)
    os._exit(cli.main(["eval", *arguments]))


def die_inside_write(row: int) -> None:
    write, left = os.write, [row]

    def torn(descriptor: int, data: bytes) -> int:
        left[0] -= 1
        if left[0] == 0:
            write(descriptor, data[: len(data) // 2])
            os.kill(os.getpid(), signal.SIGKILL)
        return write(descriptor, data)

    os.write = torn


def rows_in(out: Path) -> int:
    return out.read_bytes().count(b"\n") if out.exists() else 0


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[5:])
