"""What is measured: the engine alone, and servers over HTTP, on the same requests."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import uvicorn

from gptoss_jax.answers import PreambleDelta, ReasoningDelta, SampleReader, TextDelta
from gptoss_jax.bench.comparison import BenchError
from gptoss_jax.bench.serve.client import Job, Reply
from gptoss_jax.serve import ServerSettings, create_app
from gptoss_jax.serve.server import listen, uvicorn_config

if TYPE_CHECKING:
    from gptoss_jax.engine import Engine, Request
    from gptoss_jax.engine.request import Update
    from harmony import HarmonyEncoding

Api = Literal["chat", "responses"]
PATHS: dict[Api, str] = {"chat": "/chat/completions", "responses": "/responses"}
_CLIENT_SECONDS = 600.0
"""How long a server may say nothing."""


class Step(NamedTuple):
    """One turn of the engine: when it ended, the processor time of the process by then, what it brought."""

    seconds: float
    cpu: float
    updates: list[Update]


@dataclasses.dataclass(frozen=True)
class Steady:
    """The stretch in which all sequences decode: between the turn that brings the last of them its first
    tokens and the turn in which the first of them ends.

    step_seconds, step_cpu: of a decode step of all sequences, on the clock and of the process' processor
    time.
    """

    step_seconds: float
    step_cpu: float


@dataclasses.dataclass(frozen=True)
class Burst:
    """What became of requests that were sent at once.

    seconds: until the last one had ended.
    first: seconds until the first text of each.
    tokens: of all answers.
    texts: for each answer its text without white space, which the APIs put in different places.
    cpu: processor time of this process meanwhile, in seconds.
    steady: None if the engine is not in this process.
    """

    seconds: float
    first: Sequence[float]
    tokens: int
    texts: Sequence[str]
    cpu: float
    steady: Steady | None = None


@contextlib.contextmanager
def recorded(engine: Engine) -> Iterator[list[Step]]:
    """Records the turns of an engine, in whichever thread they are."""
    steps: list[Step] = []
    step = engine.step

    def recording() -> list[Update]:
        updates = step()
        steps.append(Step(time.perf_counter(), time.process_time(), updates))
        return updates

    engine.step = recording  # type: ignore[method-assign]
    try:
        yield steps
    finally:
        engine.step = step  # type: ignore[method-assign]


def steady_of(steps: Sequence[Step], sequences: int) -> Steady:
    """The steady stretch of so many sequences. Raises `BenchError` if there is none."""
    begun: set[str] = set()
    tokens, began = 0, None
    for seconds, cpu, updates in steps:
        begun |= {update.id for update in updates if update.tokens}
        tokens += sum(len(update.tokens) for update in updates)
        if began is None and len(begun) == sequences:
            began = seconds, cpu, tokens
        if any(update.completion is not None for update in updates):
            if began is None or tokens <= began[2]:
                break
            count = (tokens - began[2]) / sequences
            return Steady((seconds - began[0]) / count, (cpu - began[1]) / count)
    raise BenchError(f"{sequences} streams: the first ended before the last had begun; they must be longer")


def run_engine(engine: Engine, encoding: HarmonyEncoding, requests: Sequence[Request]) -> Burst:
    """The requests on the engine alone: nothing is parsed before the clock has stopped."""
    with recorded(engine) as steps:
        start, cpu = time.perf_counter(), time.process_time()
        for request in requests:
            engine.add(request)
        while engine.unfinished:
            engine.step()
    texts = {request.id: "" for request in requests}
    first: dict[str, float] = {}
    readers = {request.id: SampleReader(encoding, request.id) for request in requests}
    for step in steps:
        for update in step.updates:
            for event in readers[update.id].read(update):
                if isinstance(event, ReasoningDelta | PreambleDelta | TextDelta):
                    first.setdefault(update.id, step.seconds - start)
                    texts[update.id] += event.text
    return Burst(
        seconds=steps[-1].seconds - start,
        first=list(first.values()),
        tokens=sum(len(update.tokens) for step in steps for update in step.updates),
        texts=["".join(text.split()) for text in texts.values()],
        cpu=steps[-1].cpu - cpu,
        steady=steady_of(steps, len(requests)),
    )


class Server:
    """A server of this package in a thread of this process."""

    def __init__(self, engine: Engine, url: str) -> None:
        self.url = url
        self._engine = engine

    def run(self, client: Client, api: Api, bodies: Sequence[dict[str, Any]]) -> Burst:
        """The requests over HTTP, and what they cost in this process."""
        with recorded(self._engine) as steps:
            burst = client.run(self.url, api, bodies)
        return dataclasses.replace(burst, steady=steady_of(steps, len(bodies)))


@contextlib.contextmanager
def serving(engine: Engine, encoding: HarmonyEncoding, settings: ServerSettings) -> Iterator[Server]:
    """A server on the loopback address. The engine is closed with it."""
    listening = listen("127.0.0.1", 0)
    app = create_app(engine, encoding, settings, statistics=engine.statistics)
    server = uvicorn.Server(uvicorn_config(app))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    try:
        yield Server(engine, f"http://127.0.0.1:{listening.getsockname()[1]}/v1")
    finally:
        server.should_exit = True
        thread.join()


@dataclasses.dataclass(frozen=True)
class Client:
    """Starts the client's process for each burst.

    cores: those it may use; None for all. headers: of every request.
    """

    cores: Sequence[int] | None = None
    headers: dict[str, str] = dataclasses.field(default_factory=dict)

    def run(self, url: str, api: Api, bodies: Sequence[dict[str, Any]]) -> Burst:
        """Sends all requests at once. Raises `BenchError` if one of them fails."""
        job = Job(url, PATHS[api], bodies, self.headers, self.cores, _CLIENT_SECONDS)
        command = [sys.executable, "-m", "gptoss_jax.bench.serve.client"]
        try:
            with subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            ) as client:
                assert client.stdin is not None
                assert client.stdout is not None
                print(json.dumps(dataclasses.asdict(job)), file=client.stdin, flush=True)
                client.stdout.readline()  # it is connected
                cpu = time.process_time()
                print(file=client.stdin, flush=True)
                client.stdout.readline()  # all answers have ended
                cpu = time.process_time() - cpu
                said = client.stdout.readline()
        except BrokenPipeError:
            said = ""
        if not said:
            raise BenchError("the client's process failed: its reason is on standard error")
        replies = [Reply(**reply) for reply in json.loads(said)]
        errors = [reply.error for reply in replies if reply.error is not None]
        if errors:
            raise BenchError(f"{len(errors)} of {len(replies)} streams failed, the first: {errors[0][:300]}")
        return Burst(
            seconds=max(reply.end for reply in replies),
            first=[reply.first for reply in replies if reply.first is not None],
            tokens=sum(reply.tokens for reply in replies),
            texts=["".join(reply.text.split()) for reply in replies],
            cpu=cpu,
        )
