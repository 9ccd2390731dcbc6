"""A batch on the real engine: what a row says depends neither on the rows beside it nor on being killed."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import jax
import pytest

from checkpoints import open_checkpoint
from gptoss_jax.batch import run_batch
from gptoss_jax.engine import Engine, SamplingParams
from gptoss_jax.model import load
from gptoss_jax.vocabulary import load_encoding_for

ROOT = Path(__file__).parents[2]
SLOTS, MAX_LENGTH, MAX_TOKENS = 8, 512, 20
WORDS = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]
LINES = [{"id": f"row {i}", "prompt": " ".join(WORDS[: 1 + i % 9] * (1 + i % 4))} for i in range(18)]


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder in which compiled programs are kept, so that every process here compiles only once."""
    folder = tmp_path_factory.mktemp("compiled")
    settings = {"jax_compilation_cache_dir": str(folder), "jax_persistent_cache_min_compile_time_secs": 0}
    before = {name: getattr(jax.config, name) for name in settings}
    for name, value in settings.items():
        jax.config.update(name, value)
    yield folder
    for name, value in before.items():
        jax.config.update(name, value)


@pytest.fixture(scope="module")
def encoding(random_checkpoint: Path):
    return load_encoding_for(open_checkpoint(random_checkpoint))


@pytest.fixture(scope="module")
def engine(random_checkpoint: Path, encoding, compiled) -> Engine:
    stops = [*encoding.stop_tokens_for_assistant_actions(), encoding.end_of_text]
    return Engine(load(random_checkpoint), stops, slots=SLOTS, max_length=MAX_LENGTH)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_row_says_the_same_alone_among_others_and_in_any_order(
    engine, encoding, write_lines, read_rows, tmp_path, temperature
):
    def said(lines: list[dict]) -> dict[str, object]:
        run_batch(
            write_lines(lines),
            tmp_path / "out.jsonl",
            engine=engine,
            encoding=encoding,
            sampling=SamplingParams(temperature=temperature, max_tokens=MAX_TOKENS),
            date="2025-06-28",
            overwrite=True,
        )
        return {row["id"]: row["messages"] for row in read_rows(tmp_path / "out.jsonl").values()}

    together = said(LINES)
    assert len({str(messages) for messages in together.values()}) > 9
    assert said(LINES[::-1]) == together
    assert said(LINES[4:5]) == {LINES[4]["id"]: together[LINES[4]["id"]]}
    assert said(LINES[1::3]) == {line["id"]: together[line["id"]] for line in LINES[1::3]}


def test_the_command_killed_thrice_answers_as_if_it_had_not_been(
    engine, encoding, random_checkpoint, compiled, write_lines, read_rows, tmp_path
):
    source = write_lines({"id": i, "prompt": f"text {i}"} for i in range(60))
    out, whole = tmp_path / "out.jsonl", tmp_path / "whole.jsonl"
    command = [sys.executable, "-m", "gptoss_jax.cli", "batch", str(source), "--output", str(out)]
    command += ["--checkpoint", str(random_checkpoint), "--date", "2025-06-28", "--seed", "5"]
    command += ["--max-tokens", str(MAX_TOKENS), "--max-length", str(MAX_LENGTH), "--slots", str(SLOTS)]
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "JAX_PLATFORMS": "cpu",
        "JAX_COMPILATION_CACHE_DIR": str(compiled),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }
    rng = random.Random(4)
    for kill in range(4):
        process = subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        if kill < 3:
            kill_after(process, out, rng.randint(1, 14))
            assert process.returncode == -signal.SIGKILL
            assert rows_in(out) < 60
    printed, complaints = process.communicate()
    assert process.returncode == 0, complaints
    assert "60 answered" not in printed
    run_batch(
        source,
        whole,
        engine=engine,
        encoding=encoding,
        sampling=SamplingParams(max_tokens=MAX_TOKENS),
        seed=5,
        date="2025-06-28",
    )
    assert read_rows(out) == read_rows(whole)


def kill_after(process: subprocess.Popen[str], out: Path, rows: int) -> None:
    """Kills the process when it has written so many more rows."""
    target = rows_in(out) + rows
    while process.poll() is None and rows_in(out) < target:
        time.sleep(0.001)
    process.kill()
    process.communicate()


def rows_in(out: Path) -> int:
    return out.read_bytes().count(b"\n") if out.exists() else 0
