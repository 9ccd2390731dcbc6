"""`gptoss-jax bench engine`: measures one part after the other, and reports each as soon as it is done."""

from __future__ import annotations

import dataclasses
import functools
import json
import time
from collections.abc import Callable, Iterator, Sequence

import jax
import jax.numpy as jnp

from gptoss_jax.bench.comparison import BenchError
from gptoss_jax.bench.engine import batching, grammar, kv, overhead, prefix, throughput
from gptoss_jax.bench.engine.report import LeftOut, Part
from gptoss_jax.bench.engine.settings import Settings
from gptoss_jax.bench.engine.target import BenchTarget
from gptoss_jax.engine import Engine

PARTS = ("throughput", "overhead", "batching", "prefix", "grammar", "kv")
_ON_ONE_ENGINE: dict[str, Callable[[BenchTarget, Settings, Engine], Part]] = {
    "overhead": overhead.measure,
    "batching": batching.measure,
    "prefix": prefix.measure,
    "grammar": grammar.measure,
    "kv": kv.measure,
}


@dataclasses.dataclass
class Report:
    """The results so far."""

    model: str
    dtype: str
    device: str
    settings: Settings
    parts: list[Part | LeftOut] = dataclasses.field(default_factory=list)

    @property
    def failed(self) -> bool:
        """Returns True if a part was left out."""
        return any(isinstance(part, LeftOut) for part in self.parts)

    @property
    def head(self) -> str:
        """One line with the model, its dtype and the devices."""
        return f"engine: {self.model}, {self.dtype}, on {self.device}; jax {jax.__version__}"

    def as_json(self) -> dict[str, object]:
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


def new_report(target: BenchTarget, settings: Settings) -> Report:
    """A report without results."""
    devices = target.mesh.devices.flat
    count = f"{target.mesh.size} x " if target.mesh.size > 1 else ""
    return Report(
        target.name, jnp.dtype(target.model.dtype).name, f"{count}{devices[0].device_kind}", settings
    )


def measure(
    target: BenchTarget,
    settings: Settings,
    only: Sequence[str] = PARTS,
    deadline: float = float("inf"),
) -> Iterator[Part | LeftOut]:
    """Measures the parts in `only`; yields each result as soon as it is done.

    A part that fails is yielded as `LeftOut` with the reason in one line, and so is a part that would start
    after the deadline, a time of `time.monotonic`.
    """
    if "throughput" in only:
        for sequences in settings.sequences:
            name = f"throughput {sequences}"
            yield _guarded(name, functools.partial(throughput.measure, target, settings, sequences), deadline)
    engine: Engine | None = None

    def on_one_engine(part: Callable[[BenchTarget, Settings, Engine], Part]) -> Part:
        nonlocal engine
        if engine is None or engine.unfinished:  # a part that failed may leave something behind
            options = {"slots": settings.slots, "max_length": settings.max_length}
            engine = target.engine(decode_steps=settings.decode_steps, **options)
        return part(target, settings, engine)

    for name, measured in _ON_ONE_ENGINE.items():
        if name in only:
            yield _guarded(name, functools.partial(on_one_engine, measured), deadline)
    if engine is not None:
        engine.close()


def _guarded(name: str, part: Callable[[], Part], deadline: float) -> Part | LeftOut:
    if time.monotonic() > deadline:
        return LeftOut(name, "no time is left")
    try:
        return part()
    except (BenchError, RuntimeError, ValueError) as error:  # does not fit, does not compile, differs
        return LeftOut(name, str(error).strip().partition("\n")[0])


def dump(reports: Sequence[Report]) -> str:
    """Reports as JSON text."""
    return json.dumps([report.as_json() for report in reports], indent=1) + "\n"
