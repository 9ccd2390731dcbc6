"""A server in a process of its own: how it starts, and how it ends."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

ROOT = Path(__file__).resolve().parents[2]
BODY = {"messages": [{"role": "user", "content": "Hi"}], "stream": True}

SERVER = """
import sys
from tests.llm.fake_engine import FakeEngine, Script
from checkpoints import open_checkpoint
from gptoss_jax.serve import ServerSettings, create_app, run_server
from gptoss_jax.serve.server import listen
from gptoss_jax.vocabulary import load_encoding_for

encoding = load_encoding_for(open_checkpoint("tiny"))
text = "<|channel|>final<|message|>" + "and so on " * int(sys.argv[1]) + "<|return|>"
tokens = encoding.encode(text, allowed_special="all")
fail_at = int(sys.argv[3]) or None
engine = FakeEngine(lambda request, sample: Script(tokens), chunk=1, fail_at=fail_at)
listening = listen("127.0.0.1", 0)
print(f"scripted on http://127.0.0.1:{listening.getsockname()[1]}/v1", file=sys.stderr, flush=True)
app = create_app(engine, encoding, ServerSettings())
failure = run_server(app, listening, drain_seconds=float(sys.argv[2]))
print(failure, file=sys.stderr)
sys.exit(0 if failure is None else 1)
"""


@contextlib.contextmanager
def running(*command: str, seconds: float = 120) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The process of a server, and its address; it is killed after so many seconds."""
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    process = subprocess.Popen(
        [sys.executable, *command], stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": path}
    )
    watchdog = threading.Timer(seconds, process.kill)
    watchdog.start()
    try:
        assert process.stderr is not None
        found = None
        for line in process.stderr:
            if found := re.search(r" on (http://127\.0\.0\.1:\d+)/v1$", line.rstrip()):
                break
        assert found is not None
        yield process, found[1]
    finally:
        watchdog.cancel()
        process.kill()
        process.communicate()


def stream_through(url: str, process: subprocess.Popen[str], number: signal.Signals) -> list[str]:
    """The events of a stream during which the server gets a signal."""
    events = []
    with httpx.stream("POST", f"{url}/v1/chat/completions", json=BODY, timeout=60) as answer:
        for line in answer.iter_lines():
            if line.startswith("data: "):
                events.append(line.removeprefix("data: "))
                if len(events) == 3:
                    process.send_signal(number)
    return events


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_a_server_that_is_told_to_stop_ends_its_streams_first(number: signal.Signals) -> None:
    with running("-c", SERVER, "300", "60", "0") as (process, url):
        events = stream_through(url, process, number)
        assert events[-1] == "[DONE]"
        assert json.loads(events[-2])["choices"][0]["finish_reason"] == "stop"
        assert process.wait(20) == 0


def test_what_is_not_done_in_time_ends_with_an_error_that_says_so() -> None:
    with running("-c", SERVER, "20000", "0.2", "0") as (process, url):
        events = stream_through(url, process, signal.SIGTERM)
        assert json.loads(events[-2])["error"]["message"] == "the engine was closed"
        assert process.wait(20) == 0


def test_a_server_whose_engine_failed_ends_with_the_reason() -> None:
    with running("-c", SERVER, "300", "60", "5") as (process, url):
        answer = httpx.post(f"{url}/v1/chat/completions", json={**BODY, "stream": False}, timeout=30)
        assert answer.status_code == 503
        assert process.wait(20) == 1
        assert process.stderr is not None
        assert "on fire" in process.stderr.read()


def test_the_command_serves_the_embedded_model_until_sigterm() -> None:
    with running("-m", "gptoss_jax", "serve", "--port", "0", "--slots", "1") as (process, url):
        end = time.monotonic() + 60
        while httpx.get(f"{url}/ready", timeout=60).status_code != 200:
            assert time.monotonic() < end
            time.sleep(0.05)
        assert httpx.get(f"{url}/v1/models", timeout=60).json()["data"][0]["id"] == "tiny"
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--host", "192.0.2.1"], "cannot listen on 192.0.2.1 port 8000"),
        (["--port", "70000"], "--port is 70000: it must be from 0 to 65535"),
        (["--api-key-file", "/nowhere/keys"], "/nowhere/keys"),
    ],
)
def test_what_keeps_a_server_from_starting_is_one_line(arguments: list[str], message: str, capsys) -> None:
    from gptoss_jax.cli import main

    assert main(["serve", *arguments]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1
