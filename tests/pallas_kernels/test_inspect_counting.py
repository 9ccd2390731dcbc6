"""Counts of real compiles move as they must when a kernel's work, its schedule or the chip changes."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="needs libtpu")

PROGRAM = Path(__file__).with_name("inspected_kernels.py")
BLOCK_BYTES = 256 * 512 * 4
OUTPUT_BYTES = 8 * 128 * 4
SCALAR_BYTES = 2 * 512
"""Two prefetched arrays, each of one padded row."""


@pytest.fixture(scope="module")
def counts() -> dict[str, Any]:
    root = PROGRAM.parents[2]
    done = subprocess.run(
        [sys.executable, PROGRAM], capture_output=True, text=True, cwd=root, env={"PYTHONPATH": str(root)}
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_bytes_are_those_of_the_blocks(counts: dict[str, Any]) -> None:
    assert counts["plain"]["read"] == 8 * BLOCK_BYTES + SCALAR_BYTES
    assert counts["plain"]["written"] == OUTPUT_BYTES


def test_counting_twice_gives_the_same(counts: dict[str, Any]) -> None:
    assert counts["again"] == counts["plain"]


def test_blocks_named_again_are_not_read_again(counts: dict[str, Any]) -> None:
    assert counts["same block"]["read"] == 2 * BLOCK_BYTES + SCALAR_BYTES
    assert counts["same block"]["compute"] == counts["plain"]["compute"]


def test_steps_without_work_cost_only_the_pipeline(counts: dict[str, Any]) -> None:
    plain, idle = sorted(set(counts["plain"]["steps"])), counts["idle"]["steps"]
    busy = max(plain)
    assert sorted(idle)[-3:] == [busy] * 3
    assert max(sorted(idle)[:-3]) < busy / 2


def test_twice_the_trips_add_as_much_as_the_loop_cost(counts: dict[str, Any]) -> None:
    """The loop's cycles are trips × body; what is outside of it stays (the unrolling may differ a little)."""
    idle = sorted(counts["idle"]["steps"])[-4]  # a step that computes nothing
    loop = max(counts["plain"]["steps"]) - idle
    added = max(counts["more trips"]["steps"]) - max(counts["plain"]["steps"])
    assert 0.75 * loop < added <= loop


def test_twice_the_body_gives_twice_the_vector_instructions(counts: dict[str, Any]) -> None:
    # A pass is a product and a sum, each of which needs the one before; the loop's number is multiplied once.
    more_passes = 8 * 6 * 4
    added = counts["more passes"]["valu"] - counts["plain"]["valu"]
    assert added == more_passes * 2
    cycles_a_pass, rest = divmod(counts["more passes"]["compute"] - counts["plain"]["compute"], more_passes)
    assert cycles_a_pass >= 2 and rest == 0


def test_a_call_takes_at_least_its_compute_and_its_memory(counts: dict[str, Any]) -> None:
    for name in ("plain", "idle", "same block", "7x"):
        one = counts[name]
        assert max(one["compute"], one["memory"]) <= one["cycles"] <= one["compute"] + one["memory"]


def test_memory_cycles_follow_the_chip(counts: dict[str, Any]) -> None:
    moved = 8 * BLOCK_BYTES + SCALAR_BYTES + OUTPUT_BYTES
    assert counts["plain"]["memory"] == pytest.approx(moved / 820e9 * 1.5e9)
    assert counts["v5p"]["memory"] == pytest.approx(moved / 2460e9 * 1.75e9)


def test_a_grid_that_is_not_split_leaves_the_second_core_of_a_v5p_idle(counts: dict[str, Any]) -> None:
    assert counts["v5p"]["cores"] == 2
    assert counts["v5p"]["read"] == counts["plain"]["read"]


def test_both_buffers_of_a_block_are_in_vmem(counts: dict[str, Any]) -> None:
    assert 2 * BLOCK_BYTES <= counts["plain"]["vmem"] < 2 * BLOCK_BYTES + 128 * 1024


def test_a_program_without_the_kernel_is_a_clear_error(counts: dict[str, Any]) -> None:
    assert counts["refusal"].startswith("the program has no kernel 'powers': it has ")
    assert "\n" not in counts["refusal"]
