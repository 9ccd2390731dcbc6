"""The inspector reads libtpu's dumps: bundles, instructions, units' use, allocations."""

import pytest

from pallas_kernels.inspect import dump
from pallas_kernels.inspect.dump import DumpError, Instruction

BUNDLES = """
= control target key start
LB: loop body
PF: predicated region fallthrough
= control target key end

     0   :  { %s9_s0 = inlined_call_operand.hbm [shape: s32[8], index: 1, kind: input] /* operand 1 */ }
   0x1   :  { %12 = vsyncpa [#allocation5], 0 } /* Start region 1 */
   0x2 LB: > { %s5_s3 = sphi %s4_s3, %s6_s3 /* copy ;; */  ;;  %p7_p1 = scmp.ge.s32.totalorder %s5_s3, 4 }
   0x3   : > { %21 = dma.hbm_to_vmem [thread:$0] (!%p7_p1), /*hbm=*/%s9_s0, /*size_in_granules=*/64 /*
window_bounds: (4, 2)
second_minor_factor: 1 */ } /* Start region 2 :: End region 2 */
   0x4   : >> { %v3_v1 = vld [vmem:[%s5_s3]]  ;;  %30 = sbr.rel (%p7_p1) target bundleno = 5 (0x5) }
   0x5 PF:  {}
"""


def test_bundles_carry_depth_markers_and_instructions_and_comments_vanish() -> None:
    bundles = dump.parse_bundles(BUNDLES)
    assert [bundle.index for bundle in bundles] == [0, 1, 2, 3, 4, 5]
    assert [bundle.marker for bundle in bundles] == ["", "", "LB", "", "", "PF"]
    assert [bundle.depth for bundle in bundles] == [0, 0, 1, 1, 2, 0]
    assert [len(bundle.instructions) for bundle in bundles] == [1, 1, 2, 1, 2, 0]


def test_operands_keep_the_names_that_comments_give_them() -> None:
    (copy,) = dump.parse_bundles(BUNDLES)[3].instructions
    assert copy.opcode == "dma.hbm_to_vmem"
    assert copy.condition == ("p7_p1", True)
    assert copy.operands == ("hbm=%s9_s0", "size_in_granules=64")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("%s3_s1 = sadd.s32 1, %s2_s0", Instruction("s3_s1", "sadd.s32", ("1", "%s2_s0"))),
        (
            "%s3_s1 = sld [smem:[#allocation16_spill]] (!%p5_p2)",
            Instruction("s3_s1", "sld", ("[smem:[#allocation16_spill]]",), ("p5_p2", True)),
        ),
        (
            "%s3_s1 = smov.u32 (%p5_p2, %s1_s0), 0",
            Instruction("s3_s1", "smov.u32", ("0",), None, ("p5_p2", False, "%s1_s0")),
        ),
        ("%21 = vst [vmem:[%s4_s2]] %v3_v1", Instruction("21", "vst", ("[vmem:[%s4_s2]] %v3_v1",))),
    ],
)
def test_each_form_of_predication_is_understood(text: str, expected: Instruction) -> None:
    assert dump.parse_instruction(text) == expected


def test_a_gap_in_the_addresses_is_an_error() -> None:
    with pytest.raises(DumpError, match="0x3 follows bundle 0x0"):
        dump.parse_bundles("     0   :  {}\n   0x3   :  {}\n")


def test_a_dump_without_bundles_is_an_error() -> None:
    with pytest.raises(DumpError, match="holds none"):
        dump.parse_bundles("Schedule analysis:\n")


@pytest.mark.parametrize(
    ("names", "capacities", "row"),
    [("MATMUL, MATPUSH, VALU", "4 4 3", "1 0 2"), ("MXU, XLU, VALU", "2 2 4", "0 1 4")],
)
def test_units_are_those_of_the_header(names: str, capacities: str, row: str) -> None:
    text = f"== CAPACTIY:\n{names}\n    {capacities}\n== UTILIZATION:\n{row}\n0 0 0\n"
    found = dump.parse_utilization(text)
    assert found.units == tuple(names.split(", "))
    assert found.capacities == tuple(map(int, capacities.split()))
    assert found.rows == (tuple(map(int, row.split())), (0, 0, 0))


@pytest.mark.parametrize("row", ["1 0", "1 0 2 3"])
def test_rows_that_do_not_fit_the_header_are_an_error(row: str) -> None:
    with pytest.raises(DumpError, match="do not fit"):
        dump.parse_utilization(f"== CAPACTIY:\nA, B, C\n 4 4 3\n== UTILIZATION:\n{row}\n")


def test_vmem_counts_each_allocation_of_that_space_once() -> None:
    line = "  #allocation{} [shape = 'u8[65536]{{0}}', space={}, size = {}, scoped, tag = 'x, y']\n"
    text = "".join(
        line.format(*values)
        for values in [
            (2, "vmem", "0x9000"),
            (3, "smem", "0x200"),
            (4, "vmem", "0x10000"),
            (4, "vmem", "0x10000"),
        ]
    )
    assert dump.vmem_bytes(text) == 0x9000 + 0x10000
