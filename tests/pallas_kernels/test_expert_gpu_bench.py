"""`scripts/bench_kernels`: what it compares with is right; without a GPU it says that it has no figures."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gptoss_jax.bench.kernels import attention, hopper, inputs, programs, run, timing
from gptoss_jax.bench.kernels.checks import Check
from pallas_kernels import mxfp4
from pallas_kernels.expert_matmul import PackedLinear
from pallas_kernels.expert_matmul.reference import expert_mlp

SCRIPT = Path(__file__).parents[2] / "scripts" / "bench_kernels"


def test_the_script_says_what_it_does() -> None:
    done = subprocess.run([sys.executable, SCRIPT, "--help"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "check every GPU kernel, then time it" in done.stdout


def test_without_a_gpu_it_checks_interpreted_kernels_and_says_that_no_figure_exists(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("MODELS", "DECODE", "ATTENTION", "INTERPRETED_ATTENTION"):
        monkeypatch.setattr(run, name, getattr(run, name)[:1])
    # What is slow to interpret has tests of its own.
    monkeypatch.setattr(run.checks, "check_experts", lambda *_, interpret: [Check("experts", 0.5, interpret)])
    assert run.run_without_gpu() == 0
    *lines, built, last = capsys.readouterr().out.splitlines()
    assert len(lines) == 5 and all(line.endswith(" ok") for line in lines)
    assert built.startswith("Experts, routing and attention ")
    assert last == "There is no GPU here: kernels ran interpreted, nothing was timed, and no figure exists."


def test_the_ragged_dot_that_kernels_are_compared_with_computes_the_same_layer() -> None:
    model, tokens = inputs.SMALL, 13
    maps = inputs.random_maps(jax.random.key(0), model)
    x, route = inputs.random_tokens(jax.random.key(1), model, tokens)
    x = x.astype(jnp.float32)

    def dense(packed: PackedLinear) -> PackedLinear:
        weights = mxfp4.decode(packed.blocks, packed.scales).reshape(
            model.experts, -1, packed.blocks.shape[-1] * 2
        )
        return PackedLinear(weights.swapaxes(1, 2), jnp.zeros(0), packed.bias.reshape(model.experts, -1))

    got = jax.jit(programs.ragged)(x, route, (dense(maps[0]), dense(maps[1])))
    expected = jax.jit(expert_mlp, static_argnums=4)(x, route, *maps, inputs.LIMIT)
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-5 * float(jnp.abs(expected).max()))


def test_random_maps_give_results_about_as_large_as_their_inputs() -> None:
    model = inputs.SMALL
    x, route = inputs.random_tokens(jax.random.key(1), model, 50)
    maps = inputs.random_maps(jax.random.key(0), model)
    out = jax.jit(expert_mlp, static_argnums=4)(x, route, *maps, inputs.LIMIT)
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
