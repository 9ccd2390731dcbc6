"""The inspector's command line: tables, JSON, filters, and one-line errors."""

import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np
import pytest

from pallas_kernels.inspect import chips, command, counting, dump, execution, program, registry
from pallas_kernels.inspect.case import Call, Case, uniform_routing
from pallas_kernels.inspect.counting import CountError, KernelCount
from pallas_kernels.inspect.execution import Iteration, Trace

ROOT = Path(__file__).parents[2]


def case(name: str, batch: int = 0, kernel: str = "k", **changes: object) -> Case:
    fields = dict(grid_steps=4, floor_bytes=4000, flops=8000, batch=batch, step_calls=24 if batch else 0)
    build = lambda: Call(lambda x: x, [jax.ShapeDtypeStruct((8,), np.float32)], [])  # noqa: E731
    return Case("expert_matmul", name, "20b", kernel, build, **(fields | changes))


def fake_count(fn: object, args: object, chip: str, kernel: str, scalars: object) -> KernelCount:
    """1,000 bundles in four steps, each of which reads 1,000 bytes."""
    if kernel == "broken":
        raise CountError("broken does not compile for v5e: no reason")
    bundles = dump.parse_bundles("     0   :  {}\n")
    built = program.build(bundles, dump.Utilization(("VALU", "MXU"), (4, 2), ((1, 0),)), 4)
    step = Iteration(250, 50, (500, 100), 1000, 0, (0,))
    nothing = Iteration(0, 0, (0, 0), 0, 0, ())
    trace = Trace(nothing, (step,) * 4, nothing)
    return KernelCount(chip, kernel, built, (trace,), 1 << 20, 0.1, {"fusion": 300}, "")  # type: ignore[arg-type]


@pytest.fixture
def inspect(monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    monkeypatch.setattr(counting, "count", fake_count)
    monkeypatch.setattr(counting, "require_compiler", lambda: None)

    def run(*arguments: str, cases: list[Case]) -> int:
        monkeypatch.setattr(registry, "all_cases", lambda chip: cases)
        return command.main(arguments)

    yield run
    jax.config.update("jax_enable_compilation_cache", True)


def test_json_holds_the_figures_that_follow_from_a_count(inspect, capsys) -> None:
    assert inspect("--chip", "v5e", "--json", cases=[case("decode 16", weights=5000)]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert "never run on a TPU" in printed["label"]
    (row,) = printed["kernels"]
    memory = 4000 / (820e9 / 1.5e9)
    assert row["bundles_per_step"] == 250
    assert row["bytes_per_step"] == 1000
    assert row["compute_over_memory"] == pytest.approx(1000 / memory)
    assert row["bandwidth_fraction"] == pytest.approx(memory / 1000)
    assert row["bytes_over_floor"] == 1
    assert row["weights_per_cycle"] == 5
    assert row["stalled_fraction"] == 0.2
    assert row["matrix_fraction"] == pytest.approx(8000 / (1000 * 197e12 / 1.5e9))
    assert row["use"] == {"VALU": 0.5, "MXU": 0.2}
    assert row["microseconds"] == pytest.approx(1000 / 1.5e3)


@pytest.mark.parametrize(("looped", "cycles"), [(True, 1012), (False, 1412)])
def test_steps_of_a_loop_overlap_with_their_dmas_and_nothing_else_does(looped: bool, cycles: int) -> None:
    rate = int(820e9 / 1.5e9)  # bytes a cycle, but for the fraction
    busy, fetching = Iteration(700, 0, (0,), 300 * rate, 0, ()), Iteration(100, 0, (0,), 300 * rate, 0, ())
    before, after = Iteration(6, 0, (0,), 4 * rate, 0, ()), Iteration(1, 0, (0,), 0, rate, ())
    trace = Trace(before, (busy, fetching), after, looped)
    empty = program.build(dump.parse_bundles("     0   :  {}\n"), dump.Utilization(("V",), (1,), ((0,),)), 4)
    count = KernelCount("v5e", "k", empty, (trace,), 0, 0.1, {}, "")
    assert count.cycles == pytest.approx(cycles, rel=2e-3)


def test_a_decode_step_is_the_sum_of_its_calls_and_of_the_plain_matmuls(inspect, capsys) -> None:
    cases = [case("decode 8", batch=8), case("decode 8", batch=8, kernel="other"), case("shown only")]
    assert inspect("--chip", "v5e", "--json", cases=cases) == 0
    (step,) = json.loads(capsys.readouterr().out)["steps"]
    assert (step["model"], step["batch"], step["context"], step["devices"]) == ("20b", 8, 8192, 1)
    # 24 layers of attention and router, and the unembedding, in bf16.
    plain = 2 * (24 * (2880 * (2 * 4096 + 2 * 512) + 2880 * 32) + 2880 * 201_088)
    parts = {
        "k": 24 * 1000 / 1.5e3,
        "other": 24 * 1000 / 1.5e3,
        "others": 2 * 24 * 300 / 1.5e3,
        "matmuls": 1e6 * plain / 820e9,
    }
    assert step["parts"] == pytest.approx(parts)
    assert step["milliseconds"] == pytest.approx(sum(parts.values()) / 1e3)
    assert step["missing"] == ["attention", "routing"]


def test_a_model_that_does_not_fit_is_divided_among_devices(inspect, capsys) -> None:
    cases = [Case("routing", "d", "120b", "k", case("d").build, 4, 4000, 0, batch=1, step_calls=36)]
    assert inspect("--json", cases=cases) == 0
    steps = {one["chip"]: one for one in json.loads(capsys.readouterr().out)["steps"]}
    # 61.0 GiB: four v5e have 64, but not for weights alone.
    assert {chip: one["devices"] for chip, one in steps.items()} == {"v5e": 8, "v5p": 1, "v6e": 4, "7x": 1}
    assert steps["v5e"]["best_milliseconds"] == pytest.approx(steps["v5e"]["milliseconds"] / 8)


def test_the_table_names_every_case_and_says_what_the_figures_are(inspect, capsys) -> None:
    assert inspect("--chip", "v6e", cases=[case("decode 16"), case("decode 1", batch=1)]) == 0
    printed = capsys.readouterr()
    assert "never run on a TPU" in printed.out
    assert "expert_matmul 20b decode 16" in printed.out
    assert "not counted, for lack of cases: attention" in printed.out
    assert "[2/2] v6e expert_matmul 20b decode 1" in printed.err


def test_a_filter_leaves_the_sums_out(inspect, capsys) -> None:
    cases = [case("decode 16"), case("decode 1", batch=1)]
    assert inspect("--chip", "v5e", "--kernel", "20b/decode 1", "--json", cases=cases) == 0
    printed = json.loads(capsys.readouterr().out)
    assert [row["case"] for row in printed["kernels"]] == ["decode 16", "decode 1"]
    assert printed["steps"] == []


def test_a_kernel_that_does_not_compile_is_named_and_the_others_are_counted(inspect, capsys) -> None:
    assert inspect("--chip", "v5e", "--json", cases=[case("bad", kernel="broken"), case("good")]) == 1
    printed = capsys.readouterr()
    assert [row["case"] for row in json.loads(printed.out)["kernels"]] == ["good"]
    assert "expert_matmul 20b bad: broken does not compile" in printed.err


def test_a_case_that_claims_more_grid_steps_than_ran_is_an_error(inspect, capsys) -> None:
    assert inspect("--chip", "v5e", cases=[case("wrong", grid_steps=5)]) == 1
    assert "ran 4 times, but the case has 5 grid steps" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--chip", "v4"], "chip is 'v4': it must be one of v5e, v5p, v6e, 7x"),
        (
            ["--kernel", "nonsense"],
            "no case matches 'nonsense': it must be part of operation/model/case, with expert_matmul",
        ),
    ],
)
def test_wrong_arguments_are_one_line(inspect, capsys, arguments: list[str], message: str) -> None:
    assert inspect(*arguments, cases=[case("decode 16")]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err == f"pallas_kernels.inspect: {message}\n"


def test_a_missing_compiler_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "libtpu" else find(name))
    assert command.main(["--chip", "v5e"]) == 2
    printed = capsys.readouterr()
    assert printed.err.count("\n") == 1 and "libtpu, the TPU compiler, is not installed" in printed.err


@pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="needs libtpu")
def test_a_registered_kernel_is_compiled_and_counted() -> None:
    arguments = ["--chip", "v5e", "--kernel", "routing/20b/decode 1", "--json"]
    done = subprocess.run(
        [sys.executable, "-m", "pallas_kernels.inspect", *arguments], capture_output=True, text=True, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    (row,) = json.loads(done.stdout)["kernels"]
    assert row["bundles_per_step"] > 0 and 0 < row["use"]["VALU"] <= 1


@pytest.mark.parametrize("chip", ["v5e", "v5p", "v6e", "7x"])
def test_every_chip_has_consistent_facts(chip: str) -> None:
    facts = chips.facts(chip)
    assert facts.name == chip
    # A core can always multiply faster than it can read, and read a register's worth in a few cycles.
    assert 300 < facts.bytes_per_cycle < 2000
    assert facts.flops_per_cycle > 100 * facts.bytes_per_cycle


@pytest.mark.parametrize(("tokens", "experts"), [(1, 32), (8, 32), (64, 32), (1, 128), (8, 128), (64, 128)])
def test_the_typical_routing_has_as_many_active_experts_as_expected(tokens: int, experts: int) -> None:
    chosen = uniform_routing(tokens, experts, 4)
    assert chosen.shape == (tokens, 4) and chosen.dtype == np.int32
    assert all(len(set(row)) == 4 for row in chosen.tolist())
    assert len(np.unique(chosen)) == round(experts * (1 - (1 - 4 / experts) ** tokens))
    assert np.array_equal(chosen, uniform_routing(tokens, experts, 4))


def test_execution_stops_a_program_that_never_ends() -> None:
    bundles = dump.parse_bundles(
        "     0 LB: > { %1 = sbr.rel target bundleno = 0 (0x0), region = 1 }\n   0x1   :  {}\n"
    )
    endless = program.build(bundles, dump.Utilization(("VALU",), (4,), ((0,), (0,))), 1)
    with pytest.raises(execution.ExecutionError, match="still running"):
        execution.execute(endless, {}, limit=1000)
