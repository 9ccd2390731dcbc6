"""How a TPU kernel streams weights from HBM to the matrix unit: chunks, buffers and prefetching."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from pallas_kernels.expert_matmul.decoding import narrow_product, wide_product
from pallas_kernels.mxfp4.tiled import LANES, CodeFormat, TiledWeights
from pallas_kernels.platform import Interpret
from pallas_kernels.types import Copy, Index


class Projection(NamedTuple):
    """The static facts about a projection, known when the kernel is traced."""

    inputs: int
    form: CodeFormat
    wide: bool
    lane_blocks: int
    blocks: int
    """Lane blocks per chunk; the last chunk may have fewer."""
    interpret: bool

    @classmethod
    def of(cls, weights: TiledWeights, blocks: int, interpret: Interpret) -> Projection:
        """The projection of these weights, read in chunks of `blocks` lane blocks."""
        return cls(
            weights.inputs, weights.form, weights.wide, weights.codes.shape[1], blocks, bool(interpret)
        )

    @property
    def chunks(self) -> int:
        """The number of chunks per expert."""
        return pl.cdiv(self.lane_blocks, self.blocks)

    def blocks_of(self, chunk: int) -> int:
        """The number of lane blocks in a chunk."""
        return min(self.blocks, self.lane_blocks - chunk * self.blocks)

    def product(self, x: jax.Array | jax.Ref, chunk: Chunk, keep: jax.Ref | None = None) -> jax.Array:
        """x [M, ≥ K'] times a chunk of n lane blocks, with the bias added → float32 [M, 128·n].

        keep [K', 128·n] of `WEIGHT_DTYPE`: receives the decoded weights if their scales are narrow; None: the
        decoded weights are not kept.
        """
        if self.wide:
            result = wide_product(x, chunk.codes, chunk.scales, inputs=self.inputs, form=self.form)
        else:
            result = narrow_product(
                x,
                chunk.codes,
                chunk.scales,
                inputs=self.inputs,
                form=self.form,
                interpret=self.interpret,
                keep=keep,
            )
        return chunk.finished(result)


class Chunk(NamedTuple):
    """References to n lane blocks of a tiled projection of one expert, in VMEM.

    codes int32 [n, K'/8, 128], scales int32 [n, R, 128], columns float32 [n, 2, 128], as in `TiledWeights`.
    The same type, with more leading axes, also holds the weights in HBM and the buffers of all chunks.
    """

    codes: jax.Ref
    scales: jax.Ref
    columns: jax.Ref

    def finished(self, result: jax.Array) -> jax.Array:
        """Multiplies each column of result [M, 128·n] by its multiplier and adds its bias."""
        parts = []
        for block in range(self.columns.shape[0]):
            lanes = result[:, block * LANES : (block + 1) * LANES]
            parts.append(lanes * self.columns[block, 0:1, :] + self.columns[block, 1:2, :])
        return parts[0] if len(parts) == 1 else jnp.concatenate(parts, axis=1)


class WeightStream(NamedTuple):
    """Streams a projection's weights from HBM through buffers for two experts.

    source: the weights in HBM, [E, C, …]. buffers: in VMEM, [2, chunks, blocks, …]. arrived: DMA semaphores
    [2, chunks], one for each chunk.
    """

    projection: Projection
    source: Chunk
    buffers: Chunk
    arrived: jax.Ref

    def start(self, expert: Index, slot: Index) -> None:
        """Starts reading all chunks of an expert into the buffers of `slot`, 0 or 1."""
        for chunk in range(self.projection.chunks):
            for copy in self._copies(expert, slot, chunk, chunk):
                copy.start()

    def each_chunk(self, slot: Index, compute: Callable[[Index, Chunk], None]) -> None:
        """Calls `compute(number, chunk)` for each chunk in order, as soon as it has arrived."""
        last = self.projection.chunks - 1
        if last == 0:
            self._wait(slot, 0, 0)
            compute(0, self._chunk(slot, 0))
            return

        def one(chunk: jax.Array, carry: None) -> None:
            # A partial chunk is computed like a full one; the results beyond its end are never read.
            if self.projection.blocks_of(last) == self.projection.blocks:
                self._wait(slot, chunk, 0)
            else:
                pl.when(chunk < last)(lambda: self._wait(slot, chunk, 0))
                pl.when(chunk == last)(lambda: self._wait(slot, chunk, last))
            compute(chunk, self._chunk(slot, chunk))
            return carry

        jax.lax.fori_loop(0, last + 1, one, None)

    def _chunk(self, slot: Index, chunk: Index) -> Chunk:
        return Chunk(*(buffer.at[slot, chunk] for buffer in self.buffers))

    def _wait(self, slot: Index, chunk: Index, like: int) -> None:
        for copy in self._copies(0, slot, chunk, like):
            copy.wait()

    def _copies(self, expert: Index, slot: Index, chunk: Index, like: int) -> list[Copy]:
        """The copies of a chunk that has as many lane blocks as the chunk `like`."""
        size = self.projection.blocks_of(like)
        where = pl.ds(chunk * self.projection.blocks, size)
        return [
            pltpu.make_async_copy(
                source.at[expert, where], buffer.at[slot, chunk, :size], self.arrived.at[slot, chunk]
            )
            for source, buffer in zip(self.source, self.buffers, strict=True)
        ]


Streams = tuple[WeightStream, WeightStream]
"""The streams of gate and up, and of down."""


def streams_of(
    weights: Sequence[jax.Ref], scratch: Sequence[jax.Ref], projections: tuple[Projection, Projection]
) -> Streams:
    """The streams of both projections.

    weights: codes, scales and columns in HBM, of gate and up, then of down. scratch: three buffers in VMEM
    and the semaphores, of gate and up, then of down.
    """
    first, second = projections
    return (
        WeightStream(first, Chunk(*weights[:3]), Chunk(*scratch[:3]), scratch[3]),
        WeightStream(second, Chunk(*weights[3:]), Chunk(*scratch[4:7]), scratch[7]),
    )


class Tile(NamedTuple):
    """The tile of a grid step. exists: bool [], False past the last tile; the others are int32 []."""

    exists: jax.Array
    expert: jax.Array
    rows: jax.Array
    """How many of its rows are real; they come first."""
    slot: jax.Array
    """Which of the two buffers, 0 or 1, holds its weights."""


def tile_and_read_ahead(
    num_tiles: jax.Ref, tile_experts: jax.Ref, tile_counts: jax.Ref, streams: Streams
) -> Tile:
    """Returns this step's tile, and starts reading the next step's weights; the first step also reads its
    own.

    In scalar memory: num_tiles int32 [1]; tile_experts and tile_counts int32 [tiles], as in a `Schedule`.
    """
    core, step, cores = pl.program_id(0), pl.program_id(1), pl.num_programs(0)
    slot = jax.lax.rem(step, 2)

    def tile_of(step: jax.Array) -> tuple[jax.Array, jax.Array]:
        tile = step * cores + core
        return tile < num_tiles[0], jnp.minimum(tile, tile_experts.shape[0] - 1)

    def start(step: jax.Array, slot: jax.Array) -> None:
        for stream in streams:
            stream.start(tile_experts[tile_of(step)[1]], slot)

    exists, tile = tile_of(step)
    pl.when((step == 0) & exists)(lambda: start(step, slot))
    pl.when(tile_of(step + 1)[0])(lambda: start(step + 1, 1 - slot))
    return Tile(exists, tile_experts[tile], tile_counts[tile], slot)
