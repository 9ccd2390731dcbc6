"""`scripts/bench_kernels`: what it compares with is right; without a GPU it says that it has no figures."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gptoss_jax.bench.kernels import attention, hopper, inputs, programs, run, timing
from gptoss_jax.bench.kernels.checks import Check
from pallas_kernels import mxfp4
from pallas_kernels.expert_matmul import PackedLinear
from pallas_kernels.expert_matmul.reference import expert_mlp


def whole() -> Check:
    return Check("whole", 0.0, 0)


SCRIPT = Path(__file__).parents[2] / "scripts" / "bench_kernels"


def test_the_script_says_what_it_does() -> None:
    done = subprocess.run([sys.executable, SCRIPT, "--help"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "check every GPU kernel, then time it" in done.stdout


@pytest.mark.parametrize("real", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["fakes", "real"])
def test_without_a_gpu_it_checks_interpreted_kernels_and_says_that_no_figure_exists(
    real: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if not real:
        for name in ("check_decoding", "check_routing"):
            monkeypatch.setattr(run.checks, name, lambda *_, interpret: Check("one", 0.5, interpret))
        monkeypatch.setattr(attention.Case, "check", lambda _, interpret: Check("one", 0.5, interpret))
        monkeypatch.setattr(run, "_built", lambda *_: whole())
    for name in ("MODELS", "DECODE", "ATTENTION", "INTERPRETED_ATTENTION"):
        monkeypatch.setattr(run, name, getattr(run, name)[:1])
    # What is slow to interpret has tests of its own.
    monkeypatch.setattr(run.checks, "check_experts", lambda *_, interpret: [Check("experts", 0.5, interpret)])
    assert run.run_without_gpu() == 0
    *lines, built, last = capsys.readouterr().out.splitlines()
    assert len(lines) == 5, lines
    assert all(line.endswith(" ok") for line in lines)
    assert built.startswith("Experts, routing and attention ")
    assert last == "There is no GPU here: kernels ran interpreted, nothing was timed, and no figure exists."


@pytest.mark.slow
def test_the_ragged_dot_that_kernels_are_compared_with_computes_the_same_layer() -> None:
    model, tokens = inputs.SMALL, 13
    projections = inputs.random_projections(jax.random.key(0), model)
    x, route = inputs.random_tokens(jax.random.key(1), model, tokens)
    x = x.astype(jnp.float32)

    def dense(packed: PackedLinear) -> PackedLinear:
        weights = mxfp4.decode(packed.blocks, packed.scales).reshape(
            model.experts, -1, packed.blocks.shape[-1] * 2
        )
        return PackedLinear(weights.swapaxes(1, 2), jnp.zeros(0), packed.bias.reshape(model.experts, -1))

    got = jax.jit(programs.ragged)(x, route, (dense(projections[0]), dense(projections[1])))
    expected = jax.jit(expert_mlp, static_argnums=4)(x, route, *projections, inputs.LIMIT)
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-5 * float(jnp.abs(expected).max()))


@pytest.mark.slow
def test_random_maps_give_results_about_as_large_as_their_inputs() -> None:
    model = inputs.SMALL
    x, route = inputs.random_tokens(jax.random.key(1), model, 50)
    projections = inputs.random_projections(jax.random.key(0), model)
    out = jax.jit(expert_mlp, static_argnums=4)(x, route, *projections, inputs.LIMIT)
    assert 0.1 < float(jnp.std(out)) < 30


def test_a_check_whose_error_is_nan_fails() -> None:
    assert not Check("nan", float("nan"), 1e-2).passed
    assert Check("equal", 0.0, 0).passed


def test_a_case_of_attention_counts_the_keys_that_are_seen() -> None:
    heads = attention.Heads(query=2, kv=1, size=4, window=3)
    chunk = attention.Case("prefill", 1, 5, 5, heads)
    assert chunk.flops == 4 * (1 + 2 + 3 + 4 + 5) * 2 * 4
    ring = attention.Case("decode_ring", 2, 1, 100, heads, 3)
    assert ring.flops == 4 * 2 * 3 * 2 * 4
    assert ring.bytes == 2 * (3 * 2 * 2 * 4 + 2 * 2 * 2 * 4)


@pytest.mark.parametrize("error", [ValueError, NotImplementedError, MemoryError, AssertionError, KeyError])
def test_a_case_that_raises_is_a_row_and_the_others_go_on(
    error: type[Exception],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    def raises(*_: object, **__: object) -> NoReturn:
        raise error("no such kernel\nand more of it")

    def good() -> tuple[Callable[[], timing.Timing], tuple[float, float]]:
        return lambda: timing.Timing(2e-6, 0.0, {}), (1e6, 0.0)

    monkeypatch.setattr(run, "check_on_gpu", lambda: run._checked([("broken", raises), ("whole", whole)]))
    monkeypatch.setattr(run.ceilings, "copy_bandwidth", lambda: 1e12)
    monkeypatch.setattr(run.ceilings, "matmul_rate", lambda: 1e15)
    jobs = [
        run.Job("20b", 1, "unprepared", raises),
        run.Job("20b", 8, "untimed", lambda: (raises, (1.0, 1.0))),
    ]
    monkeypatch.setattr(run, "experts_and_routing", lambda: iter([*jobs, run.Job("20b", 64, "sound", good)]))
    monkeypatch.setattr(run, "attention_jobs", lambda: iter(()))
    options = argparse.Namespace(checks_only=False, tune=None, out=tmp_path / "figures.json")
    assert run.run_on_gpu(options) == 1
    printed = capsys.readouterr().out
    assert f"broken{'':38}       inf  at most 0  FAILED: {error.__name__}: " in printed
    assert "1 of 2 checks passed; 2 of 3 cases failed" in printed
    report = json.loads(options.out.read_text())
    assert [row["what"] for row in report["failures"]] == ["unprepared", "untimed"]
    assert all("no such kernel" in row["reason"] and "\n" not in row["reason"] for row in report["failures"])
    assert [row["share"] for row in report["figures"]] == [0.5]


def test_a_check_that_raises_half_way_keeps_what_it_had_found() -> None:
    def half() -> Iterator[Check]:
        yield Check("first", 0.0, 0)
        raise TypeError("second")

    found = run._attempt("two", half)
    assert [(check.name, check.passed, check.reason) for check in found] == [
        ("first", True, ""),
        ("two", False, "TypeError: second"),
    ]


def test_only_the_known_warning_of_the_triton_backend_is_hidden() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with hopper._without_triton_warning():
            warnings.warn(
                "The Pallas Triton backend is deprecated and so on", DeprecationWarning, stacklevel=1
            )
            warnings.warn("something else is deprecated", DeprecationWarning, stacklevel=1)
    assert [str(one.message) for one in caught] == ["something else is deprecated"]


def test_timing_uses_every_input_and_takes_weights_in_turn() -> None:
    seen = []

    def step(x: jax.Array, weight: jax.Array) -> jax.Array:
        seen.append((x.shape, weight.shape))
        return x.sum() + weight.sum()

    sizes = [(jnp.ones(n),) for n in (1, 2, 3)]
    result = timing.time_calls(step, sizes, [jnp.ones(7), jnp.ones(8)], rounds=3, seconds_a_round=0.001)
    assert seen == [((1,), (7,)), ((2,), (8,)), ((3,), (7,))]
    assert result.seconds > 0


@pytest.mark.skipif(not hopper.can_compile(), reason="jax's compiler for NVIDIA GPUs is not installed")
@pytest.mark.parametrize(("tokens", "dtype"), [(1, jnp.bfloat16), (64, jnp.float32), (4096, jnp.bfloat16)])
def test_an_expert_layer_compiles_for_an_h200(tokens: int, dtype: type) -> None:
    compiled = hopper.compile_for_hopper(programs.experts, *programs.shapes(inputs.MODELS[1], tokens, dtype))
    assert "expert_down" in compiled.as_text()
