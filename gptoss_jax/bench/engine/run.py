"""What `gptoss-jax bench engine` does: measure part after part, and tell of each as soon as it is done."""

from __future__ import annotations

import dataclasses
import functools
import json
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from gptoss_jax.bench.comparison import BenchError
from gptoss_jax.bench.engine import batching, grammar, kv, overhead, prefix, throughput
from gptoss_jax.bench.engine.report import LeftOut, Part
from gptoss_jax.bench.engine.settings import Settings
from gptoss_jax.bench.engine.subject import Subject
from gptoss_jax.engine import Engine

PARTS = ("throughput", "overhead", "batching", "prefix", "grammar", "kv")
_ON_ONE_ENGINE: dict[str, Callable[[Subject, Settings, Engine], Part]] = {
    "overhead": overhead.measure,
    "batching": batching.measure,
    "prefix": prefix.measure,
    "grammar": grammar.measure,
    "kv": kv.measure,
}


@dataclasses.dataclass
class Report:
    """What was measured so far."""

    model: str
    dtype: str
    device: str
    settings: Settings
    parts: list[Part | LeftOut] = dataclasses.field(default_factory=list)

    @property
    def failed(self) -> bool:
        """Whether a part was left out."""
        return any(isinstance(part, LeftOut) for part in self.parts)

    @property
    def head(self) -> str:
        """One line on what is measured where."""
        return f"engine: {self.model}, {self.dtype}, on {self.device}; jax {jax.__version__}"

    def as_json(self) -> dict[str, Any]:
        """The report as JSON data."""
        return {
            "model": self.model,
            "dtype": self.dtype,
            "device": self.device,
            "jax": jax.__version__,
            "settings": dataclasses.asdict(self.settings),
            "parts": [part.as_json() for part in self.parts],
        }

    def __str__(self) -> str:
        return "\n\n".join([self.head, *map(str, self.parts)])


def new_report(subject: Subject, settings: Settings) -> Report:
    """A report without parts."""
    devices = subject.mesh.devices.flat
    count = f"{subject.mesh.size} x " if subject.mesh.size > 1 else ""
    return Report(
        subject.name, jnp.dtype(subject.model.dtype).name, f"{count}{devices[0].device_kind}", settings
    )


def measure(
    subject: Subject,
    settings: Settings,
    only: Sequence[str] = PARTS,
    deadline: float = float("inf"),
) -> Iterator[Part | LeftOut]:
    """The parts, each as soon as it is done. One that fails is left out, with its reason in one line; so is
    what would begin after the deadline, by `time.monotonic`."""
    if "throughput" in only:
        yield from _guarded("throughput", lambda: throughput.measure(subject, settings), deadline)
    rest = [name for name in PARTS if name in only and name in _ON_ONE_ENGINE]
    if not rest:
        return
    with subject.engine(
        slots=settings.slots, max_length=settings.max_length, decode_steps=settings.decode_steps
    ) as engine:
        for name in rest:
            part = _ON_ONE_ENGINE[name]
            todo = functools.partial(_one, part, subject, settings, engine)
            yield from _guarded(name, todo, deadline)
            if engine.unfinished:  # a part failed on the way
                return


def _one(
    part: Callable[[Subject, Settings, Engine], Part], subject: Subject, settings: Settings, engine: Engine
) -> Iterator[Part]:
    yield part(subject, settings, engine)


def _guarded(name: str, parts: Callable[[], Iterator[Part]], deadline: float) -> Iterator[Part | LeftOut]:
    if time.monotonic() > deadline:
        yield LeftOut(name, "no time is left")
        return
    try:
        for part in parts():
            yield part
            if time.monotonic() > deadline:
                return
    except BenchError as error:
        yield LeftOut(name, str(error))
    except (jax.errors.JaxRuntimeError, RuntimeError) as error:
        yield LeftOut(name, str(error).strip().partition("\n")[0])


def dump(reports: Sequence[Report]) -> str:
    """Reports as JSON text."""
    return json.dumps([report.as_json() for report in reports], indent=1) + "\n"
