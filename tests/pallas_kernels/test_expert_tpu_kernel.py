"""The TPU kernel of the experts, interpreted on the CPU, against experts in float64."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable

import jax
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pallas_kernels.expert_matmul import PackedLinear, code_format_for, expert_mlp, reference, tpu
from pallas_kernels.inspect.cases.expert_matmul import tiled_shapes
from pallas_kernels.platform import Chip, using
from pallas_kernels.routing import Route, local_experts
from tests.pallas_kernels.expert_samples import (
    LEAN,
    LIMIT,
    Expected,
    assert_close,
    cut_otherwise,
    expected,
    random_maps,
    random_route,
    tile_lean,
)
from tests.pallas_kernels.marks import slow

STYLES = ("any", "first", "last", "nowhere", "few")
DTYPES = {"float32": np.float32, "bfloat16": ml_dtypes.bfloat16}


def compiled() -> Callable:
    """A new program, for tests that change how the kernel is traced."""
    return jax.jit(expert_mlp, static_argnums=4, compiler_options=LEAN)


run_kernel = compiled()
run_reference = jax.jit(reference.expert_mlp, static_argnums=4, compiler_options=LEAN)


@dataclasses.dataclass(frozen=True)
class Case:
    """Sizes of a call. wide: True for wide scales, which represent any span."""

    tokens: int
    experts: int
    active: int
    hidden: int
    inner: int
    chip: Chip
    dtype: str
    wide: bool = False

    def maps(self, generator: np.random.Generator) -> tuple[PackedLinear, PackedLinear]:
        return random_maps(generator, self.experts, self.hidden, self.inner)

    def route(self, generator: np.random.Generator, style: str) -> Route:
        return random_route(generator, self.tokens, self.experts, self.active, style)

    def check(
        self,
        styles: tuple[str, ...] = STYLES,
        *,
        seed: int = 0,
        size: float = 1.0,
        mode: str = "tpu-interpret",
        run: Callable = run_kernel,
    ) -> None:
        generator = np.random.default_rng(seed)
        maps = self.maps(generator)
        wide = (self.wide, self.wide)
        tiles = tile_lean(*maps, code_format_for(self.chip), wide=wide)
        for style in styles:
            x = (size * generator.standard_normal((self.tokens, self.hidden))).astype(DTYPES[self.dtype])
            route = self.route(generator, style)
            with using(mode, chip=self.chip):
                got = np.asarray(run(x, route, tiles.gate_up, tiles.down, LIMIT))
            want = expected(x, route, *maps)
            assert got.dtype == x.dtype
            assert_close(got, want)
            assert not got[(route.experts == self.experts).all(axis=1)].any()
            if self.dtype == "bfloat16":
                assert_as_good_as_the_reference(got, run_reference(x, route, *maps, LIMIT), want)


def assert_as_good_as_the_reference(got: np.ndarray, reference: jax.Array, want: Expected) -> None:
    """Both round only the activations and the result to bfloat16, so their errors are about equal."""
    own, others = (
        np.sqrt(np.square(np.asarray(result).astype(np.float64) - want.values).sum())
        for result in (got, reference)
    )
    assert own <= 1.1 * others


CASES = [
    # One lane block each, the smallest sizes there are.
    slow(Case(1, 4, 2, 64, 32, "v5e", "float32")),
    # 128 experts, most of them idle.
    Case(5, 128, 4, 32, 64, "7x", "bfloat16"),
    # A single expert and as many rows as the smallest tile.
    slow(Case(16, 1, 1, 96, 64, "v6e", "float32")),
    # One row more; two cores take turns.
    slow(Case(17, 6, 4, 32, 160, "v5p", "float32")),
    # Runs of 256 rows, with and without a tail that is padded.
    slow(Case(32, 3, 2, 288, 256, "v5e", "bfloat16")),
    # Wide scales.
    Case(32, 4, 2, 96, 64, "v6e", "float32", wide=True),
    slow(Case(32, 4, 2, 288, 96, "v6e", "float32", wide=True)),
    # More than 32 tokens: each expert's own are picked out, unless they are more than 32 themselves.
    slow(Case(33, 5, 2, 96, 128, "v5e", "float32")),
    slow(Case(64, 7, 4, 160, 96, "v5p", "bfloat16")),
    slow(Case(64, 3, 2, 64, 288, "7x", "float32", wide=True)),
    # More than 64: tiles of sorted rows.
    slow(Case(65, 40, 2, 64, 64, "v6e", "float32")),
    slow(Case(128, 2, 1, 96, 288, "v5p", "bfloat16")),
    # More rows for one expert than a tile has.
    slow(Case(300, 4, 2, 288, 64, "v5e", "float32", wide=True)),
    slow(Case(300, 3, 2, 64, 96, "7x", "bfloat16")),
]

RESIDENT = Case(24, 9, 3, 64, 32, "v5e", "float32")
PICKED = Case(40, 9, 3, 64, 32, "v5p", "bfloat16")
STREAMED = Case(90, 9, 3, 64, 32, "7x", "float32")
"""One size for each way in which the kernel takes its tokens. Tests that use these share their programs."""


@pytest.mark.parametrize(
    "case",
    CASES,
    ids=lambda case: "-".join(map(str, dataclasses.astuple(case))),
)
def test_each_token_gets_the_weighted_sum_of_its_experts(case: Case) -> None:
    case.check()


@pytest.mark.parametrize("chip", ["v5e", "7x"])
def test_no_tokens_are_no_work(chip: Chip) -> None:
    Case(0, 4, 2, 64, 32, chip, "float32").check(("any",))


@pytest.mark.parametrize(
    "case",
    [slow(RESIDENT), PICKED, slow(STREAMED)],
    ids=["up to 32 tokens", "up to 64 tokens", "more tokens"],
)
@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10000), style=st.sampled_from(STYLES), size=st.sampled_from([1e-3, 1.0, 30.0]))
def test_any_routing_of_any_activations(case: Case, seed: int, style: str, size: float) -> None:
    case.check((style,), seed=seed, size=size)


@pytest.mark.parametrize("tokens", [40, slow(100)])
def test_a_devices_slice_of_the_experts_adds_its_part(tokens: int) -> None:
    case = Case(tokens, 12, 3, 64, 32, "v6e", "float32")
    generator = np.random.default_rng(5)
    maps = case.maps(generator)
    x = generator.standard_normal((tokens, 64)).astype(np.float32)
    route = case.route(generator, "any")
    run = jax.jit(expert_mlp, static_argnums=(4,), static_argnames="num_experts", compiler_options=LEAN)
    total = np.zeros((tokens, 64))
    with using("tpu-interpret", chip=case.chip):
        for first in range(0, 12, 4):
            tiles = tile_lean(
                *jax.tree.map(lambda array, first=first: array[first : first + 4], maps), "e5m2"
            )
            local = local_experts(route, first, 4)
            total += np.asarray(run(x, local, tiles.gate_up, tiles.down, LIMIT, num_experts=12))
    assert_close(total.astype(np.float32), expected(x, route, *maps))


@pytest.mark.parametrize(("num_experts", "rows"), [(None, 512), (128, 128)])
def test_tiles_are_cut_for_the_models_experts_where_a_device_holds_a_slice(
    num_experts: int | None, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """2,048 tokens of 120b: 64 rows for each of 128 experts, of which eight devices hold 16 each."""
    plans = []

    def launch(x: jax.Array, members: None, *, plan: tpu.Plan, **_: object) -> jax.Array:
        plans.append(plan)
        return x

    monkeypatch.setattr(tpu, "launch", launch)
    experts = tiled_shapes(16, "v6e")
    shape = jax.ShapeDtypeStruct
    pairs = Route(shape((2048, 4), np.int32), shape((2048, 4), np.float32))
    run = functools.partial(tpu.expert_mlp, num_experts=num_experts, limit=LIMIT, interpret=False, chip="v6e")
    jax.eval_shape(run, shape((2048, 2880), ml_dtypes.bfloat16), pairs, experts.gate_up, experts.down)
    assert [plan.rows for plan in plans] == [rows]


def test_a_token_is_computed_alike_whoever_is_beside_it() -> None:
    case = RESIDENT
    generator = np.random.default_rng(3)
    tiles = tile_lean(*case.maps(generator), "e5m2")
    x = generator.standard_normal((case.tokens, case.hidden)).astype(np.float32)
    route = case.route(generator, "any")
    alone = route._replace(experts=np.where(np.arange(24)[:, None] == 7, [[1, 4, 6]], 9).astype(np.int32))
    crowded = route._replace(experts=np.where(np.arange(24)[:, None] == 7, [[1, 4, 6]], route.experts))
    with using("tpu-interpret", chip=case.chip):
        results = [
            np.asarray(run_kernel(x, one, tiles.gate_up, tiles.down, LIMIT)) for one in (alone, crowded)
        ]
    np.testing.assert_array_equal(results[0][7], results[1][7])
    assert results[0][7].any()


@pytest.mark.parametrize("case", [RESIDENT, PICKED, slow(STREAMED)], ids=["resident", "picked", "streamed"])
def test_rows_of_padding_may_hold_any_numbers(case: Case) -> None:
    generator = np.random.default_rng(4)
    maps = case.maps(generator)
    tiles = tile_lean(*maps, code_format_for(case.chip))
    x = generator.standard_normal((case.tokens, 64)).astype(DTYPES[case.dtype])
    route = case.route(generator, "any")
    nowhere = (route.experts == case.experts).all(axis=1)
    assert nowhere.any()
    x[nowhere] = 1e30
    with using("tpu-interpret", chip=case.chip):
        got = np.asarray(run_kernel(x, route, tiles.gate_up, tiles.down, LIMIT))
    assert not got[nowhere].any()
    assert_close(got, expected(np.where(nowhere[:, None], 0, x), route, *maps))


@pytest.mark.parametrize(
    ("chip", "tokens", "dtype"),
    [
        (PICKED.chip, PICKED.tokens, PICKED.dtype),
        *(
            slow(chip, tokens, dtype)
            for dtype in DTYPES
            for chip, tokens in (("v5e", 20), ("v5e", 40), ("v5p", 64), ("7x", 40), ("v6e", 80))
        ),
    ],
)
def test_a_token_that_overflows_leaves_the_others_alone(chip: Chip, tokens: int, dtype: str) -> None:
    """A finite activation whose products are infinite gives NaN in its own row, as in the reference."""
    case = dataclasses.replace(PICKED, tokens=tokens, chip=chip, dtype=dtype)
    generator = np.random.default_rng(11)
    maps = case.maps(generator)
    tiles = tile_lean(*maps, code_format_for(chip))
    x = generator.standard_normal((tokens, 64)).astype(DTYPES[dtype])
    route = case.route(generator, "any")
    loud = int(np.flatnonzero((route.experts < case.experts).all(axis=1))[0])
    others = np.arange(tokens) != loud
    for size in (1e37, 3e38):
        x[loud] = np.where(np.arange(64) % 3 == 0, size, x[loud])
        with using("tpu-interpret", chip=chip):
            got = np.asarray(run_kernel(x, route, tiles.gate_up, tiles.down, LIMIT))
        reference = np.asarray(run_reference(x, route, *maps, LIMIT))
        want = expected(x, route, *maps)
        assert_close(got[others], Expected(want.values[others], want.terms[others]))
        assert np.isnan(got[loud])[np.isnan(reference[loud])].all()


@pytest.mark.slow  # the simulator's tests are the quick form: they cut the work otherwise, too
@pytest.mark.parametrize(
    ("case", "changes"),
    [
        # Six lane blocks in chunks of four and two, three in chunks of two and one.
        (Case(20, 5, 2, 288, 288, "v5e", "float32"), {"gate_up_blocks": 4, "down_blocks": 2}),
        (Case(20, 5, 2, 288, 288, "7x", "bfloat16"), {"gate_up_blocks": 2, "down_blocks": 1}),
        (Case(48, 5, 2, 288, 288, "v5p", "float32"), {"gate_up_blocks": 4, "down_blocks": 2}),
        # Tiles of 64 rows in parts of 16: several tiles and several parts for each expert.
        (
            Case(150, 3, 2, 160, 288, "v6e", "float32"),
            {"rows": 64, "first": (8, 16), "gate_up_blocks": 4, "down_blocks": 1},
        ),
        (
            Case(150, 3, 2, 160, 288, "v5p", "bfloat16", wide=True),
            {"rows": 64, "first": (16,), "gate_up_blocks": 4, "down_blocks": 1},
        ),
    ],
)
def test_results_do_not_depend_on_how_the_work_is_cut(case: Case, changes: dict) -> None:
    with cut_otherwise(changes):
        case.check(("any", "first"), run=compiled())
