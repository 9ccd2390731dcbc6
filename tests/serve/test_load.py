"""Many clients at once, and many that leave: all are answered or told to come back, and nothing stays."""

from __future__ import annotations

import asyncio
import json
import time

import httpx
import pytest

from gptoss_jax.serve.settings import ServerSettings

ANSWER = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>5.<|return|>"
LONG = "<|channel|>final<|message|>" + "and so on " * 400 + "<|return|>"


async def ask(
    port: int, *, stream: bool, leave_after: int | None = None, **fields: object
) -> tuple[int, bytes]:
    """The status and the body of an answer; of one that is left, as many bytes of it."""
    asked = {"messages": [{"role": "user", "content": "Hi"}], "stream": stream, **fields}
    body = json.dumps(asked).encode()
    head = f"Host: x\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(b"POST /v1/chat/completions HTTP/1.1\r\n" + head.encode() + body)
        await writer.drain()
        said = await (reader.read() if leave_after is None else reader.readexactly(leave_after))
    finally:
        writer.close()
    return int(said.split(b" ", 2)[1]), said.partition(b"\r\n\r\n")[2]


def port_of(url: str) -> int:
    return int(url.rpartition(":")[2])


@pytest.mark.parametrize("clients", [60, pytest.param(1584, marks=pytest.mark.slow)])
def test_all_who_ask_at_once_are_answered_or_told_to_come_back(scripted, clients: int) -> None:
    most = clients * 3 // 4
    server = scripted(ANSWER, slots=32, settings={"max_samples": most})
    server.engine.gate.clear()

    async def ask_all() -> list[tuple[int, bytes]]:
        asked = [asyncio.ensure_future(ask(port_of(server.url), stream=n % 2 == 0)) for n in range(clients)]
        end = time.monotonic() + 60
        while f"gptoss_jax_refused_requests_total {float(clients - most)}" not in await asyncio.to_thread(
            server.figures
        ):
            assert time.monotonic() < end
            await asyncio.sleep(0.05)
        server.engine.gate.set()
        return await asyncio.gather(*asked)

    answers = asyncio.run(ask_all())
    assert [status for status, _ in answers].count(200) == most
    assert [status for status, _ in answers].count(429) == clients - most
    whole = [body for status, body in answers if status == 200]
    assert all(b'"finish_reason":"stop"' in body for body in whole)
    server.wait_until_idle()
    assert "gptoss_jax_unfinished_samples 0.0" in server.figures()


@pytest.mark.parametrize("clients", [10, pytest.param(100, marks=pytest.mark.slow)])
def test_clients_that_vanish_in_mid_stream_leave_nothing_busy(scripted, clients: int) -> None:
    server = scripted(LONG, chunk=1, slots=8)
    assert ServerSettings().max_samples >= clients

    async def leave_all() -> None:
        asked = (ask(port_of(server.url), stream=True, leave_after=200) for _ in range(clients))
        await asyncio.gather(*asked)

    asyncio.run(leave_all())
    end = time.monotonic() + 30
    while f"gptoss_jax_cancelled_requests_total {float(clients)}" not in server.figures():
        assert time.monotonic() < end
        time.sleep(0.02)
    server.wait_until_idle()
    assert "gptoss_jax_unfinished_samples 0.0" in server.figures()


@pytest.mark.parametrize("clients", [10, pytest.param(100, marks=pytest.mark.slow)])
def test_clients_that_vanish_leave_no_busy_slot_and_no_busy_page_of_a_real_engine(
    tiny_url: str, clients: int
) -> None:
    cancelled = figure(tiny_url, "gptoss_jax_cancelled_requests_total")

    async def leave_all() -> None:
        # Made to go on, so that none has ended by itself when its client leaves.
        asked = (
            ask(port_of(tiny_url), stream=True, leave_after=200, ignore_eos=True) for _ in range(clients)
        )
        await asyncio.gather(*asked)

    asyncio.run(leave_all())
    end = time.monotonic() + 60
    while figure(tiny_url, "gptoss_jax_cancelled_requests_total") < cancelled + clients:
        assert time.monotonic() < end
        time.sleep(0.02)
    while figure(tiny_url, "gptoss_jax_engine_samples"):
        assert time.monotonic() < end
        time.sleep(0.02)
    assert figure(tiny_url, 'gptoss_jax_pages{state="used"}') == 0
    assert figure(tiny_url, "gptoss_jax_num_requests_running") == 0
    assert figure(tiny_url, "gptoss_jax_unfinished_samples") == 0


def figure(url: str, name: str) -> float:
    """A figure of `/metrics`."""
    told = httpx.get(f"{url}/metrics", timeout=60).text
    return next(float(line.split()[-1]) for line in told.splitlines() if line.startswith(f"{name} "))
