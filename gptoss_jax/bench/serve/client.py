"""The client of `gptoss-jax bench serve`: a process of its own that streams many answers at once.

It reads a `Job`, one line of JSON, from standard input, opens its connections, and says "ready". Told
anything in a line, it sends its requests. When all answers have ended it says "done", and then the replies,
one line of JSON. It imports the standard library alone, so that it starts at once, and does nothing while
answers come but keep what it is sent with the time.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any
from urllib.parse import urlsplit

_READ = 1 << 16


@dataclasses.dataclass(frozen=True)
class Job:
    """Requests that are sent at once.

    url: the address of a server, which ends in ``/v1`` or whatever stands for it.
    path: what is asked for behind it, such as ``/chat/completions``.
    bodies: one for each stream, each on a connection of its own, which is open before the clock starts.
    headers: of every request.
    cores: the processor's cores that the client may use; None for all.
    seconds: how long a server may say nothing.
    """

    url: str
    path: str
    bodies: Sequence[dict[str, Any]]
    headers: dict[str, str]
    cores: Sequence[int] | None
    seconds: float


@dataclasses.dataclass(frozen=True)
class Reply:
    """What became of one stream. Times are seconds since all requests were let go.

    first: until the first text came, reasoning included; None if there was none.
    end: until the last byte came.
    tokens: those of the answer, as the usage says, or else the number of events with text.
    text: all of the text, reasoning included, in the order in which it came.
    error: why it failed; None if it did not.
    """

    first: float | None
    end: float
    tokens: int
    text: str
    error: str | None = None


def main() -> None:
    """Runs the job of standard input."""
    job = Job(**json.loads(sys.stdin.readline()))
    if job.cores is not None:
        os.sched_setaffinity(0, job.cores)
    replies = run(job)
    print(json.dumps([dataclasses.asdict(reply) for reply in replies]), flush=True)


def run(job: Job) -> list[Reply]:
    """Sends all requests at once, each in a thread, and reads the answers to their ends."""
    barrier = threading.Barrier(len(job.bodies) + 1)
    parts: list[list[tuple[float, bytes]]] = [[] for _ in job.bodies]
    errors: list[str | None] = [None] * len(job.bodies)

    def stream(number: int) -> None:
        try:
            errors[number] = _stream(job, number, barrier, parts[number])
        except (OSError, HTTPException, threading.BrokenBarrierError) as error:
            barrier.abort()
            errors[number] = " ".join(f"{type(error).__name__}: {error}".split())

    threads = [threading.Thread(target=stream, args=(number,)) for number in range(len(job.bodies))]
    for thread in threads:
        thread.start()
    with contextlib.suppress(threading.BrokenBarrierError):  # a thread tells why
        barrier.wait()
    print("ready", flush=True)
    sys.stdin.readline()
    start = time.perf_counter()
    with contextlib.suppress(threading.BrokenBarrierError):
        barrier.wait()
    for thread in threads:
        thread.join()
    print("done", flush=True)
    return [reply_of(part, error, start) for part, error in zip(parts, errors, strict=True)]


def _stream(
    job: Job, number: int, barrier: threading.Barrier, parts: list[tuple[float, bytes]]
) -> str | None:
    """Keeps what the server sends, with the times. Returns the error that the server tells, if it does."""
    url = urlsplit(job.url)
    make = HTTPSConnection if url.scheme == "https" else HTTPConnection
    connection = make(url.hostname or "", url.port, timeout=job.seconds)
    body = json.dumps(job.bodies[number]).encode()
    headers = {"Content-Type": "application/json", **job.headers}
    try:
        connection.connect()
        barrier.wait()  # all are connected
        barrier.wait()  # all are let go
        connection.request("POST", url.path.rstrip("/") + job.path, body, headers)
        answer = connection.getresponse()
        if answer.status != 200:
            said = answer.read(1000).decode("utf-8", "replace")
            return " ".join(f"status {answer.status}: {said}".split())
        while part := answer.read1(_READ):
            parts.append((time.perf_counter(), part))
        return None
    finally:
        connection.close()


def reply_of(parts: Sequence[tuple[float, bytes]], error: str | None, start: float) -> Reply:
    """What became of a stream: its parts with the times at which they came, and the time of the start."""
    first, texts, tokens = None, [], None
    for seconds, event in _events(parts):
        error = error or told_error(event)
        if text := text_of(event):
            texts.append(text)
            first = seconds - start if first is None else first
        tokens = tokens_of(event) or tokens
    if error is None and first is None:
        error = "the stream has no text"
    end = parts[-1][0] - start if parts else 0.0
    return Reply(first, end, len(texts) if tokens is None else tokens, "".join(texts), error)


def _events(parts: Sequence[tuple[float, bytes]]) -> Iterator[tuple[float, dict[str, Any]]]:
    """The events of a stream that are JSON objects, each with the time at which it was whole."""
    rest = b""
    for seconds, part in parts:
        *lines, rest = (rest + part).split(b"\n")
        for line in lines:
            if line.startswith(b"data:") and line[5:].strip() != b"[DONE]":
                event = json.loads(line[5:])
                if isinstance(event, dict):
                    yield seconds, event


def text_of(event: dict[str, Any]) -> str:
    """The new text of an event of either API; "" if it has none."""
    if event.get("type") in ("response.output_text.delta", "response.reasoning_text.delta"):
        return str(event["delta"])
    deltas = [choice.get("delta") or {} for choice in event.get("choices") or ()]
    return "".join(
        delta.get("reasoning") or delta.get("reasoning_content") or delta.get("content") or ""
        for delta in deltas
    )


def tokens_of(event: dict[str, Any]) -> int | None:
    """The tokens of the answer by the usage in an event of either API; None if it has none."""
    usage = event.get("usage") or (event.get("response") or {}).get("usage") or {}
    return usage.get("completion_tokens") or usage.get("output_tokens")


def told_error(event: dict[str, Any]) -> str | None:
    """The error that an event of either API tells; None if it tells none."""
    if event.get("error"):
        return json.dumps(event["error"])
    if event.get("type") in ("error", "response.failed"):
        return json.dumps(event)
    return None


if __name__ == "__main__":
    main()
