"""Routing on an NVIDIA GPU: one launch for the experts of each token, one for the tile schedule.

XLA would need about fifteen launches (a sort, three scatters and the operations between them), which take
longer than reading a decode step's expert weights. Here nothing is sorted and no program waits for another.
Each expert has one program. It counts the pairs of all experts, and so finds where its own rows start; then
it ranks its pairs by prefix sums, block by block, and writes their rows, its tiles and its part of the
padding. The result does not depend on the order in which programs run.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu

from pallas_kernels.platform import Interpret
from pallas_kernels.routing.reference import Route, Schedule, schedule_rows
from pallas_kernels.types import Index

_TOKENS = 8
"""Tokens per program of `route`."""
_PAIRS = 256
"""Pairs ranked per iteration. A quarter of them are counted per iteration."""


def route(
    logits: jax.Array, experts_per_token: int, valid: jax.Array | None = None, *, interpret: Interpret
) -> Route:
    """See `pallas_kernels.routing.route`; needs at least one token."""
    num_tokens, num_experts = logits.shape
    columns = _power_of_two(num_experts)

    def kernel(logits: jax.Ref, *refs: jax.Ref) -> None:
        """One program: `_TOKENS` tokens. All references are in device memory.

        logits [T, E] of any float dtype. refs, in order: flags int32 [T], nonzero for real tokens, only if
        `valid` is given; chosen int32 [T, A] and weights float32 [T, A], the results.
        """
        *flags, chosen, weights = refs
        tokens = pl.program_id(0) * _TOKENS + jnp.arange(_TOKENS)
        known = tokens < num_tokens
        real = known
        if flags:
            real = real & (plgpu.load(flags[0].at[tokens], mask=known, other=0) != 0)
        experts = jnp.broadcast_to(jnp.arange(columns), (_TOKENS, columns))
        taken = experts >= num_experts
        scores = plgpu.load(
            logits.at[tokens[:, None], experts], mask=known[:, None] & ~taken, other=0
        ).astype(jnp.float32)
        tops = []
        for choice in range(experts_per_token):
            top = jnp.max(jnp.where(taken, -jnp.inf, scores), axis=1)
            best = jnp.where((scores == top[:, None]) & ~taken, experts, num_experts)
            best = jnp.min(best, axis=1)
            taken = taken | (experts == best[:, None])
            tops.append(top)
            plgpu.store(chosen.at[tokens, choice], jnp.where(real, best, num_experts), mask=known)
        powers = [jnp.exp(top - tops[0]) for top in tops]
        total = sum(powers[1:], start=powers[0])
        for choice, power in enumerate(powers):
            plgpu.store(weights.at[tokens, choice], power / total, mask=known)

    shape = (num_tokens, experts_per_token)
    experts, weights = pl.pallas_call(
        kernel,
        grid=(pl.cdiv(num_tokens, _TOKENS),),
        out_shape=[jax.ShapeDtypeStruct(shape, jnp.int32), jax.ShapeDtypeStruct(shape, jnp.float32)],
        compiler_params=plgpu.CompilerParams(num_warps=4),
        interpret=interpret,
        name="route",
    )(logits, *([] if valid is None else [valid.astype(jnp.int32)]))
    return Route(experts, weights)


def schedule_tiles(experts: jax.Array, num_experts: int, tile: int, *, interpret: Interpret) -> Schedule:
    """See `pallas_kernels.routing.schedule_tiles`; needs at least one pair."""
    num_tokens, experts_per_token = experts.shape
    num_pairs = num_tokens * experts_per_token
    num_rows = schedule_rows(num_pairs, num_experts, tile)
    num_tiles = num_rows // tile
    columns = _power_of_two(num_experts)
    block = min(_PAIRS, _power_of_two(num_pairs))
    counted = min(_PAIRS // 4, block)

    def kernel(
        ids: jax.Ref,
        destinations: jax.Ref,
        tokens: jax.Ref,
        tile_experts: jax.Ref,
        tile_counts: jax.Ref,
        total_tiles: jax.Ref,
    ) -> None:
        """One program: one expert. All references are int32 in device memory.

        ids [pairs]: the expert of each pair. Results: destinations [pairs], tokens [P], tile_experts and
        tile_counts [tiles], total_tiles [1]; see `Schedule`.
        """

        def load(start: jax.Array, size: int) -> tuple[jax.Array, jax.Array]:
            pairs = start + jnp.arange(size)
            return pairs, plgpu.load(ids.at[pairs], mask=pairs < num_pairs, other=num_experts)

        numbers = jnp.arange(columns)

        def count(step: jax.Array, found: jax.Array) -> jax.Array:
            _, chosen = load(step * counted, counted)
            return found + (chosen[:, None] == numbers[None, :]).astype(jnp.int32)

        zeros = jnp.zeros((counted, columns), jnp.int32)
        found = jax.lax.fori_loop(0, pl.cdiv(num_pairs, counted), count, zeros)
        counts = jnp.where(numbers < num_experts, jnp.sum(found, axis=0), 0)
        tiles = (counts + (tile - 1)) // tile
        total = jnp.sum(tiles)

        expert = pl.program_id(0)
        mine = jnp.sum(jnp.where(numbers == expert, counts, 0))
        my_tiles = (mine + (tile - 1)) // tile
        first_tile = jnp.sum(jnp.where(numbers < expert, tiles, 0))
        first_row = first_tile * tile

        def place(step: jax.Array, placed: jax.Array) -> jax.Array:
            pairs, chosen = load(step * block, block)
            match = chosen == expert
            ones = match.astype(jnp.int32)
            row = jnp.where(match, first_row + placed + jnp.cumsum(ones) - 1, num_rows)
            # The first program also writes the pairs that have no expert.
            nowhere = (chosen >= num_experts) & (pairs < num_pairs) & (expert == 0)
            plgpu.store(destinations.at[pairs], row, mask=match | nowhere)
            plgpu.store(tokens.at[row], pairs // experts_per_token, mask=match)
            return placed + jnp.sum(ones)

        jax.lax.fori_loop(0, pl.cdiv(num_pairs, block), place, jnp.int32(0))

        padding = first_row + mine + jnp.arange(_power_of_two(tile))
        _fill(tokens, padding, num_tokens, padding < (first_tile + my_tiles) * tile, num_rows)
        share = pl.cdiv(num_rows, num_experts)
        rest = expert * share + jnp.arange(_power_of_two(share))
        _fill(tokens, rest, num_tokens, (rest >= total * tile) & (rest < (expert + 1) * share), num_rows)

        steps = jnp.arange(_power_of_two(pl.cdiv(num_pairs, tile)))
        places = first_tile + steps
        _fill(tile_experts, places, expert, steps < my_tiles, num_tiles)
        _fill(tile_counts, places, jnp.minimum(mine - steps * tile, tile), steps < my_tiles, num_tiles)
        last = jnp.max(jnp.where(counts > 0, numbers, 0))
        share = pl.cdiv(num_tiles, num_experts)
        rest = expert * share + jnp.arange(_power_of_two(share))
        idle = (rest >= total) & (rest < (expert + 1) * share)
        _fill(tile_experts, rest, last, idle, num_tiles)
        _fill(tile_counts, rest, 0, idle, num_tiles)
        total_tiles[0] = total

    def integers(*shape: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, jnp.int32)

    destinations, tokens, tile_experts, tile_counts, total = pl.pallas_call(
        kernel,
        grid=(num_experts,),
        out_shape=[
            integers(num_pairs),
            integers(num_rows),
            integers(num_tiles),
            integers(num_tiles),
            integers(1),
        ],
        compiler_params=plgpu.CompilerParams(num_warps=4 if num_pairs <= 1024 else 8),
        interpret=interpret,
        name="schedule",
    )(experts.reshape(-1))
    return Schedule(destinations.reshape(experts.shape), tokens, tile_experts, tile_counts, total[0])


def _fill(ref: jax.Ref, places: jax.Array, value: Index, mask: jax.Array, size: int) -> None:
    """Writes ref[places] = value where `mask` is True and the place is below `size`."""
    mask = mask & (places < size)
    # Masked places point past the end, because the interpreter drops only those.
    value = jnp.broadcast_to(jnp.asarray(value, jnp.int32), places.shape)
    plgpu.store(ref.at[jnp.where(mask, places, size)], value, mask=mask)


def _power_of_two(size: int) -> int:
    """`size` rounded up to a power of two; Triton has no other sizes."""
    return 1 << (size - 1).bit_length()
