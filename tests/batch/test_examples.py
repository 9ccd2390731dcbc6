"""The example file is what the README promises: at least 40 requests, in every form, all answerable."""

from __future__ import annotations

import json
from pathlib import Path

from gptoss_jax.batch import run_batch
from tests.batch.scripted import ScriptedEngine

EXAMPLES = Path(__file__).parents[2] / "examples" / "requests.jsonl"


def test_every_example_is_a_good_request(encoding, read_rows, tmp_path):
    report = run_batch(
        EXAMPLES,
        tmp_path / "out.jsonl",
        engine=ScriptedEngine(encoding, max_length=20_000),
        encoding=encoding,
    )
    rows = read_rows(tmp_path / "out.jsonl")
    assert report.errors == 0, [row for row in rows.values() if row["error"] or "response" not in row]
    assert report.answered == len(rows) >= 40


def test_the_examples_cover_the_forms_efforts_functions_and_results():
    lines = EXAMPLES.read_text(encoding="utf-8").splitlines()
    text = "\n".join(lines)
    assert {json.loads(line).get("url", "plain") for line in lines} == {
        "plain",
        "/v1/chat/completions",
        "/v1/responses",
    }
    for needle in ('"low"', '"medium"', '"high"', '"tools"', '"role": "tool"', '"function_call_output"'):
        assert needle in text
