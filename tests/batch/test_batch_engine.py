"""A batch on the real engine: what a row says does not depend on the rows beside it."""

from __future__ import annotations

from pathlib import Path

import pytest

from checkpoints import open_checkpoint
from gptoss_jax.batch import run_batch
from gptoss_jax.engine import Engine, SamplingParams
from gptoss_jax.model import load
from gptoss_jax.vocabulary import load_encoding_for

WORDS = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]
LINES = [{"id": f"row {i}", "prompt": " ".join(WORDS[: 1 + i % 9] * (1 + i % 4))} for i in range(18)]


@pytest.fixture(scope="module")
def encoding(random_checkpoint: Path):
    return load_encoding_for(open_checkpoint(random_checkpoint))


@pytest.fixture(scope="module")
def engine(random_checkpoint: Path, encoding) -> Engine:
    stops = encoding.stop_tokens_for_assistant_actions()
    return Engine(load(random_checkpoint), stops, slots=5, max_length=640)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_row_says_the_same_alone_among_others_and_in_any_order(
    engine, encoding, write_lines, read_rows, tmp_path, temperature
):
    def said(lines: list[dict]) -> dict[str, object]:
        out = tmp_path / "out.jsonl"
        sampling = SamplingParams(temperature=temperature, max_tokens=20)
        run_batch(
            write_lines(lines),
            out,
            engine=engine,
            encoding=encoding,
            sampling=sampling,
            date="2025-06-28",
            overwrite=True,
        )
        return {row["id"]: row["messages"] for row in read_rows(out).values()}

    together = said(LINES)
    assert len({str(messages) for messages in together.values()}) > 9
    assert said(LINES[::-1]) == together
    for line in LINES[::6]:
        assert said([line]) == {line["id"]: together[line["id"]]}
    assert said(LINES[1::2]) == {line["id"]: together[line["id"]] for line in LINES[1::2]}
