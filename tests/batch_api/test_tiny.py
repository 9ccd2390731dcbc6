"""Batches on the embedded model."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gptoss_jax.batch_api import BatchApi, BatchSettings
from gptoss_jax.llm.loading import load_engine
from gptoss_jax.serve import ServerSettings
from tests import tiny_engine
from tests.batch_api.batching import CHAT, Client, row
from tests.serve.served import DATE, serving

EXAMPLE = Path(__file__).parents[2] / "examples" / "batches_over_http.py"


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    engine, encoding, _ = load_engine("tiny", dtype=tiny_engine.DTYPE, **tiny_engine.OPTIONS)
    settings = ServerSettings(model="tiny", date=DATE)
    api = BatchApi(BatchSettings(tmp_path_factory.mktemp("tiny") / "data"), settings, {})
    with serving(engine, encoding, extensions=[api]) as url:
        yield url


@pytest.mark.slow
def test_the_example_prints_its_answers(url: str) -> None:
    done = subprocess.run(
        [sys.executable, str(EXAMPLE)],
        env={**os.environ, "GPTOSS_JAX_URL": f"{url}/v1"},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert "is completed: BatchRequestCounts(completed=2, failed=0, total=2)" in done.stdout
    assert "sum: " in done.stdout and "601" in done.stdout


@pytest.mark.slow
def test_rows_say_the_same_as_requests_that_come_in_between(url: str) -> None:
    client = Client(url)
    questions = [f"What is {number} + {7 * number}?" for number in range(10, 40)]
    id = client.start([row(question, question, temperature=0) for question in questions]).id
    client.until(id, lambda batch: batch.request_counts.completed > 0)
    said = {}
    for question in questions[::5]:
        body = {"messages": [{"role": "user", "content": question}], "temperature": 0}
        said[question] = client.http.post("/chat/completions", json=body).json()["choices"]
    batch = client.ended(id)
    assert batch.status == "completed"
    answers = client.rows(batch.output_file_id)
    assert len(answers) == len(questions)
    for question, choices in said.items():
        assert answers[question]["response"]["body"]["choices"] == choices
    client.close()
    assert batch.endpoint == CHAT
