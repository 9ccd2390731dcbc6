"""What `/metrics` tells, in Prometheus' form."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gptoss_jax.answers import Sample, usage_of

if TYPE_CHECKING:
    from gptoss_jax.engine.engine_thread import EngineLike
    from gptoss_jax.engine.statistics import Occupancy, Statistics

_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
_STEP_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1)


class Metrics:
    """The figures of one server, in a registry of their own."""

    def __init__(
        self,
        engine: EngineLike,
        statistics: Statistics | None,
        occupancy: Callable[[], Occupancy] | None = None,
    ) -> None:
        """`statistics`, `occupancy`: the engine's own figures, if it has any."""
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
        self.tool_calls = Counter(
            f"{name}_tool_calls",
            "Calls of built-in tools that were run.",
            ["tool", "outcome"],
            registry=self.registry,
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
            self.registry.register(_CacheFigures(statistics))
        if occupancy is not None:
            self.registry.register(_OccupancyFigures(occupancy))

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


class _CacheFigures(Collector):
    """The figures of the prefix cache and of preemption by the names that dashboards look for."""

    def __init__(self, statistics: Statistics) -> None:
        self._statistics = statistics

    def collect(self) -> Iterator[Metric]:
        """The figures."""
        now = self._statistics
        for name, about, value in (
            (
                "prefix_cache_queries",
                "Prompt tokens that were looked for in the prefix cache.",
                now.prompt_tokens,
            ),
            ("prefix_cache_hits", "Prompt tokens that came from the prefix cache.", now.cached_tokens),
            ("num_preemptions", "How often a sample lost its slot and pages to others.", now.preemptions),
        ):
            yield CounterMetricFamily(f"gptoss_jax_{name}", about, value=value)


class _OccupancyFigures(Collector):
    """Slots, queue and pages, read when they are asked for."""

    def __init__(self, occupancy: Callable[[], Occupancy]) -> None:
        self._occupancy = occupancy

    def collect(self) -> Iterator[Metric]:
        """The figures."""
        now = self._occupancy()
        pages = now.used_pages + now.cached_pages + now.free_pages
        for name, about, value in (
            ("num_requests_running", "Samples that have a slot.", now.busy_slots),
            ("num_requests_waiting", "Samples that wait for a slot in the engine.", now.waiting),
            ("kv_cache_usage", "The part of the pages that samples hold, 0 to 1.", now.used_pages / pages),
        ):
            yield GaugeMetricFamily(f"gptoss_jax_{name}", about, value=value)
        states = GaugeMetricFamily(
            "gptoss_jax_pages",
            "Pages: held by samples (used), only by the prefix cache (cached), by nobody (free).",
            labels=["state"],
        )
        states.add_metric(["used"], now.used_pages)
        states.add_metric(["cached"], now.cached_pages)
        states.add_metric(["free"], now.free_pages)
        yield states
