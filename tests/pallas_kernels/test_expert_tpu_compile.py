"""The TPU kernel of the experts through the TPU compiler, at the published models' shapes."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from pallas_kernels.expert_matmul import TiledExperts, expert_mlp
from pallas_kernels.expert_matmul.tpu import MAX_RESIDENT_TOKENS, plan_for
from pallas_kernels.inspect.cases.expert_matmul import EXPERTS_PER_TOKEN, HIDDEN, SWIGLU_LIMIT, tiled_shapes
from pallas_kernels.inspect.chips import facts
from pallas_kernels.mxfp4.tiled import LANES
from pallas_kernels.platform import Chip, using
from pallas_kernels.routing import Route, schedule_rows, spread_experts
from tests.pallas_kernels.marks import QUICK, slow

pytest.importorskip("libtpu", reason="the TPU compiler (libtpu) is not installed")

EIGHT = {"v5e": "v5e:2x4", "v5p": "v5p:2x2x2", "v6e": "v6e:2x4", "7x": "tpu7x:2x2x1"}
"""Eight devices of each generation."""

MIB = 2**20


SMALL = 576
"""Hidden and intermediate size in the quick run: two runs of 256 inputs and a tail, five lane blocks."""


def check_compiled(
    chip: Chip, num_experts: int, devices: int, tokens: int, *, wide: bool = False, size: int = HIDDEN
) -> None:
    """Compiles one layer's experts; held to the memory that its arguments and its rows take."""
    described = topologies.get_topology_desc(platform="tpu", topology_name=EIGHT[chip]).devices
    mesh = Mesh(np.array(described[:devices]).reshape(1, devices), ("expert", "tensor"))
    everywhere, shared = PartitionSpec(), PartitionSpec(("expert", "tensor"))

    def layer(x: jax.Array, route: Route, experts: TiledExperts) -> jax.Array:
        def mine(x: jax.Array, local: Route) -> jax.Array:
            return expert_mlp(x, local, experts.gate_up, experts.down, SWIGLU_LIMIT, num_experts=num_experts)

        return spread_experts(mine, x, route, num_experts, gather_axis="expert", reduce_axis="tensor")

    def described_array(shape: tuple[int, ...], dtype: np.dtype, spec: PartitionSpec) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, spec))

    pairs = tokens, EXPERTS_PER_TOKEN
    experts = tiled_shapes(num_experts, chip, wide=wide, size=size)
    arguments = (
        described_array((tokens, size), jnp.bfloat16, everywhere),
        Route(described_array(pairs, jnp.int32, everywhere), described_array(pairs, jnp.float32, everywhere)),
        jax.tree.map(lambda array: described_array(array.shape, array.dtype, shared), experts),
    )
    spread = jax.shard_map(
        layer,
        mesh=mesh,
        in_specs=(everywhere, everywhere, shared),
        out_specs=everywhere,
        check_vma=False,
    )
    with using("tpu", chip=chip):
        compiled = jax.jit(spread).lower(*arguments).compile()
    memory = compiled.memory_analysis()
    # The weights lie in memory as they are, unpadded, and no copy of them is made: all that comes on top is
    # the rows of prefill, sorted by expert, in bfloat16 and float32.
    held = sum(array.size * array.dtype.itemsize for array in jax.tree.leaves(experts)) / devices
    rows = tokens * (EXPERTS_PER_TOKEN + 2)
    if tokens > MAX_RESIDENT_TOKENS:
        local = num_experts // devices
        pairs_in_all = tokens * EXPERTS_PER_TOKEN
        rows += schedule_rows(pairs_in_all, local, plan_for(tokens, pairs_in_all / num_experts, chip).rows)
    activations = rows * (size + LANES) * 6
    assert memory.temp_size_in_bytes < activations + 4 * MIB
    assert memory.argument_size_in_bytes < 1.001 * held + activations
    assert memory.peak_memory_in_bytes < held + 2 * activations + 8 * MIB < facts(chip).memory


# The engine's whole steps in tests/bench/test_fit.py hold the same kernels for 20b on v5e and v6e with 2,048
# tokens.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("chip", "tokens"), [("v5e", 64), ("v5p", 16), ("v5p", 2048), ("v6e", 16), ("7x", 64), ("7x", 2048)]
)
def test_a_layer_of_20b_compiles_for_one_device(chip: Chip, tokens: int) -> None:
    check_compiled(chip, 32, 1, tokens)


@pytest.mark.parametrize(
    ("tokens", "wide"),
    [slow(16, True), (64, False), slow(2048, False)],
    ids=["wide scales", "resident", "streamed"],
)
def test_a_small_layer_compiles_for_one_device(tokens: int, wide: bool) -> None:
    check_compiled(QUICK, 32, 1, tokens, wide=wide, size=SMALL)


# And those for 120b on eight v5e with 2,048 tokens.
@pytest.mark.slow
@pytest.mark.parametrize(("chip", "tokens"), [("v5p", 64), ("v6e", 64), ("7x", 16)])
def test_a_layer_of_120b_compiles_for_eight_devices(chip: Chip, tokens: int) -> None:
    check_compiled(chip, 128, 8, tokens)


@pytest.mark.slow
@pytest.mark.parametrize("chip", ["v5e", "v6e"])
def test_the_fallback_for_scales_of_any_span_compiles(chip: Chip) -> None:
    check_compiled(chip, 32, 1, 16, wide=True)
