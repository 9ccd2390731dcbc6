"""`gptoss-jax bench serve`: the engine alone and behind HTTP in turns, or any server by its address."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import json
import os
import random
import statistics
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import uvicorn

from gptoss_jax.bench.comparison import BenchError
from gptoss_jax.bench.engine.report import Figure, Goal, LeftOut, Part, millis, percent, ratios
from gptoss_jax.bench.serve.sides import Api, Burst, Client, Server, Steady, run_engine, serving
from gptoss_jax.openai_api import Context, prepare
from gptoss_jax.serve import ServerSettings
from gptoss_jax.tiny import sums
from gptoss_jax.tiny.splits import Split

if TYPE_CHECKING:
    from gptoss_jax.bench.engine.target import BenchTarget
    from gptoss_jax.engine import Engine
    from harmony import HarmonyEncoding

GOAL = Goal(maximum=5)
"""Percent of a step's time that HTTP may cost at `GOAL_STREAMS` streams."""
GOAL_STREAMS = 64

KEY_VARIABLE = "OPENAI_API_KEY"
"""The environment's variable with the API key of a server that is measured by its address."""

_PROMPT = 256
"""The most tokens that a prompt may have."""


@dataclasses.dataclass(frozen=True)
class Settings:
    """The sizes.

    streams: how many answers come at once, one part of the report for each. rounds: timings of each side.
    generated: tokens of each answer. apis: the APIs that are measured. fields: fields that each request has
    besides.
    """

    streams: Sequence[int] = (1, 8, 32, 64)
    rounds: int = 3
    generated: int = 256
    apis: Sequence[Api] = ("chat", "responses")
    fields: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass
class Report:
    """The results so far. `what`: what was measured, and on which cores."""

    what: str
    settings: Settings
    parts: list[Part | LeftOut] = dataclasses.field(default_factory=list)

    @property
    def failed(self) -> bool:
        """Returns True if a part was left out."""
        return any(isinstance(part, LeftOut) for part in self.parts)

    @property
    def head(self) -> str:
        """One line that says what was measured."""
        return f"serve: {self.what}"

    def as_json(self) -> dict[str, object]:
        """The report as JSON data."""
        return {
            "what": self.what,
            "settings": dataclasses.asdict(self.settings),
            "parts": [part.as_json() for part in self.parts],
        }


@dataclasses.dataclass(frozen=True)
class Cores:
    """The processor's cores of the server and of the client; None: all, where they cannot be told apart."""

    server: Sequence[int] | None = None
    client: Sequence[int] | None = None

    def __str__(self) -> str:
        if self.server is None or self.client is None:
            return "client and server on the same cores"
        return f"server on {_shown(self.server)}, client on {_shown(self.client)}"


def split_cores() -> Cores:
    """Gives the last core to the client and the others to this process.

    To be called before jax starts, which makes as many threads as there are cores. There is nothing to give
    where there is one core, or where processes cannot be bound to cores.
    """
    if not hasattr(os, "sched_setaffinity"):
        return Cores()
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        return Cores()
    os.sched_setaffinity(0, cores[:-1])
    return Cores(cores[:-1], cores[-1:])


def _shown(cores: Sequence[int]) -> str:
    return f"core {cores[0]}" if len(cores) == 1 else f"cores {', '.join(map(str, cores))}"


def report_beside(target: BenchTarget, settings: Settings, cores: Cores) -> Report:
    """A report without results on a model that is served here."""
    import jax

    device = target.mesh.devices.flat[0].device_kind
    versions = f"jax {jax.__version__}, uvicorn {uvicorn.__version__}"
    return Report(f"{target.name}, {target.model.dtype}, on {device}; {cores}; {versions}", settings)


def measure_beside(
    target: BenchTarget, settings: Settings, slots: int, cores: Cores
) -> Iterator[Part | LeftOut]:
    """Measures the engine alone and a server in turns, on two engines of one model with equal options."""
    if target.encoding is None:
        raise BenchError("serve needs llguidance and an encoding, which cannot be loaded")
    options = {"slots": slots, "max_length": _PROMPT + settings.generated}
    # Made to go on, the model begins one message after the other, which no answer does: the header guard
    # would take most of a dispatch back.
    server_settings = ServerSettings(target.name, header_guard=False)
    with target.engine(**options) as engine, contextlib.ExitStack() as stack:
        server = stack.enter_context(serving(target.engine(**options), target.encoding, server_settings))
        client = Client(cores.client)
        yield from _Beside(engine, target.encoding, server, server_settings, client, settings).measure()


def measure_url(url: str, model: str | None, settings: Settings) -> Iterator[Part | LeftOut]:
    """Measures any server. `model`: None for the first that it lists.

    Raises:
        BenchError: it does not say which models it has.
    """
    key = os.environ.get(KEY_VARIABLE)
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    if model is None:
        model = _first_model(url, headers)
    yield from _Alone(url.rstrip("/"), model, Client(headers=headers), settings).measure()


def _first_model(url: str, headers: Mapping[str, str]) -> str:
    asked = urllib.request.Request(f"{url.rstrip('/')}/models", headers=dict(headers))
    try:
        with urllib.request.urlopen(asked, timeout=60) as answer:
            return str(json.load(answer)["data"][0]["id"])
    except (OSError, ValueError, LookupError, TypeError) as error:
        reason = " ".join(str(error).split())
        raise BenchError(f"{url}/models does not say which models there are: {reason} (--model)") from None


def bodies_of(settings: Settings, api: Api, streams: int, number: int) -> list[dict[str, Any]]:
    """The bodies of a round's requests: sums that the embedded model was not trained on."""
    rng = random.Random(f"{streams} {number}")
    bodies = []
    for _ in range(streams):
        text = sums.question(rng, sums.draw(rng, Split.HELD_OUT))
        if api == "chat":
            body: dict[str, Any] = {
                "messages": [{"role": "user", "content": text}],
                "max_tokens": settings.generated,
                "stream_options": {"include_usage": True},
            }
        else:
            body = {"input": text, "max_output_tokens": settings.generated}
        bodies.append({"stream": True, **body, **settings.fields})
    return bodies


class _Beside:
    """Measures the engine alone and the server in turns, on two engines of one model with equal options."""

    def __init__(
        self,
        engine: Engine,
        encoding: HarmonyEncoding,
        server: Server,
        server_settings: ServerSettings,
        client: Client,
        settings: Settings,
    ) -> None:
        """`engine`: the one that stands alone; `server` has the other."""
        self._engine, self._encoding, self._server = engine, encoding, server
        self._client, self._settings = client, settings
        self._context = Context(
            engine,
            encoding,
            server_settings.sampling,
            server_settings.effort,
            server_settings.date or datetime.date.today().isoformat(),
            history=server_settings.history,
            header_guard=server_settings.header_guard,
        )

    def measure(self) -> Iterator[Part | LeftOut]:
        """Measures each number of streams; yields each result as soon as it is there."""
        for streams in self._settings.streams:
            try:
                yield self._part(streams)
            except BenchError as error:
                yield LeftOut(_name(streams), str(error))

    def _part(self, streams: int) -> Part:
        sides = ("engine", *self._settings.apis)
        bursts: dict[str, list[Burst]] = {side: [] for side in sides}
        for number in range(-1, self._settings.rounds):  # the first round compiles
            turn = number % len(sides)
            for side in sides[turn:] + sides[:turn]:
                burst = self._burst(side, streams, number)
                if number >= 0:
                    bursts[side].append(burst)
            if number >= 0:
                self._check(bursts)
        checked = [f"the streams of {' and '.join(self._settings.apis)} have the text of the engine's tokens"]
        figures = [
            Figure("engine: tokens/s", "1/s", tuple(b.tokens / b.seconds for b in bursts["engine"])),
            *_first_text("engine", bursts["engine"]),
            millis("engine: decode step", [_steady(b).step_seconds for b in bursts["engine"]]),
            _micros("engine: processor time a token", [_cpu(b) for b in bursts["engine"]]),
        ]
        for api in self._settings.apis:
            figures += self._figures(api, bursts[api], bursts["engine"], streams)
        return Part(
            _name(streams),
            f"{streams} streams at once, {self._settings.generated} tokens each, {self._engine.slots} slots",
            checked,
            figures,
        )

    def _burst(self, side: str, streams: int, number: int) -> Burst:
        for api in self._settings.apis:
            if side == api:
                bodies = self._bodies(api, streams, number)
                return self._server.run(self._client, api, bodies)
        requests = [
            prepare(body, "chat", self._context, id=f"req_{streams}_{number}_{index}", seed=None).request
            for index, body in enumerate(self._bodies("chat", streams, number))
        ]
        return run_engine(self._engine, self._encoding, requests)

    def _bodies(self, api: Api, streams: int, number: int) -> list[dict[str, Any]]:
        """The bodies with a seed each, so that all sides draw the same tokens, as many as asked for."""
        fixed = {"ignore_eos": True}
        return [
            {**fixed, "seed": index, **body}
            for index, body in enumerate(bodies_of(self._settings, api, streams, number))
        ]

    def _check(self, bursts: dict[str, list[Burst]]) -> None:
        """Raises BenchError unless the last burst of each side has the same texts."""
        ours = bursts["engine"][-1]
        for api in self._settings.apis:
            theirs = bursts[api][-1]
            if ours.texts != theirs.texts or ours.tokens != theirs.tokens:
                raise BenchError(f"the engine's text and that of {api} differ: nothing was measured")

    def _figures(
        self, api: str, bursts: Sequence[Burst], alone: Sequence[Burst], streams: int
    ) -> list[Figure]:
        goal = GOAL if streams == GOAL_STREAMS else None
        pairs = list(zip(bursts, alone, strict=True))
        return [
            Figure(f"{api}: tokens/s", "1/s", tuple(b.tokens / b.seconds for b in bursts)),
            ratios(
                f"{api}: tokens/s, of the engine's",
                [b.tokens / b.seconds for b in bursts],
                [b.tokens / b.seconds for b in alone],
            ),
            *_first_text(api, bursts),
            millis(f"{api}: decode step", [_steady(b).step_seconds for b in bursts]),
            percent(
                f"{api}: what HTTP adds to a step's time",
                [_steady(b).step_seconds / _steady(a).step_seconds - 1 for b, a in pairs],
                goal,
            ),
            percent(
                f"{api}: what HTTP adds to a step's processor time",
                [_steady(b).step_cpu / _steady(a).step_cpu - 1 for b, a in pairs],
                goal,
            ),
            _micros(f"{api}: processor time a token", [_cpu(b) for b in bursts]),
            _micros(f"{api}: HTTP's part of it", [_cpu(b) - _cpu(a) for b, a in pairs]),
        ]


class _Alone:
    """Measures a server of any make by its address."""

    def __init__(self, url: str, model: str, client: Client, settings: Settings) -> None:
        self._url, self._model = url, model
        self._client, self._settings = client, settings

    def measure(self) -> Iterator[Part | LeftOut]:
        """Measures each number of streams over each API, in turns; yields each result as soon as it is
        there."""
        for streams in self._settings.streams:
            for api in self._settings.apis:
                try:
                    yield self._part(api, streams)
                except BenchError as error:
                    yield LeftOut(f"{_name(streams)}, {api}", str(error))

    def _part(self, api: Api, streams: int) -> Part:
        bursts = []
        for number in range(-1, self._settings.rounds):  # the first round may compile
            bodies = bodies_of(self._settings, api, streams, number)
            burst = self._client.run(self._url, api, [{"model": self._model, **body} for body in bodies])
            if number >= 0:
                bursts.append(burst)
        figures = [
            Figure("tokens/s", "1/s", tuple(b.tokens / b.seconds for b in bursts)),
            *_first_text("", bursts),
            Figure("tokens of an answer", "", tuple(b.tokens / streams for b in bursts)),
        ]
        setting = f"{streams} streams at once, at most {self._settings.generated} tokens each"
        return Part(f"{_name(streams)}, {api}", setting, [], figures)


def _name(streams: int) -> str:
    return f"serve {streams}"


def _first_text(side: str, bursts: Sequence[Burst]) -> list[Figure]:
    side = f"{side}: " if side else ""
    return [
        millis(f"{side}first text, median", [statistics.median(b.first) for b in bursts]),
        millis(f"{side}first text, 90 % have it", [_ninetieth(b.first) for b in bursts]),
    ]


def _ninetieth(values: Sequence[float]) -> float:
    """The least value that nine tenths of the values do not exceed."""
    return sorted(values)[-(-9 * len(values) // 10) - 1]


def _micros(what: str, seconds: Sequence[float]) -> Figure:
    return Figure(what, "us", tuple(1e6 * value for value in seconds))


def _steady(burst: Burst) -> Steady:
    assert burst.steady is not None
    return burst.steady


def _cpu(burst: Burst) -> float:
    """Processor time for each token, in seconds."""
    return burst.cpu / burst.tokens
