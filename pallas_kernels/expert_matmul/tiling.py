"""All experts of a layer as the TPU kernel reads them."""

from __future__ import annotations

import dataclasses
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from pallas_kernels.expert_matmul.reference import PackedLinear
from pallas_kernels.mxfp4 import tiled
from pallas_kernels.mxfp4.tiled import LANES, Form, TiledWeights
from pallas_kernels.platform import Chip


@functools.partial(jax.tree_util.register_dataclass, data_fields=("gate_up", "down"), meta_fields=())
@dataclasses.dataclass(frozen=True)
class TiledExperts:
    """The two maps of all experts.

    `gate_up` has D inputs; its lane blocks alternate, gate and up, for 128 features at a time, and features
    come in the kernel order of `down`'s inputs, so that what the first map leaves is what the second one
    takes. `down` has F inputs and D outputs in their own order.
    """

    gate_up: TiledWeights
    down: TiledWeights


class Arrangement(NamedTuple):
    """How a map's codes and scales are stored."""

    form: Form
    wide: bool


def form_for(chip: Chip) -> Form:
    """How a TPU generation likes its codes best: 7x has instructions for the type itself."""
    return "fp4" if chip == "7x" else "e5m2"


def tile_experts(
    gate_up: PackedLinear,
    down: PackedLinear,
    form: Form,
    *,
    arrangements: tuple[Arrangement, Arrangement] | None = None,
) -> TiledExperts:
    """Tiles published weights: gate_up [E, 2, F, D/2 …], down [E, D, F/2 …].

    Each map is arranged as `form` with narrow scales where that holds its scales, else as `fp4-` for `fp4`
    where that does, else with wide scales. To find out takes the values on the host; under `jit`, or to tile
    many layers alike, give the `arrangements` of gate_up and down.
    """
    maps = [PackedLinear(*(jnp.asarray(array) for array in linear)) for linear in (gate_up, down)]
    if arrangements is None:
        arrangements = arrangement_of(maps[0], form), arrangement_of(maps[1], form)
    return _tile_each(*maps, arrangements)


def arrangement_of(linear: PackedLinear, form: Form) -> Arrangement:
    """The fastest arrangement that holds a map's scales."""
    forms: tuple[Form, ...] = ("fp4", "fp4-") if form == "fp4" else (form,)
    for candidate in forms:
        if bool(tiled.fits_narrow(linear.blocks, linear.scales, candidate)):
            return Arrangement(candidate, False)
    return Arrangement(form, True)


@functools.partial(jax.jit, static_argnames=("arrangements",))
def _tile_each(
    gate_up: PackedLinear, down: PackedLinear, arrangements: tuple[Arrangement, Arrangement]
) -> TiledExperts:
    """One expert at a time: a layer's codes, unpacked all at once, would not fit beside a model."""
    first, second = arrangements

    def one(maps: tuple[PackedLinear, PackedLinear]) -> TiledExperts:
        gate_up, down = maps
        return TiledExperts(
            gate_up=tiled.tile(*(_paired(part) for part in gate_up), form=first.form, wide=first.wide),
            down=tiled.tile(*down, form=second.form, wide=second.wide),
        )

    return jax.lax.map(one, (gate_up, down))


def untile_experts(experts: TiledExperts) -> tuple[PackedLinear, PackedLinear]:
    """Inverse of `tile_experts`: the published arrays, biases as float32."""
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
    """int32 [2 · F rounded up to 128]: the row of [2·F] (gates, then ups) in each column; 2·F for padding."""
    lane_blocks = -(-inner // LANES)
    features = np.full(lane_blocks * LANES, inner, np.int32)
    order = tiled.kernel_order(inner)
    features[: order.size] = np.minimum(order, inner)
    by_block = features.reshape(lane_blocks, LANES)
    ups = np.where(by_block < inner, inner + by_block, 2 * inner)
    gates = np.where(by_block < inner, by_block, 2 * inner)
    return np.stack([gates, ups], axis=1).reshape(-1)


def _paired(rows: jax.Array) -> jax.Array:
    """[2, F, …] → [columns, …], padding zero."""
    flat = rows.reshape(2 * rows.shape[1], *rows.shape[2:])
    return flat.at[feature_columns(rows.shape[1])].get(mode="fill", fill_value=0)


def _bias(weights: TiledWeights) -> jax.Array:
    return weights.columns[..., 1, :].reshape(*weights.columns.shape[:-3], -1)
