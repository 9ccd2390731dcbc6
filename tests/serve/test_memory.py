"""Thousands of requests of every kind leave the server's memory as it was."""

from __future__ import annotations

import asyncio
import json
import random
import resource
import statistics
from pathlib import Path

import httpx
import pytest

from tests.serve.test_process import running

SERVER = """
import sys
from pathlib import Path
from tests.llm.fake_engine import FakeEngine, Script
from checkpoints import open_checkpoint
from gptoss_jax.serve import ServerSettings, create_app, run_server
from gptoss_jax.serve.server import listen
from gptoss_jax.serve.store import ResponseStore
from gptoss_jax.vocabulary import load_encoding_for


class Forgetful(FakeEngine):
    '''Keeps no request that has ended: what grows is then the server's.'''

    def step(self):
        updates = super().step()
        self.log.clear()
        for update in updates:
            if update.completion is not None:
                self.requests.pop(update.id, None)
        return updates


encoding = load_encoding_for(open_checkpoint("tiny"))
thought = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant"
call = '<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a":1}<|call|>'
texts = [thought + "<|channel|>final<|message|>5.<|return|>", thought + call]
texts.append(thought + "<|channel|>final<|message|>" + "and so on " * 40 + "<|return|>")
scripts = [Script(encoding.encode(text, allowed_special="all")) for text in texts]
engine = Forgetful(lambda request, sample: scripts[len(request.prompt) % 3], chunk=16, slots=64)
store = ResponseStore(Path(sys.argv[1]), max_bytes=1 << 20, max_age_seconds=1e6)
listening = listen("127.0.0.1", 0)
print(f"scripted on http://127.0.0.1:{listening.getsockname()[1]}/v1", file=sys.stderr, flush=True)
app = create_app(engine, encoding, ServerSettings(), store=store)
run_server(app, listening, drain_seconds=5)
"""

AT_ONCE = 16
BLOCK, BLOCKS, WARM = 512, 20, 4
"""Requests between two looks at the memory, the number of looks, and the look after which caches are full."""

MOST_KEPT = 512
"""Bytes that a request may leave behind on average: fewer than any part of one that could be kept has. Its
parsed body alone, a dict with a list or a text in it, has more. What is below is the
allocator's, which takes arenas."""


def request_of(rng: random.Random) -> tuple[str, bytes, bool]:
    """A path, a body, and whether the client leaves before the answer has ended."""
    text = "word " * rng.randrange(1, 30)
    stream = rng.random() < 0.6
    kind = rng.randrange(10)
    if kind == 0:  # errors: no JSON, a wrong field, no such address
        return rng.choice(
            [
                ("/v1/responses", b"{", False),
                ("/v1/chat/completions", b'{"messages":[],"n":-1}', False),
                (f"/v1/x{rng.random()}", b"{}", False),
            ]
        )
    tools = [{"name": f"f{rng.randrange(10**6)}", "parameters": {"type": "object", "properties": {}}}]
    if kind < 5:
        functions = [{"type": "function", "function": tool} for tool in tools]
        body = {"messages": [{"role": "user", "content": text}], "stream": stream, "tools": functions}
        return "/v1/chat/completions", json.dumps(body).encode(), kind == 1
    body = {"input": text, "stream": stream, "store": rng.random() < 0.5}
    if kind == 9:
        body |= {"background": True, "stream": False, "store": True}
    return "/v1/responses", json.dumps(body).encode(), kind == 5


async def ask(port: int, path: str, body: bytes, leaves: bool) -> int:
    """The status of an answer, or 0 of one that is left."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
    try:
        writer.write(head.encode() + body)
        if leaves:  # in the midst of its answer, or, of one that is no stream, before it
            if b'"stream": true' in body:
                await reader.read(1)
            return 0
        return int((await reader.read()).split(b" ", 2)[1])
    finally:
        writer.close()


async def ask_many(port: int, rng: random.Random, count: int) -> dict[int, int]:
    """How many answers had each status, of so many requests, a few at once."""
    statuses: dict[int, int] = {}

    async def worker() -> None:
        for _ in range(count // AT_ONCE):
            status = await ask(port, *request_of(rng))
            statuses[status] = statuses.get(status, 0) + 1

    await asyncio.gather(*(worker() for _ in range(AT_ONCE)))
    return statuses


def resident_bytes(pid: int) -> int:
    """The resident memory of a process."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize()


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="resident memory is read from /proc")
@pytest.mark.slow
def test_ten_thousand_requests_leave_the_servers_memory_flat(tmp_path: Path) -> None:
    rng = random.Random(11)
    with running("-c", SERVER, str(tmp_path / "store"), seconds=900) as (process, url):
        port = int(url.rpartition(":")[2])
        sizes = []
        for _ in range(BLOCKS):
            statuses = asyncio.run(ask_many(port, rng, BLOCK))
            assert set(statuses) == {0, 200, 400, 404, 422}, statuses
            sizes.append(resident_bytes(process.pid))
        figures = httpx.get(f"{url}/metrics", timeout=60).text
    assert "gptoss_jax_unfinished_samples 0.0" in figures
    warm, last = sizes[WARM - 1], statistics.mean(sizes[-4:])
    grown = (last - warm) / (BLOCK * (BLOCKS - WARM))
    assert grown < MOST_KEPT, f"{grown:.0f} bytes a request: {[size >> 10 for size in sizes]} KiB"
