"""kill -9 at any moment, and a start after it: rows come once, and what was told stays."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from tests.batch_api.batching import CHAT, ENDS, RESPONSES, Client, row

ROOT = Path(__file__).resolve().parents[2]
ROWS = 40

Unreachable = (httpx.HTTPError, openai.APIConnectionError)


class Servers:
    """One server after the other, on one folder."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.died = 0
        """How many died in the midst of something."""

    @contextlib.contextmanager
    def life(self, death: str = "-") -> Iterator[tuple[Client, int]]:
        """A server and the number of its process; it is dead when the block ends, however it does."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(f"{death}\n")
        self._process.stdin.flush()
        number, url = self._process.stdout.readline().split()
        client = Client(url)
        try:
            yield client, int(number)
        finally:
            client.close()
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(number), signal.SIGKILL)
            line = self._process.stdout.readline()
            if line == "by itself\n":
                self.died += 1
                line = self._process.stdout.readline()
            assert line == "dead\n"


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[Servers]:
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    process = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("killed_servers.py")), str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    )
    watchdog = threading.Timer(300, process.kill)
    watchdog.start()
    try:
        yield Servers(process)
    finally:
        watchdog.cancel()
        process.kill()
        process.communicate()


def rows_of(name: str, endpoint: str) -> list[dict[str, Any]]:
    """Every tenth row is one that cannot be answered."""
    return [
        row(f"{name} {number}", f"text {number}", endpoint, **({"stop": 5} if number % 10 == 9 else {}))
        for number in range(ROWS)
    ]


@pytest.mark.parametrize("kills", [3, pytest.param(20, marks=pytest.mark.slow)])
def test_rows_come_once_and_responses_stay_whenever_a_server_is_killed(
    servers: Servers, tmp_path: Path, kills: int
) -> None:
    rng = random.Random(kills)
    responses: dict[str, Any] = {}
    batches: dict[str, str] = {}
    uploads: dict[str, bytes] = {}
    for kill in range(kills):
        death = ("-", f"write {rng.randint(1, ROWS)}", f"replace {rng.randint(1, 4)}")[kill % 3]
        with servers.life(death) as (client, _), contextlib.suppress(*Unreachable):
            for id, response in responses.items():
                assert client.http.get(f"/responses/{id}").json() == response
            for id in batches:
                assert client.batch(id).status in (*ENDS, "validating", "in_progress", "finalizing")
            for id, content in uploads.items():
                assert client.sdk.files.content(id).content == content
            endpoint = CHAT if kill % 2 else RESPONSES
            made = client.start(rows_of(f"of {kill}", endpoint), endpoint)
            batches[made.id] = endpoint
            uploads[made.input_file_id] = client.sdk.files.content(made.input_file_id).content
            for _ in range(3):
                response = client.http.post("/responses", json={"input": f"said {rng.random()}"}).json()
                responses[response["id"]] = response
            if death == "-":
                least = rng.randint(0, ROWS - 5)
                client.until(made.id, lambda batch, n=least: batch.request_counts.completed >= n)  # type: ignore
                time.sleep(rng.random() * 0.02)
            else:
                for id in batches:
                    client.ended(id)
    assert len(batches) >= kills // 2
    assert servers.died == kills * 2 // 3
    with servers.life() as (client, _):
        for id, response in responses.items():
            assert client.http.get(f"/responses/{id}").json() == response
        for id, endpoint in batches.items():
            batch = client.ended(id)
            assert batch.status == "completed", batch
            answers, errors = client.rows(batch.output_file_id), client.rows(batch.error_file_id)
            found = sorted(int(name.rpartition(" ")[2]) for name in (*answers, *errors))
            assert found == list(range(ROWS))
            assert all(int(name.rpartition(" ")[2]) % 10 == 9 for name in errors)
            for name, answer in answers.items():
                body = answer["response"]["body"]
                said = body["choices"][0]["message"]["content"] if endpoint == CHAT else body["output"][-1]
                said = said if isinstance(said, str) else said["content"][0]["text"]
                assert said == f"text {name.rpartition(' ')[2]}"
            counts = {"total": ROWS, "completed": len(answers), "failed": len(errors)}
            assert batch.request_counts is not None and batch.request_counts.model_dump() == counts
        known = {file.id for file in client.sdk.files.list()}
    data = tmp_path / "data"
    assert {path.name for path in (data / "files").iterdir()} == known
    assert list((data / "rows").iterdir()) == []


@pytest.mark.slow
def test_a_server_that_is_told_to_stop_leaves_its_batches_for_the_next(servers: Servers) -> None:
    with servers.life() as (client, process):
        id = client.start(rows_of("a", CHAT) + rows_of("b", CHAT)).id
        client.until(id, lambda batch: batch.request_counts.completed > 3)
        os.kill(process, signal.SIGTERM)
        with contextlib.suppress(*Unreachable):
            while True:
                client.http.get("/batches")
    with servers.life() as (client, _):
        batch = client.ended(id)
        assert batch.status == "completed"
        assert len(client.rows(batch.output_file_id)) + len(client.rows(batch.error_file_id)) == 2 * ROWS


def test_a_batch_is_not_gone_on_with_on_another_model(start) -> None:
    with start({"chunk": 1}, engine_settings={"checkpoint": "a"}) as (client, _):
        id = client.start([row(str(number), "long" if number else "x") for number in range(20)]).id
        client.until(id, lambda batch: batch.request_counts.completed > 0)
    with start(engine_settings={"checkpoint": "b"}) as (client, _):
        batch = client.ended(id)
        assert batch.status == "failed"
        assert batch.errors is not None and batch.errors.data is not None
        assert batch.errors.data[0].code == "engine_changed"
        answers, errors = client.rows(batch.output_file_id), client.rows(batch.error_file_id)
        assert "0" in answers
        assert len(answers) + len(errors) == 20
        assert {one["error"]["code"] for one in errors.values()} == {"batch_failed"}
