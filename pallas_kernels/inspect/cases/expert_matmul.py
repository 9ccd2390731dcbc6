"""The expert kernel in decode steps and prompts."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.typing import DTypeLike

from pallas_kernels.expert_matmul.reference import PackedLinear
from pallas_kernels.expert_matmul.tiling import TiledExperts, WeightLayout, code_format_for, tile_experts
from pallas_kernels.expert_matmul.tpu import CORES, MAX_RESIDENT_TOKENS, Members, Plan, launch, plan_for
from pallas_kernels.inspect.case import STEP_BATCHES, Call, Case, Model, uniform_routing
from pallas_kernels.mxfp4.tiled import padded_inputs
from pallas_kernels.platform import Chip

HIDDEN = INNER = 2880
EXPERTS_PER_TOKEN = 4
SWIGLU_LIMIT = 7.0
EXPERTS: dict[Model, int] = {"20b": 32, "120b": 128}
LAYERS: dict[Model, int] = {"20b": 24, "120b": 36}

WEIGHTS = 3 * HIDDEN * INNER
"""Weights per expert."""


def tiled_shapes(num_experts: int, chip: Chip, *, wide: bool = False, size: int = HIDDEN) -> TiledExperts:
    """Shapes and dtypes of a layer's experts in the layout of a TPU generation.

    wide: True for wide scales, False for narrow ones. size: of the hidden and the intermediate axis.
    """

    def packed(*outputs: int, inputs: int) -> PackedLinear:
        shape = num_experts, *outputs
        arrays = (
            ((*shape, inputs // 2), jnp.uint8),
            ((*shape, inputs // 32), jnp.uint8),
            (shape, jnp.bfloat16),
        )
        return PackedLinear(*(_array(*array) for array in arrays))

    layout = WeightLayout(code_format_for(chip), wide)
    tile = functools.partial(tile_experts, form=layout.form, layouts=(layout, layout))
    return jax.eval_shape(tile, packed(2, size, inputs=size), packed(size, inputs=size))


def _array(shape: tuple[int, ...], dtype: DTypeLike) -> jax.Array:
    """A shape and dtype in place of an array."""
    return jax.ShapeDtypeStruct(shape, dtype)  # type: ignore[return-value]


def cases(chip: Chip) -> list[Case]:
    """Decoding with few and many tokens per expert, the decode steps of both models, and prefill."""
    found = []
    for tokens in (1, 8, 16, 32, 64):
        found.append(_case(chip, "20b", f"decode, {tokens} for each of 4 experts", tokens, [tokens] * 4))
    found.append(_case(chip, "20b", "decode, 32 for each of 8 experts", 64, [32] * 8))
    for model, num_experts in EXPERTS.items():
        for batch in STEP_BATCHES:
            counts = _counts(uniform_routing(batch, num_experts, EXPERTS_PER_TOKEN), num_experts)
            found.append(_case(chip, model, f"decode step, batch {batch}", batch, counts, batch=batch))
    for model, num_experts in EXPERTS.items():
        counts = _counts(uniform_routing(2048, num_experts, EXPERTS_PER_TOKEN), num_experts)
        found.append(_case(chip, model, "prefill, 2048 tokens", 2048, counts))
    return found


def _counts(routing: np.ndarray, num_experts: int) -> list[int]:
    return np.bincount(routing.reshape(-1), minlength=num_experts).tolist()


def _case(chip: Chip, model: Model, name: str, num_tokens: int, counts: list[int], *, batch: int = 0) -> Case:
    """A call in which expert i has counts[i] rows."""
    plan = plan_for(num_tokens, sum(counts) / EXPERTS[model], chip)
    tiles = [
        (expert, min(plan.rows, count - first))
        for expert, count in enumerate(counts)
        for first in range(0, count, plan.rows)
    ]
    shapes = tiled_shapes(EXPERTS[model], chip)
    return Case(
        operation="expert_matmul",
        name=name,
        model=model,
        kernel="expert_mlp",
        build=functools.partial(_call, chip, plan, num_tokens, shapes, tiles),
        grid_steps=len(tiles),
        floor_bytes=sum(count > 0 for count in counts) * (WEIGHTS * 17 // 32 + 3 * HIDDEN * 2),
        flops=2 * WEIGHTS * sum(counts),
        weights=WEIGHTS * len(tiles),
        batch=batch,
        step_calls=LAYERS[model] if batch else 0,
    )


def _call(
    chip: Chip, plan: Plan, num_tokens: int, experts: TiledExperts, tiles: list[tuple[int, int]]
) -> Call:
    resident = num_tokens <= MAX_RESIDENT_TOKENS
    table = plan.rows, experts.down.codes.shape[0]
    members = Members(_array(table, jnp.float32), _array(table, jnp.int32))
    x_rows = plan.rows if resident else plan.rows * len(tiles)
    x = _array((x_rows, padded_inputs(HIDDEN)), jnp.bfloat16)

    def fn(
        num_tiles: jax.Array,
        tile_experts: jax.Array,
        tile_counts: jax.Array,
        x: jax.Array,
        members: Members | None,
        experts: TiledExperts,
    ) -> jax.Array:
        return launch(
            x,
            members,
            tile_experts=tile_experts,
            tile_counts=tile_counts,
            num_tiles=num_tiles,
            experts=experts,
            plan=plan,
            limit=SWIGLU_LIMIT,
            interpret=False,
            chip=chip,
        )

    steps = pl.cdiv(len(tiles), CORES[chip])
    numbers = _array((len(tiles),), jnp.int32)
    scalar = _array((), jnp.int32)
    columns = (np.array(column, np.int32) for column in zip(*tiles, strict=True))
    return Call(
        fn=fn,
        args=(scalar, numbers, numbers, x, members if resident else None, experts),
        scalars=(steps, np.array([len(tiles)], np.int32), *columns),
    )
