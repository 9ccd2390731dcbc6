"""A server that is killed in the midst of requests has kept every response that a client was told of."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.serve.test_memory import SERVER
from tests.serve.test_process import running

CLIENTS = 4
ROOMY = SERVER.replace("max_bytes=1 << 20", "max_bytes=1 << 30")
assert ROOMY != SERVER  # else old responses would make room for new ones


def tell(url: str, told: list[dict[str, Any]], enough: threading.Event) -> None:
    """Asks until the server is gone; notes each response that it was told of."""
    with httpx.Client(timeout=60) as client:
        while True:
            try:
                answer = client.post(f"{url}/v1/responses", json={"input": f"word {len(told)}"})
            except httpx.TransportError:
                return
            told.append(answer.json())
            if len(told) >= 3 * CLIENTS:
                enough.set()


@pytest.mark.parametrize("kills", [2, pytest.param(20, marks=pytest.mark.slow)])
def test_responses_that_clients_were_told_of_survive_kill_9_of_the_server(tmp_path: Path, kills: int) -> None:
    told: list[dict[str, Any]] = []
    for kill in range(kills + 1):
        with running("-c", ROOMY, str(tmp_path / "store")) as (process, url):
            with httpx.Client(base_url=f"{url}/v1", timeout=60) as client:
                for response in told:
                    assert client.get(f"/responses/{response['id']}").json() == response
            if kill == kills:
                break
            new: list[dict[str, Any]] = []
            enough = threading.Event()
            threads = [threading.Thread(target=tell, args=(url, new, enough)) for _ in range(CLIENTS)]
            for thread in threads:
                thread.start()
            assert enough.wait(60)
            process.kill()
            for thread in threads:
                thread.join()
            told += new
    assert len(told) >= 3 * CLIENTS * kills
