"""What `scripts/bench_kernels` does: check every GPU kernel, then time it against the device's ceilings.

Each figure stands beside the time that the device would need at least: the bytes of the experts that were
chosen, at the measured copy bandwidth, or the useful operations, at the measured matmul rate, whichever is
longer.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import itertools
import json
import platform as host
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from gptoss_jax.bench.kernels import attention, ceilings, checks, hopper, programs
from gptoss_jax.bench.kernels.inputs import ACTIVE, MODELS, SMALL, Model, random_maps, random_tokens
from gptoss_jax.bench.kernels.timing import Timing, time_calls
from pallas_kernels.expert_matmul import gpu
from pallas_kernels.routing import Route

DECODE = (1, 8, 64)
PREFILL = 4096
LAYERS = 4
"""Sets of weights that calls take in turn."""
CALLS = 16
"""Calls with different tokens in one timed program."""
CACHES = 4
"""Key-value caches that attention takes in turn."""
ATTENTION = attention.cases(attention.PUBLISHED, DECODE, context=8192, chunk=2048)
INTERPRETED_ATTENTION = attention.cases(attention.SMALL, (3,), context=40, chunk=24)


@dataclasses.dataclass(frozen=True)
class Figure:
    """The time of one layer's experts, routing or attention; its floors, in seconds, at the ceilings."""

    model: str
    tokens: int
    what: str
    timing: Timing
    bytes_floor: float
    flops_floor: float

    @property
    def share(self) -> float:
        """Floor over time: 1 would be perfect."""
        return max(self.bytes_floor, self.flops_floor) / self.timing.seconds

    def __str__(self) -> str:
        bound = "bytes" if self.bytes_floor >= self.flops_floor else "flops"
        micros = f"{self.timing.seconds * 1e6:10.1f} ±{self.timing.spread * 1e6:7.1f}"
        floor = f"{max(self.bytes_floor, self.flops_floor) * 1e6:10.1f} ({bound})"
        return f"{self.model:<5}{self.tokens:>7}  {self.what:<38}{micros}{floor}{self.share:>7.2f}"


def main() -> int:
    """Reads the command line; returns 1 if a check failed."""
    parser = argparse.ArgumentParser(prog="bench_kernels", description=__doc__)
    parser.add_argument("--out", type=Path, metavar="FILE", help="write every figure and check here, as JSON")
    parser.add_argument(
        "--tune",
        type=int,
        choices=(*DECODE, PREFILL),
        metavar="TOKENS",
        help="time only experts, at that many tokens, by the table's plan and by others",
    )
    parser.add_argument("--checks-only", action="store_true", help="time nothing")
    options = parser.parse_args()
    if jax.default_backend() != "gpu":
        return run_without_gpu()
    return run_on_gpu(options)


def run_without_gpu() -> int:
    """Checks the kernels interpreted at a small size; lowers, and if possible compiles, them for an H200."""
    done = [checks.check_decoding(far, interpret=True) for far in (False, True)]
    done.append(checks.check_routing(SMALL, 21, interpret=True))
    done += checks.check_experts(SMALL, 21, interpret=True)
    done += [case.check(interpret=True) for case in INTERPRETED_ATTENTION]
    _print_checks(done)
    build = hopper.compile_for_hopper if hopper.can_compile() else hopper.lower_for_hopper
    for model in MODELS:
        for tokens in (*DECODE, PREFILL):
            x, route, maps = programs.shapes(model, tokens)
            build(programs.experts, x, route, maps)
            logits = jax.ShapeDtypeStruct((tokens, model.experts), jnp.float32)
            build(functools.partial(programs.routing, tile=16), logits)
    for case in ATTENTION:
        build(case.run("gpu"), *jax.eval_shape(case.inputs, jax.random.key(0)))
    verb, names = "compiled" if hopper.can_compile() else "lowered", ", ".join(m.name for m in MODELS)
    print(f"Experts, routing and attention {verb} for an H200 at the shapes of {names}.")
    print("There is no GPU here: kernels ran interpreted, nothing was timed, and no figure exists.")
    return 0 if all(check.passed for check in done) else 1


def run_on_gpu(options: argparse.Namespace) -> int:
    """Checks, times, prints the table last."""
    device = jax.devices()[0]
    print(f"{device.device_kind}, jax {jax.__version__}, Python {host.python_version()}", flush=True)
    done = list(check_on_gpu())
    figures: list[Figure] = []
    limits: dict[str, float] = {}
    if not options.checks_only:
        limits = {"bytes": ceilings.copy_bandwidth(), "flops": ceilings.matmul_rate()}
        print(f"copy {limits['bytes'] / 1e12:.2f} TB/s, bfloat16 matmul {limits['flops'] / 1e12:.0f} TFLOP/s")
        jobs = (
            tune(options.tune) if options.tune else itertools.chain(experts_and_routing(), attention_jobs())
        )
        for job in jobs:
            figure = job.measure(limits)
            if figure is not None:
                figures.append(figure)
                print(f"  {figure}", flush=True)
                for name, seconds in list(figure.timing.kernels.items())[:6]:
                    print(f"{seconds * 1e6:56.1f}  {name[:60]}", flush=True)
    if options.out:
        report = {
            "device": device.device_kind,
            "jax": jax.__version__,
            "ceilings": limits,
            "checks": [dataclasses.asdict(check) | {"passed": check.passed} for check in done],
            "figures": [dataclasses.asdict(figure) | {"share": figure.share} for figure in figures],
        }
        options.out.write_text(json.dumps(report, indent=1) + "\n")
    if figures:
        print(f"\n{'model':<5}{'tokens':>7}  {'what':<38}{'µs a layer':>19}{'floor µs':>18}{'share':>7}")
        print(*figures, sep="\n")
    failed = sum(not check.passed for check in done)
    print(f"{len(done) - failed} of {len(done)} checks passed")
    return 1 if failed else 0


def check_on_gpu() -> Iterator[checks.Check]:
    """Every check at real sizes, printed as it is done; a kernel that cannot run has failed its check."""
    todo: list[tuple[str, Callable[[], checks.Check | Iterator[checks.Check]]]] = [
        ("decoding", functools.partial(checks.check_decoding, far, interpret=False)) for far in (False, True)
    ]
    for model, tokens in itertools.product(MODELS, (*DECODE, PREFILL)):
        for check in (checks.check_routing, checks.check_experts):
            name = f"{check.__name__}, {model.name}, {tokens} tokens"
            todo.append((name, functools.partial(check, model, tokens, interpret=False)))
    todo += [(case.name, functools.partial(case.check, interpret=False)) for case in ATTENTION]
    for name, run in todo:
        try:
            found = run()
            done = [found] if isinstance(found, checks.Check) else list(found)
        except jax.errors.JaxRuntimeError as error:
            print(f"{name}: {str(error).splitlines()[0]}", flush=True)
            done = [checks.Check(name, float("inf"), 0)]
        _print_checks(done)
        yield from done


@dataclasses.dataclass(frozen=True)
class Job:
    """Something to be timed, and the bytes and operations that it needs at least."""

    model: str
    tokens: int
    what: str
    time: Callable[[], Timing]
    needs: tuple[float, float]

    def measure(self, limits: dict[str, float]) -> Figure | None:
        """The figure; None, and a line that says why, where the program does not run on this device."""
        try:
            timing = self.time()
        except jax.errors.JaxRuntimeError as error:
            print(f"  {self.model} {self.tokens} {self.what}: {str(error).splitlines()[0]}", flush=True)
            return None
        floors = self.needs[0] / limits["bytes"], self.needs[1] / limits["flops"]
        return Figure(self.model, self.tokens, self.what, timing, *floors)


def experts_and_routing() -> Iterator[Job]:
    """Experts and routing, model by model; the weights of one at a time are on the device."""
    for model in MODELS:
        layers = _layers(random_maps, model, LAYERS)
        for tokens in (*DECODE, PREFILL):
            inputs = _inputs(model, tokens)
            time = functools.partial(time_calls, programs.experts, inputs, layers)
            yield Job(model.name, tokens, "experts", time, _needs(model, inputs))
            yield _routing(model, tokens)
        layers = _layers(programs.ragged_maps, model, 2)
        for tokens in (*DECODE, PREFILL):
            inputs = _inputs(model, tokens)[:2]
            time = functools.partial(time_calls, programs.ragged, inputs, layers)
            needs = _needs(model, inputs, bits=16)
            yield Job(model.name, tokens, "jax.lax.ragged_dot, bfloat16", time, needs)


def attention_jobs() -> Iterator[Job]:
    """A layer's attention, which is the same in all models."""
    for case in ATTENTION:
        inputs = [jax.jit(case.inputs)(jax.random.key(n)) for n in range(CACHES)]
        calls = inputs * (CALLS // CACHES if case.queries == 1 else 1)
        time = functools.partial(time_calls, case.run("gpu"), calls)
        yield Job("all", case.batch * case.queries, case.name, time, (case.bytes, case.flops))


def tune(tokens: int) -> Iterator[Job]:
    """Experts with the table's plan and with plans next to it."""
    for model in MODELS:
        layers = _layers(random_maps, model, LAYERS)
        inputs = _inputs(model, tokens)
        for label, plan in _plans(model, tokens):
            time = functools.partial(time_calls, programs.experts_with(plan), inputs, layers, rounds=5)
            yield Job(model.name, tokens, label, time, _needs(model, inputs))


def _plans(model: Model, tokens: int) -> Iterator[tuple[str, gpu.Plan]]:
    plan = gpu.plan_for(tokens * ACTIVE, model.experts)
    changes: list[dict[str, int]] = [
        {},
        *({name: getattr(plan, name) // 2} for name in ("rows", "features", "step", "warps", "splits")),
        *({name: getattr(plan, name) * 2} for name in ("rows", "features", "step", "warps", "splits")),
        *({"stages": plan.stages + more} for more in (-1, 1, 2)),
        {"features": plan.features // 2, "warps": plan.warps // 2},
        {"features": plan.features // 2, "warps": plan.warps // 2, "stages": plan.stages - 1},
        {"features": plan.features * 2, "warps": plan.warps * 2},
    ]
    for change in changes:
        other = plan._replace(**change)
        if (
            min(other.rows, other.features) >= 16
            and other.step >= 32
            and 1 <= other.warps <= 8
            and other.splits
        ):
            yield " ".join(["experts", *(f"{name} {value}" for name, value in change.items())]), other


def measure_attention(limits: dict[str, float]) -> Iterator[Figure]:
    """A layer's attention, which is the same in all models."""
    for case in ATTENTION:
        inputs = [jax.jit(case.inputs)(jax.random.key(n)) for n in range(CACHES)]
        timing = time_calls(case.run("gpu"), inputs * (CALLS // CACHES if case.queries == 1 else 1))
        floors = case.bytes / limits["bytes"], case.flops / limits["flops"]
        yield Figure("all", case.batch * case.queries, case.name, timing, *floors)


def _layers(make: Callable[..., programs.Maps], model: Model, count: int) -> list[programs.Maps]:
    make = jax.jit(make, static_argnums=1)
    return [make(jax.random.key(n), model) for n in range(count)]


def _inputs(model: Model, tokens: int) -> list[tuple[jax.Array, Route]]:
    """Tokens for several calls; two for a prefill, which reads every expert and so sweeps any cache."""
    make = jax.jit(random_tokens, static_argnums=(1, 2))
    count = 2 if tokens == PREFILL else CALLS
    return [make(jax.random.key(100 * tokens + n), model, tokens) for n in range(count)]


def _needs(
    model: Model, inputs: Sequence[tuple[jax.Array, Route]], bits: float = 4.25
) -> tuple[float, float]:
    """Bytes and operations of the average call."""
    chosen = float(np.mean([len(np.unique(np.asarray(route.experts))) for _, route in inputs]))
    tokens = inputs[0][0].shape[0]
    activations = 2 * 2 * tokens * model.hidden
    return chosen * model.expert_bytes * bits / 4.25 + activations, tokens * ACTIVE * model.pair_flops


def _routing(model: Model, tokens: int) -> Job:
    tile = gpu.plan_for(tokens * ACTIVE, model.experts).rows
    keys = jax.random.split(jax.random.key(tokens), CALLS)
    inputs = [(jax.random.normal(key, (tokens, model.experts)),) for key in keys]
    time = functools.partial(time_calls, functools.partial(programs.routing, tile=tile), inputs)
    return Job(model.name, tokens, "routing and schedule", time, (4.0 * inputs[0][0].size, 0.0))


def _print_checks(done: Sequence[checks.Check]) -> None:
    for check in done:
        verdict = "ok" if check.passed else "FAILED"
        print(f"{check.name:<44}{check.error:>10.2g}  at most {check.limit:g}  {verdict}", flush=True)
