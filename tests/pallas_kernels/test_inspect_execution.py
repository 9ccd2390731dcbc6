"""Executing scalar code: trip counts, branches, DMAs, and errors where a value cannot be known.

The program is written by hand in the form of libtpu's dumps. Its grid loop runs as often as operand 0 says;
in step i it skips four bundles if operand 1 holds 0 there, and fetches a block if operand 1 changed.
"""

import numpy as np
import pytest

from pallas_kernels.inspect import dump, execution
from pallas_kernels.inspect.dump import DumpError, Utilization
from pallas_kernels.inspect.execution import ExecutionError, Trace
from pallas_kernels.inspect.program import Program, build

LINES = [
    ("", 0, "%s1_s0 = inlined_call_operand.<no memory space> [shape: s32[], index: 0, kind: input]"),
    ("", 0, "%s2_s1 = inlined_call_operand.hbm [shape: s32[8], index: 1, kind: input]"),
    ("", 0, "%s3_s2 = inlined_call_operand.hbm [shape: f32[8], index: 2, kind: input]"),
    ("", 0, "%s4_s3 = smov.u32 [#allocation3]  ;;  %s5_s4 = sshll.u32 %s2_s1, 4"
            "  ;;  %s6_s4 = int_to_ptr.hbm [resolvable:$true] %s5_s4"),
    ("", 0, "%7 = dma.hbm_to_smem /*hbm=*/%s6_s4, /*size_in_granules=*/1, /*smem=*/%s4_s3"),
    ("", 0, "%s8_s5 = smov.u32 0  ;;  %s9_s6 = smov.u32 4294967295"),
    # Block 1, the loop's head: a bundle reads its loop variable by the name that it gets there.
    ("LB", 1, "%s11_s7 = sld [smem:[#allocation3 + %s10_s5]]  ;;  %s10_s5 = sphi %s8_s5, %s30_s5"
              "  ;;  %s12_s6 = sphi %s9_s6, %s31_s6"),
    ("", 1, "%p13_p0 = scmp.eq.s32.totalorder %s11_s7, 0"
             "  ;;  %p14_p1 = scmp.ne.s32.totalorder %s11_s7, %s12_s6"),
    ("", 1, "%15 = dma.hbm_to_vmem [thread:$0]  (%p14_p1), /*hbm=*/%s3_s2,"
             " /*size_in_granules=*/16, /*vmem=*/%s4_s3"),
    ("", 1, "%16 = sbr.rel (%p13_p0) target bundleno = 18 (0x12), region = 4"),
    ("", 1, ""), ("", 1, ""), ("", 1, ""), ("", 1, ""),
    # Block 2: what a `pl.when` guards.
    ("", 1, "%v17_v0 = vadd.f32 %v17_v0, %v17_v0"), ("", 1, ""), ("", 1, ""), ("", 1, ""),
    # Block 3: the loop's end.
    ("PF", 1, "%s30_s5 = sadd.s32 1, %s10_s5  ;;  %s31_s6 = smov.u32 %s11_s7"),
    ("", 1, "%p32_p2 = scmp.lt.s32.totalorder %s30_s5, %s1_s0"),
    ("", 1, "%33 = sbr.rel (%p32_p2) target bundleno = 6 (0x6), region = 9"),
    ("", 0, ""), ("", 0, ""), ("", 0, ""), ("", 0, ""),
    ("", 0, "%40 = dma.vmem_to_hbm /*vmem=*/%s4_s3, /*size_in_granules=*/2, /*hbm=*/%s3_s2"),
]  # fmt: skip


def program(lines: list[tuple[str, int, str]] = LINES, delay_slots: int = 4) -> Program:
    text = "".join(
        f"{hex(i) if i else '0':>6} {marker:>2}: {'>' * depth} {{ {body} }}\n"
        for i, (marker, depth, body) in enumerate(lines)
    )
    rows = tuple((int("vadd" in body), int("sadd" in body)) for _, _, body in lines)
    return build(dump.parse_bundles(text), Utilization(("VALU", "SALU"), (4, 2), rows), delay_slots)


def run(steps: int, schedule: list[int]) -> Trace:
    return execution.execute(program(), {0: steps, 1: np.array(schedule, np.int32)})


def test_blocks_end_behind_delay_slots_and_before_places_where_control_arrives() -> None:
    assert [(b.start, b.stop, b.target, b.empty) for b in program().blocks] == [
        (0, 6, None, 0),
        (6, 14, 3, 4),
        (14, 18, None, 3),
        (18, 25, 1, 4),
        (25, 26, None, 0),
    ]
    assert program().loops() == [(1, 3)]


def test_the_outline_shows_sizes_use_and_where_branches_lead() -> None:
    lines = program().outline().splitlines()[1:]
    assert [line.split()[:3] for line in lines] == [
        ["0", "0x0", "6"],
        ["1", "0x6", "8"],
        ["2", "0xe", "4"],
        ["3", "0x12", "7"],
        ["4", "0x19", "1"],
    ]
    assert (
        lines[1].endswith("-> 3  loop") and lines[2].endswith("VALU:1") and lines[3].endswith("SALU:1 -> 1")
    )


def test_a_loop_runs_as_often_as_its_scalars_say() -> None:
    for steps in (1, 2, 7):
        trace = run(steps, [1] * 8)
        assert len(trace.iterations) == steps
        assert trace.bundles == 6 + steps * 19 + 1


def test_branches_are_taken_where_the_schedule_says() -> None:
    trace = run(4, [5, 0, 0, 5])
    assert [step.bundles for step in trace.iterations] == [19, 15, 15, 19]
    assert [step.empty for step in trace.iterations] == [11, 8, 8, 11]
    assert [step.path for step in trace.iterations] == [(1, 2, 3), (1, 3), (1, 3), (1, 2, 3)]
    assert [step.use for step in trace.iterations] == [(1, 1), (0, 1), (0, 1), (1, 1)]


def test_a_block_that_stays_is_not_fetched_again() -> None:
    trace = run(5, [7, 7, 2, 2, 7])
    assert [step.read for step in trace.iterations] == [512, 0, 512, 0, 512]
    assert (trace.before.read, trace.read, trace.written) == (32, 32 + 3 * 512, 64)


def test_a_branch_on_a_value_that_nobody_gave_is_an_error() -> None:
    with pytest.raises(ExecutionError, match="known only on the device"):
        execution.execute(program(), {0: 2})


def test_a_store_to_an_unknown_address_makes_its_allocation_unknown_and_nothing_else() -> None:
    lines = [*LINES]
    lines[5] = ("", 0, lines[5][2] + "  ;;  %50 = sst [smem:[#allocation9 + %s99_s20]] 1")
    trace = execution.execute(program(lines), {0: 3, 1: np.array([1, 0, 1])})
    assert [step.bundles for step in trace.iterations] == [19, 15, 19]
    lines[5] = ("", 0, lines[5][2].replace("#allocation9", "#allocation3"))
    with pytest.raises(ExecutionError):
        execution.execute(program(lines), {0: 3, 1: np.array([1, 0, 1])})


def test_a_general_dma_counts_by_the_memories_that_its_pointers_name() -> None:
    lines = [*LINES]
    lines[5] = (
        "",
        0,
        lines[5][2]
        + "  ;;  %s50_s20 = scalar_lea.hbm %s3_s2, 4  ;;  %s51_s21 = scalar_lea.vmem [#allocation4], 8"
        + "  ;;  %52 = dma.general /*src=*/%s50_s20, /*size_in_granules=*/8, /*dst=*/%s51_s21",
    )
    trace = execution.execute(program(lines), {0: 1, 1: np.ones(8)})
    assert (trace.before.read, trace.before.written) == (32 + 256, 0)
    lines[5] = ("", 0, lines[5][2].replace("scalar_lea.hbm", "sadd.s32"))
    with pytest.raises(ExecutionError, match=r"dma\.general"):
        execution.execute(program(lines), {0: 1, 1: np.ones(8)})


def test_spilled_registers_come_back() -> None:
    lines = [*LINES]
    lines[5] = ("", 0, lines[5][2] + "  ;;  %50 = sst [smem:[#allocation21_spill]] %s1_s0")
    lines[18] = ("PF", 1, lines[18][2] + "  ;;  %s60_s9 = sld [smem:[#allocation21_spill]]")
    lines[19] = ("", 1, lines[19][2].replace("%s1_s0", "%s60_s9"))
    assert len(execution.execute(program(lines), {0: 6, 1: np.ones(8)}).iterations) == 6


def test_delay_slots_that_do_not_fit_the_code_are_an_error() -> None:
    with pytest.raises(DumpError, match="does not have 8 delay slots"):
        program(delay_slots=8)


def test_dumps_of_different_length_are_an_error() -> None:
    bundles = dump.parse_bundles("     0   :  {}\n   0x1   :  {}\n")
    with pytest.raises(DumpError, match="2 bundles, but units' use of 1"):
        build(bundles, Utilization(("VALU",), (4,), ((0,),)), 4)
