"""A TPU kernel's weights on their way from HBM to the matrix unit: chunks, buffers, reading ahead."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from pallas_kernels.expert_matmul.decoding import narrow_product, wide_product
from pallas_kernels.mxfp4.tiled import LANES, Form, TiledWeights


class Map(NamedTuple):
    """What the bodies need to know of a map, all of it static."""

    inputs: int
    form: Form
    wide: bool
    lane_blocks: int
    blocks: int
    """Lane blocks of a chunk; the last chunk may have fewer."""
    interpret: bool

    @classmethod
    def of(cls, weights: TiledWeights, blocks: int, interpret: Any) -> Map:
        """Reads it off the weights."""
        return cls(
            weights.inputs, weights.form, weights.wide, weights.codes.shape[1], blocks, bool(interpret)
        )

    @property
    def chunks(self) -> int:
        """Chunks of one expert."""
        return pl.cdiv(self.lane_blocks, self.blocks)

    def blocks_of(self, chunk: int) -> int:
        """Lane blocks of a chunk."""
        return min(self.blocks, self.lane_blocks - chunk * self.blocks)

    def product(self, x: Any, block: Block, keep: Any = None) -> jax.Array:
        """x [M, K'] times some lane blocks: float32 [M, 128·n], multipliers and bias applied."""
        if self.wide:
            result = wide_product(x, block.codes, block.scales, inputs=self.inputs, form=self.form)
        else:
            result = narrow_product(
                x,
                block.codes,
                block.scales,
                inputs=self.inputs,
                form=self.form,
                interpret=self.interpret,
                keep=keep,
            )
        return block.finished(result)


class Block(NamedTuple):
    """References to some lane blocks of a tiled map."""

    codes: Any
    scales: Any
    columns: Any

    def finished(self, result: jax.Array) -> jax.Array:
        """result · multiplier + bias, column by column."""
        parts = []
        for block in range(self.columns.shape[0]):
            lanes = result[:, block * LANES : (block + 1) * LANES]
            parts.append(lanes * self.columns[block, 0:1, :] + self.columns[block, 1:2, :])
        return parts[0] if len(parts) == 1 else jnp.concatenate(parts, axis=1)


class Stream(NamedTuple):
    """A map's weights on their way from HBM, two experts' worth of buffers."""

    linear: Map
    source: Block
    buffers: Block
    arrived: Any

    def start(self, expert: Any, slot: Any) -> None:
        """Starts reading all chunks of an expert into the buffers of `slot`."""
        for chunk in range(self.linear.chunks):
            for copy in self._copies(expert, slot, chunk, chunk):
                copy.start()

    def each_chunk(self, slot: Any, compute: Callable[[Any, Block], None]) -> None:
        """Calls `compute(chunk, its lane blocks)` for every chunk in turn, once it has arrived."""
        last = self.linear.chunks - 1
        if last == 0:
            self._wait(slot, 0, 0)
            compute(0, self._block(slot, 0))
            return

        def one(chunk: Any, carry: None) -> None:
            # A chunk that is not full is computed like the others; nobody reads what lies beyond its end.
            if self.linear.blocks_of(last) == self.linear.blocks:
                self._wait(slot, chunk, 0)
            else:
                pl.when(chunk < last)(lambda: self._wait(slot, chunk, 0))
                pl.when(chunk == last)(lambda: self._wait(slot, chunk, last))
            compute(chunk, self._block(slot, chunk))
            return carry

        jax.lax.fori_loop(0, last + 1, one, None)

    def _block(self, slot: Any, chunk: Any) -> Block:
        return Block(*(buffer.at[slot, chunk] for buffer in self.buffers))

    def _wait(self, slot: Any, chunk: Any, like: int) -> None:
        for copy in self._copies(0, slot, chunk, like):
            copy.wait()

    def _copies(self, expert: Any, slot: Any, chunk: Any, like: int) -> list[Any]:
        """The copies of a chunk that is as large as the chunk `like`."""
        size = self.linear.blocks_of(like)
        where = pl.ds(chunk * self.linear.blocks, size)
        return [
            pltpu.make_async_copy(
                source.at[expert, where], buffer.at[slot, chunk, :size], self.arrived.at[slot, chunk]
            )
            for source, buffer in zip(self.source, self.buffers, strict=True)
        ]


def streams_of(refs: Sequence[Any], scratch: Sequence[Any], maps: tuple[Map, Map]) -> tuple[Stream, Stream]:
    """The streams of both maps: `refs` are arrays in HBM, `scratch` buffers and semaphores, map by map."""
    first, second = maps
    return (
        Stream(first, Block(*refs[:3]), Block(*scratch[:3]), scratch[3]),
        Stream(second, Block(*refs[3:]), Block(*scratch[4:7]), scratch[7]),
    )


class Tile(NamedTuple):
    """The tile that a grid step works on."""

    exists: Any
    expert: Any
    count: Any
    """How many of its rows are real."""
    slot: Any
    """Where its weights arrive."""


def tile_and_read_ahead(
    num_tiles: Any, tile_experts: Any, tile_counts: Any, streams: tuple[Stream, Stream]
) -> Tile:
    """This step's tile; starts reading the next step's weights, and at the first step its own too."""
    core, step, cores = pl.program_id(0), pl.program_id(1), pl.num_programs(0)
    slot = jax.lax.rem(step, 2)

    def tile_of(step: Any) -> tuple[Any, Any]:
        tile = step * cores + core
        return tile < num_tiles[0], jnp.minimum(tile, tile_experts.shape[0] - 1)

    def start(step: Any, slot: Any) -> None:
        for stream in streams:
            stream.start(tile_experts[tile_of(step)[1]], slot)

    exists, tile = tile_of(step)
    pl.when((step == 0) & exists)(lambda: start(step, slot))
    pl.when(tile_of(step + 1)[0])(lambda: start(step + 1, 1 - slot))
    return Tile(exists, tile_experts[tile], tile_counts[tile], slot)
