"""Routing and scheduling in one launch."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np

from pallas_kernels import platform
from pallas_kernels.inspect.case import STEP_BATCHES, Call, Case, Model
from pallas_kernels.routing import route_and_schedule
from pallas_kernels.routing.reference import schedule_rows

_ACTIVE = 4
_MODELS: dict[Model, tuple[int, int]] = {"20b": (32, 24), "120b": (128, 36)}
"""Experts and layers."""
_PREFILL = 2048


def cases(chip: platform.Chip) -> list[Case]:
    """Decode steps of 1, 8 and 64 tokens and a prefill of 2,048, for both models."""
    return [
        _case(chip, model, tokens, tile)
        for model in _MODELS
        for tokens, tile in [*((batch, 16) for batch in STEP_BATCHES), (_PREFILL, 128)]
    ]


def _case(chip: platform.Chip, model: Model, tokens: int, tile: int) -> Case:
    num_experts, layers = _MODELS[model]
    rows = schedule_rows(tokens * _ACTIVE, num_experts, tile)
    decode = tokens in STEP_BATCHES
    return Case(
        operation="routing",
        name=f"{'decode' if decode else 'prefill'} {tokens}",
        model=model,
        kernel="route_schedule",
        build=functools.partial(_call, chip, num_experts, tokens, tile),
        grid_steps=1,
        # Logits in; experts, weights and destinations of the pairs, tokens of the rows, tiles out.
        floor_bytes=4 * (tokens * num_experts + 3 * tokens * _ACTIVE + rows + 2 * rows // tile),
        flops=0,
        batch=tokens if decode else 0,
        step_calls=layers if decode else 0,
    )


def _call(chip: platform.Chip, num_experts: int, tokens: int, tile: int) -> Call:
    def run(logits: jax.Array) -> object:
        with platform.using("tpu", chip=chip):
            return route_and_schedule(logits, _ACTIVE, tile)

    scalars: list[np.ndarray | int] = []
    return Call(run, [jax.ShapeDtypeStruct((tokens, num_experts), jnp.float32)], scalars)
