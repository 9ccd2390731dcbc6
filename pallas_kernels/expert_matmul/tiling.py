"""All experts of a layer in the layout of the TPU kernel."""

from __future__ import annotations

import dataclasses
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from pallas_kernels.expert_matmul.reference import PackedLinear
from pallas_kernels.mxfp4 import tiled
from pallas_kernels.mxfp4.tiled import LANES, CodeFormat, TiledWeights
from pallas_kernels.platform import Chip


@functools.partial(jax.tree_util.register_dataclass, data_fields=("gate_up", "down"), meta_fields=())
@dataclasses.dataclass(frozen=True)
class TiledExperts:
    """Both projections of all experts.

    `gate_up` has D inputs. Its lane blocks alternate between gate and up, 128 features each. The features are
    in the kernel order of `down`'s inputs, so `down` can read them as gate and up produced them. `down` has F
    inputs and D outputs, the outputs in their published order.
    """

    gate_up: TiledWeights
    down: TiledWeights


class WeightLayout(NamedTuple):
    """How a projection's codes and scales are stored; see `pallas_kernels.mxfp4.tiled`.

    wide: True stores each block's scale as published, False (*narrow*) as the difference to its column's
    base.
    """

    form: CodeFormat
    wide: bool


def code_format_for(chip: Chip) -> CodeFormat:
    """The code format that a TPU generation decodes fastest. 7x has instructions for 4-bit floats."""
    return "fp4" if chip == "7x" else "e5m2"


def tile_experts(
    gate_up: PackedLinear,
    down: PackedLinear,
    form: CodeFormat,
    *,
    layouts: tuple[WeightLayout, WeightLayout] | None = None,
) -> TiledExperts:
    """Tiles published weights: gate_up [E, 2, F, D/2 …], down [E, D, F/2 …].

    form: the preferred code format. Each projection gets it with narrow scales if they can represent its
    scales; `fp4` falls back to `fp4-` with narrow scales; both fall back to wide scales. That choice depends
    on the values, so it does not work under `jit`. layouts: those of gate_up and down, chosen by the caller
    instead.
    """
    packed = [PackedLinear(*(jnp.asarray(array) for array in linear)) for linear in (gate_up, down)]
    if layouts is None:
        layouts = layout_of(packed[0], form), layout_of(packed[1], form)
    return _tile_each(*packed, layouts)


def layout_of(linear: PackedLinear, form: CodeFormat) -> WeightLayout:
    """The fastest layout that can represent a projection's scales."""
    forms: tuple[CodeFormat, ...] = ("fp4", "fp4-") if form == "fp4" else (form,)
    for candidate in forms:
        if bool(tiled.fits_narrow(linear.blocks, linear.scales, candidate)):
            return WeightLayout(candidate, False)
    return WeightLayout(form, True)


@functools.partial(jax.jit, static_argnames=("layouts",))
def _tile_each(
    gate_up: PackedLinear, down: PackedLinear, layouts: tuple[WeightLayout, WeightLayout]
) -> TiledExperts:
    """Tiles one expert at a time: a whole layer, unpacked at once, would not fit in memory beside a model."""
    first, second = layouts

    def one(expert: tuple[PackedLinear, PackedLinear]) -> TiledExperts:
        gate_up, down = expert
        return TiledExperts(
            gate_up=tiled.tile(*(_paired(part) for part in gate_up), form=first.form, wide=first.wide),
            down=tiled.tile(*down, form=second.form, wide=second.wide),
        )

    return jax.lax.map(one, (gate_up, down))


def untile_experts(experts: TiledExperts) -> tuple[PackedLinear, PackedLinear]:
    """The inverse of `tile_experts`: the published arrays, with float32 biases."""
    hidden, inner = experts.gate_up.inputs, experts.down.inputs
    columns = feature_columns(inner)
    blocks, scales = tiled.untile(experts.gate_up, outputs=columns.size)
    bias = _bias(experts.gate_up)

    def published(rows: jax.Array) -> jax.Array:
        shape = (rows.shape[0], 2 * inner, *rows.shape[2:])
        rows = jnp.zeros(shape, rows.dtype).at[:, columns].set(rows, mode="drop")
        return rows.reshape(rows.shape[0], 2, inner, *rows.shape[2:])

    gate_up = PackedLinear(published(blocks), published(scales), published(bias))
    down = PackedLinear(*tiled.untile(experts.down, outputs=hidden), _bias(experts.down)[:, :hidden])
    return gate_up, down


@functools.cache
def feature_columns(inner: int) -> np.ndarray:
    """Which row of the published [2·F] (gates, then ups) each tiled column holds: int32 [2 · (F rounded up to
    128)]. The value 2·F marks padding.
    """
    lane_blocks = -(-inner // LANES)
    features = np.full(lane_blocks * LANES, inner, np.int32)
    order = tiled.kernel_order(inner)
    features[: order.size] = np.minimum(order, inner)
    by_block = features.reshape(lane_blocks, LANES)
    ups = np.where(by_block < inner, inner + by_block, 2 * inner)
    gates = np.where(by_block < inner, by_block, 2 * inner)
    return np.stack([gates, ups], axis=1).reshape(-1)


def _paired(rows: jax.Array) -> jax.Array:
    """Gathers [2, F, …] into the order of the tiled columns, [columns, …]; padding is zero."""
    flat = rows.reshape(2 * rows.shape[1], *rows.shape[2:])
    return flat.at[feature_columns(rows.shape[1])].get(mode="fill", fill_value=0)


def _bias(weights: TiledWeights) -> jax.Array:
    return weights.columns[..., 1, :].reshape(*weights.columns.shape[:-3], -1)
