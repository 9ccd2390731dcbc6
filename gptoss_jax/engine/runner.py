"""The device side of an engine: parameters, KV cache and slots, and the calls that change them.

Every call is a name and some numpy arrays, so that it can be sent to the other processes of a model that
spans several hosts. All of them must run the same calls in the same order.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TypeVar

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from numpy.typing import ArrayLike

from gptoss_jax.engine.layout import Layout
from gptoss_jax.engine.multihost import Leader
from gptoss_jax.engine.request import MAX_STOP_TOKENS
from gptoss_jax.engine.sampling import Samplers, idle_samplers
from gptoss_jax.engine.steps import (
    Chunk,
    DecodedTokens,
    Masks,
    Rows,
    Slots,
    Steps,
    empty_cache,
    idle_slots,
    shardings_of,
)
from gptoss_jax.model import Transformer
from gptoss_jax.model.kv_cache import EMPTY
from gptoss_jax.sharding import shape_of, split
from gptoss_jax.sizes import padded_vocabulary

_logger = logging.getLogger(__name__)

_Tree = TypeVar("_Tree")

STOP_COLUMNS = 2 * MAX_STOP_TOKENS
"""The most stop tokens of a slot: half of them for the engine's own, half for the request's."""


class Runner:
    """One model on one mesh, with its cache and its slots."""

    def __init__(self, model: Transformer, mesh: Mesh, layout: Layout, leader: Leader | None = None):
        self.layout, self._mesh, self._leader = layout, mesh, leader
        shape, config = shape_of(mesh), model.config
        self.rows = layout.slots * shape.batch_shards
        self.vocabulary = config.vocabulary_size
        self.steps = Steps(model, mesh, layout.decode_steps)
        columns = padded_vocabulary(config, shape.tensor)
        self.mask_words = -(-columns // 32)
        self._cache = self._make(lambda: empty_cache(config, layout, shape), self.steps.cache_splits)
        self._slots: Slots = self._make(lambda: idle_slots(self.rows, columns), self.steps.slot_splits)
        self._origin = self._put(np.zeros(self.rows, np.int32), split("batch"))
        self._stops = self._put(np.full((self.rows, STOP_COLUMNS), EMPTY, np.int32), split("batch"))
        neutral = {name: np.asarray(value) for name, value in vars(idle_samplers(self.rows)).items()}
        self._samplers = {name: self._put(value, split("sampled")) for name, value in neutral.items()}
        self._no_masks = self._masks(
            np.zeros((self.rows, self.mask_words), np.uint32), np.zeros(self.rows, bool)
        )

    def prefill(self, *chunk: np.ndarray) -> None:
        """Runs a `Chunk` into the cache."""
        self._call("prefill", *chunk)

    def decode(
        self,
        patch: np.ndarray,
        table: np.ndarray,
        steps: int,
        masks: tuple[np.ndarray, np.ndarray] | None = None,
    ) -> DecodedTokens:
        """Draws up to `steps` tokens for every slot; see `gptoss_jax.engine.steps.decode`.

        `masks`: the fields of `Masks`; None if no slot has a grammar. Returns before the device is done.
        """
        drawn = self._call("decode", patch, table, np.int32(steps), *(masks or ()))
        assert drawn is not None
        return drawn

    def set_slots(self, origin: np.ndarray, stops: np.ndarray) -> None:
        """Sets prompt lengths int32 [B] and stop tokens int32 [B, any]."""
        self._call("set_slots", origin, stops)

    def set_sampler(self, name: str, values: np.ndarray) -> None:
        """Sets one field of all slots' `Samplers`."""
        self._call("set_sampler", np.array(name), values)

    def copy_rings(self, sources: np.ndarray, targets: np.ndarray) -> None:
        """Copies rings: int32 [n], for each batch shard as many rows, numbered within the shard."""
        self._call("copy_rings", sources, targets)

    def count(self, row: int, prompt: np.ndarray, completion: np.ndarray) -> None:
        """Replaces a slot's token counts, for its penalties."""
        self._call("count", np.int32(row), prompt, completion)

    def perform(self, name: str, arrays: tuple[np.ndarray, ...]) -> DecodedTokens | None:
        """Makes a call that the leader sent. Only `decode` returns something."""
        drawn: DecodedTokens | None = getattr(self, f"_do_{name}")(*arrays)
        return drawn

    def _call(self, name: str, *arguments: ArrayLike) -> DecodedTokens | None:
        arrays = tuple(map(np.asarray, arguments))
        if self._leader is not None:
            self._leader.send(name, arrays)
        if not _logger.isEnabledFor(logging.INFO):
            return self.perform(name, arrays)
        programs, start = self.steps.compiled_programs, time.perf_counter()
        result = self.perform(name, arrays)
        if self.steps.compiled_programs > programs:
            shapes = " ".join(str(np.shape(array)) for array in arrays[:1])
            _logger.info("compiled %s %s in %.1f s", name, shapes, time.perf_counter() - start)
        return result

    def close(self) -> None:
        """Ends the other processes' part."""
        if self._leader is not None:
            self._leader.close()

    def _do_prefill(self, *chunk: np.ndarray) -> None:
        placed = Chunk(*(self._put(array, split("batch")) for array in chunk))
        self._cache = self.steps.prefill(self.steps.parameters, self._cache, placed)

    def _do_decode(
        self, patch: np.ndarray, table: np.ndarray, steps: np.ndarray, *masks: np.ndarray
    ) -> DecodedTokens:
        batch = split("batch")
        self._cache, self._slots, drawn = self.steps.decode(
            self.steps.parameters,
            self._cache,
            self._slots,
            self._put(patch, batch),
            self._put(table, batch),
            Rows(self._origin, self._stops, Samplers(**self._samplers)),
            self._masks(*masks) if masks else self._no_masks,
            self._put(steps, PartitionSpec()),
        )
        return drawn

    def _do_set_slots(self, origin: np.ndarray, stops: np.ndarray) -> None:
        self._origin, self._stops = (self._put(array, split("batch")) for array in (origin, stops))

    def _do_set_sampler(self, name: np.ndarray, values: np.ndarray) -> None:
        self._samplers[str(name)] = self._put(values, split("sampled"))

    def _do_copy_rings(self, sources: np.ndarray, targets: np.ndarray) -> None:
        placed = (self._put(array, split("batch")) for array in (sources, targets))
        self._cache = self.steps.copy_rings(self._cache, *placed)

    def _do_count(self, row: np.ndarray, prompt: np.ndarray, completion: np.ndarray) -> None:
        placed = (self._put(array, PartitionSpec()) for array in (row, prompt, completion))
        self._slots = self.steps.count(self._slots, *placed)

    def _masks(self, words: np.ndarray, masked: np.ndarray) -> Masks:
        return Masks(self._put(words, split("sampled")), self._put(masked, split("sampled")))

    def _put(self, array: np.ndarray, where: PartitionSpec) -> jax.Array:
        sharding = NamedSharding(self._mesh, where)
        if jax.process_count() == 1:
            return jax.device_put(np.array(array), sharding)
        return jax.make_array_from_callback(array.shape, sharding, lambda index: array[index])

    def _make(self, make: Callable[[], _Tree], splits: _Tree) -> _Tree:
        made: _Tree = jax.jit(make, out_shardings=shardings_of(self._mesh, splits))()
        return made
