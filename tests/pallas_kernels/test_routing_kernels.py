"""The kernels of routing: equal to plain JAX in interpreters, compiled for every TPU, lowered for Hopper."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from gptoss_jax.bench.kernels.hopper import KERNEL_CALL, lower_for_hopper
from pallas_kernels.platform import Chip, using
from pallas_kernels.routing import Route, Schedule, reference, route, route_and_schedule, schedule_tiles
from tests.pallas_kernels.marks import EVERY_CHIP, slow

SIZES = [
    # tokens, experts, active, tile
    (0, 4, 2, 8),
    (1, 1, 1, 64),
    (64, 128, 4, 16),
    (129, 5, 3, 1),
]
"""The kernels leave the first to plain JAX."""
QUICK_SIZES = (SIZES[0], SIZES[3])

TOPOLOGIES: dict[Chip, str] = {"v5e": "v5e:2x2", "v5p": "v5p:2x2x1", "v6e": "v6e:2x2", "7x": "tpu7x:2x2x1"}


def random_logits(tokens: int, experts: int, *, seed: int = 0) -> np.ndarray:
    """Logits with many ties: in some rows all are equal, in others a few; in some, all but two are -inf."""
    generator = np.random.default_rng(seed)
    logits = generator.standard_normal((tokens, experts)).astype(np.float32)
    logits[::5] = np.round(logits[::5])
    logits[::7] = 0.25
    logits[3::11, 2:] = -np.inf
    return logits


def assert_same(got: tuple[Route, Schedule], want: tuple[Route, Schedule]) -> None:
    np.testing.assert_array_equal(got[0].experts, want[0].experts)
    np.testing.assert_allclose(got[0].weights, want[0].weights, rtol=1e-6)
    for name, value in want[1]._asdict().items():
        np.testing.assert_array_equal(getattr(got[1], name), value, err_msg=name)


@pytest.mark.parametrize(
    ("mode", "tokens", "experts", "active", "tile"),
    [
        *(
            (mode, *size) if size in QUICK_SIZES else slow(mode, *size)
            for mode in ("tpu-interpret", "gpu-interpret")
            for size in SIZES
        ),
        slow("tpu-simulate", 150, 20, 4, 16),
        # Tiles that are no power of two, which the TPU kernel leaves to plain JAX.
        slow("tpu-interpret", 40, 3, 3, 24),
        slow("gpu-interpret", 40, 3, 3, 24),
    ],
)
def test_the_kernel_routes_and_schedules_as_plain_jax(
    mode: str, tokens: int, experts: int, active: int, tile: int
) -> None:
    logits = random_logits(tokens, experts)
    valid = np.arange(tokens) % 3 != 1
    with using(mode, chip="v5e"):
        got = jax.jit(lambda: route_and_schedule(logits, active, tile, valid))()
    assert_same(got, reference.route_and_schedule(logits, active, tile, valid))


@pytest.mark.slow
def test_the_tpu_kernels_two_halves_are_kernels_of_their_own() -> None:
    logits = random_logits(90, 12, seed=1)
    with using("tpu-interpret", chip="v5e"):
        routed = jax.jit(lambda: route(logits, 3))()
        schedule = jax.jit(lambda: schedule_tiles(routed.experts, 12, 8))()
    assert_same((routed, schedule), reference.route_and_schedule(logits, 3, 8))


@pytest.mark.parametrize("mode", ["reference", "tpu-interpret", slow("gpu-interpret")])
def test_tokens_that_are_all_padding_make_no_tile(mode: str) -> None:
    with using(mode):
        _, schedule = route_and_schedule(random_logits(9, 4), 2, 8, np.zeros(9, bool))
    assert int(schedule.num_tiles) == 0
    assert not np.any(schedule.tile_counts)
    assert np.all(np.asarray(schedule.tokens) == 9)


@pytest.mark.parametrize("mode", ["reference", slow("tpu-interpret"), slow("gpu-interpret")])
def test_experts_may_have_minus_infinity_as_logit(mode: str) -> None:
    logits = np.full((3, 8), -np.inf, np.float32)
    logits[1, 5] = logits[2, [6, 7]] = 1.0
    with using(mode):
        routed = route(logits, 2)
    assert routed.experts[1:].tolist() == [[5, 0], [6, 7]]
    np.testing.assert_array_equal(routed.weights[1:], [[1, 0], [0.5, 0.5]])


@pytest.mark.parametrize("active", [0, 5])
def test_more_experts_than_there_are_cannot_be_asked_for(active: int) -> None:
    with pytest.raises(ValueError, match=f"experts_per_token is {active}: it must be 1 … 4"):
        route(jnp.zeros((2, 4)), active)


@functools.cache
def described_device(chip: Chip) -> jax.Device:
    return topologies.get_topology_desc(platform="tpu", topology_name=TOPOLOGIES[chip]).devices[0]


@pytest.mark.parametrize("chip", EVERY_CHIP)
def test_the_tpu_kernel_compiles_for(chip: Chip) -> None:
    pytest.importorskip("libtpu")
    sharding = NamedSharding(Mesh(np.array([described_device(chip)]), ("x",)), PartitionSpec())
    for tokens, experts, tile in [(1, 32, 16), (64, 128, 16), (2048, 128, 128)]:
        logits = jax.ShapeDtypeStruct((tokens, experts), jnp.float32, sharding=sharding)
        valid = jax.ShapeDtypeStruct((tokens,), jnp.bool_, sharding=sharding)
        with using("tpu", chip=chip):
            step = jax.jit(lambda logits, valid, tile=tile: route_and_schedule(logits, 4, tile, valid))
            text = step.lower(logits, valid).compile().as_text()
        assert text.count('custom_call_target="tpu_custom_call"') == 1


@pytest.mark.parametrize(("tokens", "experts"), [(1, 32), (64, 128), (4096, 32)])
def test_the_gpu_kernels_lower_for_hopper_in_two_launches(tokens: int, experts: int) -> None:
    def run(logits: jax.Array, valid: jax.Array) -> tuple[Route, Schedule]:
        with using("gpu"):
            return route_and_schedule(logits, 4, 16, valid)

    logits = jax.ShapeDtypeStruct((tokens, experts), jnp.float32)
    valid = jax.ShapeDtypeStruct((tokens,), jnp.bool_)
    assert lower_for_hopper(run, logits, valid).count(KERNEL_CALL) == 2
