"""Routing on a TPU in one launch: top-k, softmax, counting, ranks and the tile schedule, without a sort.

Tokens lie along the lanes and experts along the sublanes, 128 tokens at a time. Top-k takes A rounds, each of
which finds the maximum and its lowest index. A token's rank within its expert is a prefix sum along the
lanes: the matrix unit multiplies the 0/1 choices by a triangular matrix, exactly, and the counts of earlier
blocks are added. The inverse map from rows to tokens is a scatter; the scalar core writes it to scalar
memory, one store per pair.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from pallas_kernels.platform import Chip, Interpret
from pallas_kernels.routing.reference import Route, Schedule, schedule_rows

LANES = 128
SUBLANES = 16
"""Rows of a bfloat16 register; experts are padded to a multiple of it."""

MAX_PAIRS = 1 << 15
"""The (token, choice) pairs for which scalar memory has room: a destination and a row each, 4 bytes both."""

_UNROLL = 8


class _Sizes(NamedTuple):
    """Static sizes of one launch. tile: rows per tile; 0 computes no schedule."""

    tokens: int
    active: int
    experts: int
    tile: int

    @property
    def padded_tokens(self) -> int:
        return _round_up(self.tokens, LANES)

    @property
    def padded_experts(self) -> int:
        return _round_up(self.experts, SUBLANES)

    @property
    def rows(self) -> int:
        return schedule_rows(self.tokens * self.active, self.experts, self.tile)

    @property
    def tiles(self) -> int:
        return self.rows // self.tile

    @property
    def padded_tiles(self) -> int:
        return _round_up(self.tiles, LANES)

    @property
    def token_rows(self) -> int:
        """Rows of 128 numbers that hold the token of every row, and one
        number for pairs without an expert.
        """
        return _round_up(pl.cdiv(self.rows + 1, LANES), 8)


def serves(num_tokens: int, experts_per_token: int, tile: int) -> bool:
    """Whether the kernel supports these sizes: 1 … `MAX_PAIRS` pairs, and a power of two as the tile."""
    return 0 < num_tokens * experts_per_token <= MAX_PAIRS and tile & (tile - 1) == 0


def route(
    logits: jax.Array,
    experts_per_token: int,
    valid: jax.Array | None = None,
    *,
    interpret: Interpret,
    chip: Chip,
) -> Route:
    """See `pallas_kernels.routing.route`; the same on every chip."""
    del chip
    num_tokens, num_experts = logits.shape
    sizes = _Sizes(num_tokens, experts_per_token, num_experts, 0)
    experts, weights = _launch(sizes, interpret, logits=logits, valid=valid)
    return Route(experts.T, weights.T)


def schedule_tiles(
    experts: jax.Array, num_experts: int, tile: int, *, interpret: Interpret, chip: Chip
) -> Schedule:
    """See `pallas_kernels.routing.schedule_tiles`; the same on every chip."""
    del chip
    num_tokens, experts_per_token = experts.shape
    sizes = _Sizes(num_tokens, experts_per_token, num_experts, tile)
    return _schedule(sizes, _launch(sizes, interpret, experts=experts))


def route_and_schedule(
    logits: jax.Array,
    experts_per_token: int,
    tile: int,
    valid: jax.Array | None = None,
    *,
    interpret: Interpret,
    chip: Chip,
) -> tuple[Route, Schedule]:
    """See `pallas_kernels.routing.route_and_schedule`; the same on every chip."""
    del chip
    num_tokens, num_experts = logits.shape
    sizes = _Sizes(num_tokens, experts_per_token, num_experts, tile)
    experts, weights, *schedule = _launch(sizes, interpret, logits=logits, valid=valid)
    return Route(experts.T, weights.T), _schedule(sizes, schedule)


def _schedule(sizes: _Sizes, outputs: Sequence[jax.Array]) -> Schedule:
    destinations, tokens, tiles = outputs
    return Schedule(
        destinations=destinations.T,
        tokens=tokens.reshape(-1)[: sizes.rows],
        tile_experts=tiles[0, : sizes.tiles],
        tile_counts=tiles[1, : sizes.tiles],
        num_tiles=tiles[2, 0],
    )


def _launch(
    sizes: _Sizes,
    interpret: Interpret,
    *,
    logits: jax.Array | None = None,
    experts: jax.Array | None = None,
    valid: jax.Array | None = None,
) -> Sequence[jax.Array]:
    """Launches the kernel. Returns experts and weights [A, T] if logits are given, then destinations, tokens
    and tiles if `sizes.tile` is not 0.
    """
    lanes = sizes.padded_tokens
    inputs: dict[str, tuple[jax.Array, tuple[int, int]]] = {}
    if logits is not None:
        inputs["logits"] = logits.astype(jnp.float32).T, (sizes.padded_experts, lanes)
    if valid is not None:
        inputs["valid"] = valid.astype(jnp.int32)[None], (1, lanes)
    if experts is not None:
        inputs["experts"] = experts.T, (sizes.active, lanes)

    outputs: dict[str, tuple[jax.ShapeDtypeStruct, pl.BlockSpec]] = {}
    pairs = jax.ShapeDtypeStruct((sizes.active, sizes.tokens), jnp.int32)
    pairs_spec = pl.BlockSpec((sizes.active, lanes), lambda _: (0, 0))
    if logits is not None:
        outputs["chosen"] = pairs, pairs_spec
        outputs["weights"] = jax.ShapeDtypeStruct(pairs.shape, jnp.float32), pairs_spec
    scratch: dict[str, Any] = {}  # jax has no public type for shapes in a memory
    if sizes.tile:
        outputs["destinations"] = pairs, pairs_spec
        outputs["tokens"] = (
            jax.ShapeDtypeStruct((sizes.token_rows, LANES), jnp.int32),
            pl.BlockSpec(memory_space=pltpu.SMEM),
        )
        tiles = jax.ShapeDtypeStruct((8, sizes.padded_tiles), jnp.int32)
        outputs["tiles"] = tiles, pl.BlockSpec(tiles.shape, lambda _: (0, 0))
        scratch = {
            "prefix": pltpu.VMEM((sizes.padded_experts, lanes), jnp.int32),
            "rows": pltpu.VMEM((_round_up(sizes.active, 8), lanes), jnp.int32),
            "padding": pltpu.VMEM((sizes.token_rows, LANES), jnp.int32),
            "scalar_rows": pltpu.SMEM((_round_up(sizes.active, 8), lanes), jnp.int32),
            "semaphores": pltpu.SemaphoreType.DMA((2,)),
        }
    names = [*inputs, *outputs, *scratch]

    def kernel(*refs: jax.Ref) -> None:
        _kernel(sizes, dict(zip(names, refs, strict=True)))

    return pl.pallas_call(
        kernel,
        grid=(1,),
        out_shape=[shape for shape, _ in outputs.values()],
        in_specs=[pl.BlockSpec(block, lambda _: (0, 0)) for _, block in inputs.values()],
        out_specs=[spec for _, spec in outputs.values()],
        scratch_shapes=list(scratch.values()),
        interpret=interpret,
        name="_".join(
            name for name in ("route" * (logits is not None), "schedule" * (sizes.tile > 0)) if name
        ),
    )(*(array for array, _ in inputs.values()))


def _kernel(sizes: _Sizes, refs: dict[str, jax.Ref]) -> None:
    """The whole launch. refs: reference by name, as in `_launch`; a launch has only those that it needs.

    In VMEM, for A choices, T' tokens (T padded to 128) and E' experts (E padded to 16):
        logits float32 [E', T']. valid int32 [1, T'], nonzero for real tokens. experts int32 [A, T']: the
            choices, where they are given; chosen int32 [A, T']: where they are computed.
        weights float32 [A, T']. destinations int32 [A, T'].
        tiles int32 [8, padded_tiles]: row 0 holds the tiles' experts, row 1 their counts, row 2 the number of
            tiles.
        prefix int32 [E', T'], rows int32 [A padded to 8, T'], padding int32 [token_rows, 128]: scratch.
    In scalar memory:
        tokens int32 [token_rows, 128]. scalar_rows int32 [A padded to 8, T']: a copy of rows.
    semaphores [2]: for the copies of padding and of rows.
    """
    padding_copy = None
    if sizes.tile:
        # Every row starts as padding; the pairs then overwrite theirs.
        refs["padding"][...] = jnp.full((sizes.token_rows, LANES), sizes.tokens, jnp.int32)
        padding_copy = pltpu.make_async_copy(refs["padding"], refs["tokens"], refs["semaphores"].at[0])
        padding_copy.start()

    experts = jax.lax.broadcasted_iota(jnp.int32, (sizes.padded_experts, LANES), 0)
    carried = jnp.zeros((sizes.padded_experts, LANES), jnp.int32)

    def choose_block(block: jax.Array, carried: jax.Array) -> jax.Array:
        window = pl.ds(pl.multiple_of(block * LANES, LANES), LANES)
        chosen = _choose(sizes, refs, experts, window)
        return _count(chosen, carried, refs["prefix"], window) if sizes.tile else carried

    blocks = sizes.padded_tokens // LANES
    counts = jax.lax.fori_loop(0, blocks, choose_block, carried)
    if padding_copy is None:
        return
    starts = _lay_out_tiles(sizes, refs["tiles"], experts, counts)

    def place_block(block: jax.Array, _: None) -> None:
        window = pl.ds(pl.multiple_of(block * LANES, LANES), LANES)
        rows = starts + refs["prefix"][:, window] - 1
        source = refs["chosen"] if "chosen" in refs else refs["experts"]
        for choice in range(sizes.active):
            chosen = source[pl.ds(choice, 1), window]
            row = jnp.sum(jnp.where(experts == chosen, rows, 0), axis=0, keepdims=True)
            # Lanes past the last token hold undefined numbers, and what they write is never read.
            row = jnp.where((chosen >= 0) & (chosen < sizes.experts), row, sizes.rows)
            refs["destinations"][pl.ds(choice, 1), window] = row
            refs["rows"][pl.ds(choice, 1), window] = row

    jax.lax.fori_loop(0, blocks, place_block, None)
    rows_copy = pltpu.make_async_copy(refs["rows"], refs["scalar_rows"], refs["semaphores"].at[1])
    rows_copy.start()
    padding_copy.wait()
    rows_copy.wait()
    _scatter_tokens(sizes, refs["scalar_rows"], refs["tokens"])


def _choose(sizes: _Sizes, refs: dict[str, jax.Ref], experts: jax.Array, window: pl.Slice) -> jax.Array:
    """Writes a block's chosen experts and weights; returns bool [E,
    128], True where a token chose an expert.
    """
    lanes = jax.lax.broadcasted_iota(jnp.int32, (1, LANES), 1) + window.start
    real = lanes < sizes.tokens
    if "logits" not in refs:
        chosen = jnp.zeros((sizes.padded_experts, LANES), jnp.bool_)
        for choice in range(sizes.active):
            chosen = chosen | (experts == refs["experts"][pl.ds(choice, 1), window])
        return chosen & real & (experts < sizes.experts)

    logits = refs["logits"][:, window]
    if "valid" in refs:
        real = real & (refs["valid"][:, window] != 0)
    taken = experts >= sizes.experts
    tops = []
    for choice in range(sizes.active):
        top = jnp.max(jnp.where(taken, -jnp.inf, logits), axis=0, keepdims=True)
        best = jnp.where((logits == top) & ~taken, experts, sizes.experts)
        best = jnp.min(best, axis=0, keepdims=True)
        taken = taken | (experts == best)
        tops.append(top)
        refs["chosen"][pl.ds(choice, 1), window] = jnp.where(real, best, sizes.experts)
    powers = [jnp.exp(top - tops[0]) for top in tops]
    total = functools.reduce(jnp.add, powers)
    for choice, power in enumerate(powers):
        refs["weights"][pl.ds(choice, 1), window] = power / total
    return taken & (experts < sizes.experts) & real


def _count(chosen: jax.Array, carried: jax.Array, prefix: jax.Ref, window: pl.Slice) -> jax.Array:
    """Writes, for each token and expert, how many tokens so far (its own
    included) chose the expert; returns the new counts.
    """
    row = jax.lax.broadcasted_iota(jnp.int32, (LANES, LANES), 0)
    column = jax.lax.broadcasted_iota(jnp.int32, (LANES, LANES), 1)
    ones = jnp.where(chosen, 1.0, 0.0).astype(jnp.bfloat16)
    prefix[:, window] = carried + _dot(ones, (row <= column).astype(jnp.bfloat16))
    return carried + _dot(ones, jnp.ones((LANES, LANES), jnp.bfloat16))


def _lay_out_tiles(sizes: _Sizes, tiles: jax.Ref, experts: jax.Array, counts: jax.Array) -> jax.Array:
    """Writes the tiles' experts, their counts and the number of tiles; returns each expert's first row.

    `experts` and `counts` are [E, 128], the same in every lane, and so is the result.
    """
    shift = sizes.tile.bit_length() - 1
    used = (counts + (sizes.tile - 1)) >> shift
    row = jax.lax.broadcasted_iota(jnp.int32, (sizes.padded_experts, sizes.padded_experts), 0)
    column = jax.lax.broadcasted_iota(jnp.int32, (sizes.padded_experts, sizes.padded_experts), 1)
    up_to = (column <= row).astype(jnp.bfloat16)
    # bfloat16 holds integers up to 256: high and low parts are summed apart.
    ends = _dot(up_to, _as_bfloat16(used & 127)) + (_dot(up_to, _as_bfloat16(used >> 7)) << 7)
    firsts = ends - used
    last = jnp.max(jnp.where(counts > 0, experts, 0), axis=0, keepdims=True)
    number = jnp.max(ends, axis=0, keepdims=True)
    for block in range(sizes.padded_tiles // LANES):
        window = pl.ds(block * LANES, LANES)
        tile = jax.lax.broadcasted_iota(jnp.int32, experts.shape, 1) + block * LANES
        past = jnp.sum(jnp.where(ends <= tile, 1, 0), axis=0, keepdims=True)
        left = jnp.minimum(counts - ((tile - firsts) << shift), sizes.tile)
        here = (firsts <= tile) & (tile < ends)
        tiles[pl.ds(0, 1), window] = jnp.minimum(past, last)
        tiles[pl.ds(1, 1), window] = jnp.sum(jnp.where(here, left, 0), axis=0, keepdims=True)
        tiles[pl.ds(2, 1), window] = number
    return firsts << shift


def _scatter_tokens(sizes: _Sizes, rows: jax.Ref, tokens: jax.Ref) -> None:
    """Writes tokens[row] = token for every pair; pairs without an expert write past the last row."""
    unroll = min(_UNROLL, sizes.tokens)

    def place(token: jax.Array) -> None:
        for choice in range(sizes.active):
            row = rows[choice, token]
            tokens[row >> 7, row & (LANES - 1)] = token

    def place_some(step: jax.Array, _: None) -> None:
        for offset in range(unroll):
            place(step * unroll + offset)

    jax.lax.fori_loop(0, sizes.tokens // unroll, place_some, None)
    for token in range(sizes.tokens // unroll * unroll, sizes.tokens):
        place(jnp.int32(token))


def _dot(left: jax.Array, right: jax.Array) -> jax.Array:
    """The int32 product of small integers held as bfloat16, exact up to 2^24."""
    return jnp.dot(left, right, preferred_element_type=jnp.float32).astype(jnp.int32)


def _as_bfloat16(numbers: jax.Array) -> jax.Array:
    return numbers.astype(jnp.float32).astype(jnp.bfloat16)


def _round_up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple
