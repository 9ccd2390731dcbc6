"""What `/metrics` tells, in Prometheus' form."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from gptoss_jax.answers import Sample, usage_of

if TYPE_CHECKING:
    from gptoss_jax.engine.engine_thread import EngineLike
    from gptoss_jax.engine.statistics import Statistics

_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
_STEP_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1)


class Metrics:
    """The figures of one server, in a registry of their own."""

    def __init__(self, engine: EngineLike, statistics: Statistics | None) -> None:
        """`statistics`: the engine's own figures, if it has any."""
        self.registry = CollectorRegistry()
        name = "gptoss_jax"
        self.requests = Counter(
            f"{name}_http_requests", "HTTP requests.", ["path", "status"], registry=self.registry
        )
        self.request_seconds = Histogram(
            f"{name}_http_request_seconds",
            "From the first byte of a request to the last one of its answer.",
            ["path"],
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.first_token_seconds = Histogram(
            f"{name}_first_token_seconds",
            "From the start of a generation to its first tokens.",
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.token_seconds = Histogram(
            f"{name}_token_seconds",
            "Time of a generation for each token of its longest sample.",
            buckets=_STEP_SECONDS,
            registry=self.registry,
        )
        self._tokens = Counter(
            f"{name}_tokens",
            "Tokens of finished requests: prompt, cached (a part of prompt), generated, reasoning (a part of "
            "generated).",
            ["kind"],
            registry=self.registry,
        )
        self._samples = Counter(
            f"{name}_samples", "Finished samples.", ["finish_reason"], registry=self.registry
        )
        self.refused = Counter(
            f"{name}_refused_requests", "Requests refused as the server was full.", registry=self.registry
        )
        self.cancelled = Counter(
            f"{name}_cancelled_requests", "Requests given up before their end.", registry=self.registry
        )
        slots = Gauge(f"{name}_slots", "Samples that can decode side by side.", registry=self.registry)
        slots.set_function(lambda: engine.slots)
        in_engine = Gauge(
            f"{name}_engine_samples", "Samples that the engine runs or queues.", registry=self.registry
        )
        in_engine.set_function(lambda: engine.unfinished)
        self.unfinished = Gauge(
            f"{name}_unfinished_samples", "Samples that run or wait in the server.", registry=self.registry
        )
        if statistics is not None:
            self.registry.register(_EngineFigures(statistics))

    def count_samples(self, samples: Sequence[Sample], seconds: float) -> None:
        """Counts the samples of a request that is finished after so many seconds."""
        usage = usage_of(samples)
        self._tokens.labels("prompt").inc(usage.prompt_tokens)
        self._tokens.labels("cached").inc(usage.cached_tokens)
        self._tokens.labels("generated").inc(usage.generated_tokens)
        self._tokens.labels("reasoning").inc(usage.reasoning_tokens)
        for sample in samples:
            self._samples.labels(sample.finish_reason).inc()
        longest = max(len(sample.tokens) for sample in samples)
        if longest:
            self.token_seconds.observe(seconds / longest)

    def text(self) -> bytes:
        """All figures as they are now."""
        return generate_latest(self.registry)


class _EngineFigures(Collector):
    """The sums of `Statistics`, read when they are asked for."""

    def __init__(self, statistics: Statistics) -> None:
        self._statistics = statistics

    def collect(self) -> Iterator[CounterMetricFamily]:
        """The figures."""
        for field in dataclasses.fields(self._statistics):
            about = f"{field.name} of the engine's statistics."
            family = CounterMetricFamily(f"gptoss_jax_engine_{field.name}", about)
            family.add_metric([], getattr(self._statistics, field.name))
            yield family
