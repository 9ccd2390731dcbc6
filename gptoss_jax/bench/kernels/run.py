"""`scripts/bench_kernels`: check every GPU kernel, then time it and compare it with the device's ceilings.

Each time stands beside its floor, the shortest possible time: the bytes of the chosen experts at the measured
copy bandwidth, or the useful operations at the measured matmul rate, whichever is longer.
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
from gptoss_jax.bench.kernels.inputs import ACTIVE, MODELS, SMALL, Model, random_projections, random_tokens
from gptoss_jax.bench.kernels.timing import Timing, time_calls
from pallas_kernels.expert_matmul import gpu
from pallas_kernels.routing import Route

DECODE = (1, 8, 64)
PREFILL = 4096
LAYERS = 4
"""Sets of weights that the calls use in turn."""
CALLS = 16
"""Calls with different tokens in one timed program."""
CACHES = 4
"""Key-value caches that the calls use in turn."""
ATTENTION = attention.cases(attention.PUBLISHED, DECODE, context=8192, chunk=2048)
INTERPRETED_ATTENTION = attention.cases(attention.SMALL, (3,), context=40, chunk=24)


@dataclasses.dataclass(frozen=True)
class Figure:
    """The time of one layer's experts, routing or attention, and its floors in seconds."""

    model: str
    tokens: int
    what: str
    timing: Timing
    bytes_floor: float
    flops_floor: float

    @property
    def share(self) -> float:
        """Floor ÷ time; 1 is the best possible."""
        return max(self.bytes_floor, self.flops_floor) / self.timing.seconds

    def __str__(self) -> str:
        bound = "bytes" if self.bytes_floor >= self.flops_floor else "flops"
        micros = f"{self.timing.seconds * 1e6:10.1f} ±{self.timing.spread * 1e6:7.1f}"
        floor = f"{max(self.bytes_floor, self.flops_floor) * 1e6:10.1f} ({bound})"
        return f"{self.model:<5}{self.tokens:>7}  {self.what:<38}{micros}{floor}{self.share:>7.2f}"


@dataclasses.dataclass(frozen=True)
class Failure:
    """A case that could not be timed. reason: the type of the error and its first line."""

    model: str
    tokens: int
    what: str
    reason: str

    def __str__(self) -> str:
        return f"{self.model:<5}{self.tokens:>7}  {self.what:<38}FAILED: {self.reason}"


def main() -> int:
    """Reads the command line; returns 1 if a check failed or a case could not run."""
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
    """Checks interpreted kernels at a small size; lowers them for an H200, and compiles them if possible."""
    build: Callable[..., object] = (
        hopper.compile_for_hopper if hopper.can_compile() else hopper.lower_for_hopper
    )
    verb = "compiled" if hopper.can_compile() else "lowered"
    todo: list[tuple[str, _Checking]] = [
        ("decoding", functools.partial(checks.check_decoding, far, interpret=True)) for far in (False, True)
    ]
    todo.append(("routing", functools.partial(checks.check_routing, SMALL, 21, interpret=True)))
    todo.append(("experts", functools.partial(checks.check_experts, SMALL, 21, interpret=True)))
    todo += [(case.name, functools.partial(case.check, interpret=True)) for case in INTERPRETED_ATTENTION]
    done = list(_checked(todo))
    built = [_attempt(name, functools.partial(_built, build, program)) for name, program in _programs()]
    not_built = [check for checks in built for check in checks if not check.passed]
    _print_checks(not_built)
    names = ", ".join(model.name for model in MODELS)
    print(
        f"Experts, routing and attention {verb} for an H200 at the shapes of {names}: "
        f"{len(built) - len(not_built)} of {len(built)} programs."
    )
    print("There is no GPU here: kernels ran interpreted, nothing was timed, and no figure exists.")
    return 0 if all(check.passed for check in (*done, *not_built)) else 1


def run_on_gpu(options: argparse.Namespace) -> int:
    """Checks and times all cases and prints the table at the end.

    A case that raises becomes a row; others continue.
    """
    device = jax.devices()[0]
    print(f"{device.device_kind}, jax {jax.__version__}, Python {host.python_version()}", flush=True)
    done = list(check_on_gpu())
    rows: list[Figure | Failure] = []
    limits: dict[str, float] = {}
    if not options.checks_only:
        try:
            limits = {"bytes": ceilings.copy_bandwidth(), "flops": ceilings.matmul_rate()}
        except Exception as error:  # times need ceilings to compare with
            rows.append(Failure("all", 0, "ceilings", _reason(error)))
    if limits:
        print(f"copy {limits['bytes'] / 1e12:.2f} TB/s, bfloat16 matmul {limits['flops'] / 1e12:.0f} TFLOP/s")
        jobs = (
            tune(options.tune) if options.tune else itertools.chain(experts_and_routing(), attention_jobs())
        )
        for job in jobs:
            row = job.measure(limits)
            rows.append(row)
            print(f"  {row}", flush=True)
            if isinstance(row, Figure):
                for name, seconds in list(row.timing.kernels.items())[:6]:
                    print(f"{seconds * 1e6:56.1f}  {name[:60]}", flush=True)
    figures = [row for row in rows if isinstance(row, Figure)]
    failures = [row for row in rows if isinstance(row, Failure)]
    if options.out:
        report = {
            "device": device.device_kind,
            "jax": jax.__version__,
            "ceilings": limits,
            "checks": [dataclasses.asdict(check) | {"passed": check.passed} for check in done],
            "figures": [dataclasses.asdict(figure) | {"share": figure.share} for figure in figures],
            "failures": [dataclasses.asdict(failure) for failure in failures],
        }
        options.out.write_text(json.dumps(report, indent=1) + "\n")
    if rows:
        print(f"\n{'model':<5}{'tokens':>7}  {'what':<38}{'µs a layer':>19}{'floor µs':>18}{'share':>7}")
        print(*rows, sep="\n")
    failed = sum(not check.passed for check in done)
    print(f"{len(done) - failed} of {len(done)} checks passed; {len(failures)} of {len(rows)} cases failed")
    return 1 if failed or failures else 0


_Checking = Callable[[], checks.Check | Iterator[checks.Check]]


def check_on_gpu() -> Iterator[checks.Check]:
    """Runs every check at real sizes, printing each when it is done.

    A kernel that cannot run fails its check.
    """
    todo: list[tuple[str, _Checking]] = [
        ("decoding", functools.partial(checks.check_decoding, far, interpret=False)) for far in (False, True)
    ]
    for model, tokens in itertools.product(MODELS, (*DECODE, PREFILL)):
        for check in (checks.check_routing, checks.check_experts):
            name = f"{check.__name__}, {model.name}, {tokens} tokens"
            todo.append((name, functools.partial(check, model, tokens, interpret=False)))
    todo += [(case.name, functools.partial(case.check, interpret=False)) for case in ATTENTION]
    yield from _checked(todo)


def _checked(todo: Sequence[tuple[str, _Checking]]) -> Iterator[checks.Check]:
    for name, run in todo:
        done = _attempt(name, run)
        _print_checks(done)
        yield from done


def _attempt(name: str, run: _Checking) -> list[checks.Check]:
    """The checks that `run` returns; an exception of any type becomes a failed check."""
    done: list[checks.Check] = []
    try:
        found = run()
        done += [found] if isinstance(found, checks.Check) else found
    except Exception as error:
        done.append(checks.Check(name, float("inf"), 0, _reason(error)))
    return done


def _reason(error: Exception) -> str:
    first, *_ = [*filter(None, str(error).splitlines()), ""]
    return f"{type(error).__name__}: {first}"


def _programs() -> Iterator[tuple[str, tuple[Callable[..., object], tuple[object, ...]]]]:
    """Every program at the published shapes: its name, its function, and its operands' shapes."""
    for model, tokens in itertools.product(MODELS, (*DECODE, PREFILL)):
        where = f"{model.name}, {tokens} tokens"
        yield f"experts, {where}", (programs.experts, programs.shapes(model, tokens))
        logits = jax.ShapeDtypeStruct((tokens, model.experts), jnp.float32)
        yield f"routing, {where}", (functools.partial(programs.routing, tile=16), (logits,))
    for case in ATTENTION:
        yield case.name, (case.run("gpu"), jax.eval_shape(case.inputs, jax.random.key(0)))


def _built(
    build: Callable[..., object], program: tuple[Callable[..., object], tuple[object, ...]]
) -> checks.Check:
    function, operands = program
    build(function, *operands)
    return checks.Check("built", 0, 0)


_Prepared = tuple[Callable[[], Timing], tuple[float, float]]
_Layers = Callable[[], Sequence[programs.Projections]]


@dataclasses.dataclass(frozen=True)
class Job:
    """Something to time. prepare: makes the operands; returns a function
    that times it, its bytes and its operations.
    """

    model: str
    tokens: int
    what: str
    prepare: Callable[[], _Prepared]

    def measure(self, limits: dict[str, float]) -> Figure | Failure:
        """The figure, or a `Failure` if the case raises an exception of any type."""
        try:
            time, needs = self.prepare()
            timing = time()
        except Exception as error:
            return Failure(self.model, self.tokens, self.what, _reason(error))
        floors = needs[0] / limits["bytes"], needs[1] / limits["flops"]
        return Figure(self.model, self.tokens, self.what, timing, *floors)


def experts_and_routing() -> Iterator[Job]:
    """Experts and routing, model by model, so that only one model's weights are on the device."""
    for model in MODELS:
        layers = functools.cache(functools.partial(_layers, random_projections, model, LAYERS))
        for tokens in (*DECODE, PREFILL):
            yield Job(model.name, tokens, "experts", functools.partial(_experts, model, tokens, layers))
            yield Job(model.name, tokens, "routing and schedule", functools.partial(_routing, model, tokens))
        layers = functools.cache(functools.partial(_layers, programs.ragged_projections, model, 2))
        for tokens in (*DECODE, PREFILL):
            prepare = functools.partial(_ragged, model, tokens, layers)
            yield Job(model.name, tokens, "jax.lax.ragged_dot, bfloat16", prepare)


def attention_jobs() -> Iterator[Job]:
    """Attention of a layer, which is the same in both models."""
    for case in ATTENTION:
        yield Job("all", case.batch * case.queries, case.name, functools.partial(_attention, case))


def tune(tokens: int) -> Iterator[Job]:
    """Experts with the table's plan and with similar plans."""
    for model in MODELS:
        layers = functools.cache(functools.partial(_layers, random_projections, model, LAYERS))
        for label, plan in _plans(model, tokens):
            prepare = functools.partial(
                _experts, model, tokens, layers, programs.experts_with(plan), rounds=5
            )
            yield Job(model.name, tokens, label, prepare)


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


def _layers(
    make: Callable[..., programs.Projections], model: Model, count: int
) -> list[programs.Projections]:
    make = jax.jit(make, static_argnums=1)
    return [make(jax.random.key(n), model) for n in range(count)]


def _inputs(model: Model, tokens: int) -> list[tuple[jax.Array, Route]]:
    """Tokens for several calls.

    Only two for a prefill, which reads every expert and so overwrites any cache.
    """
    make = jax.jit(random_tokens, static_argnums=(1, 2))
    count = 2 if tokens == PREFILL else CALLS
    return [make(jax.random.key(100 * tokens + n), model, tokens) for n in range(count)]


def _needs(
    model: Model, inputs: Sequence[tuple[jax.Array, Route]], bits: float = 4.25
) -> tuple[float, float]:
    """Bytes and operations of a call, on average."""
    chosen = float(np.mean([len(np.unique(np.asarray(route.experts))) for _, route in inputs]))
    tokens = inputs[0][0].shape[0]
    activations = 2 * 2 * tokens * model.hidden
    return chosen * model.expert_bytes * bits / 4.25 + activations, tokens * ACTIVE * model.pair_flops


def _experts(
    model: Model,
    tokens: int,
    layers: _Layers,
    program: Callable[..., jax.Array] = programs.experts,
    rounds: int = 9,
) -> _Prepared:
    inputs = _inputs(model, tokens)
    return functools.partial(time_calls, program, inputs, layers(), rounds=rounds), _needs(model, inputs)


def _ragged(model: Model, tokens: int, layers: _Layers) -> _Prepared:
    inputs = _inputs(model, tokens)[:2]
    return functools.partial(time_calls, programs.ragged, inputs, layers()), _needs(model, inputs, bits=16)


def _routing(model: Model, tokens: int) -> _Prepared:
    tile = gpu.plan_for(tokens * ACTIVE, model.experts).rows
    keys = jax.random.split(jax.random.key(tokens), CALLS)
    inputs = [(jax.random.normal(key, (tokens, model.experts)),) for key in keys]
    time = functools.partial(time_calls, functools.partial(programs.routing, tile=tile), inputs)
    return time, (4.0 * inputs[0][0].size, 0.0)


def _attention(case: attention.Case) -> _Prepared:
    inputs = [jax.jit(case.inputs)(jax.random.key(n)) for n in range(CACHES)]
    calls = inputs * (CALLS // CACHES if case.queries == 1 else 1)
    return functools.partial(time_calls, case.run("gpu"), calls), (case.bytes, case.flops)


def _print_checks(done: Sequence[checks.Check]) -> None:
    for check in done:
        verdict = "ok" if check.passed else "FAILED"
        line = f"{check.name:<44}{check.error:>10.2g}  at most {check.limit:g}  {verdict}"
        print(f"{line}: {check.reason}" if check.reason else line, flush=True)
