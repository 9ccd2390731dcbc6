"""Plans an engine's memory on each device, and how many pages of the KV cache fit.

Everything is computed from shapes, before anything is allocated. Only the memory that the steps need while
they run is an estimate. It is above what the TPU compiler reports for the models and slices of
docs/engine.md.
"""

from __future__ import annotations

import bisect
import dataclasses
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from checkpoints.config import ModelConfig
from gptoss_jax.engine.errors import RequestError
from gptoss_jax.engine.host_memory import host_memory
from gptoss_jax.engine.layout import Layout, lay_out
from gptoss_jax.engine.options import ON_ACCELERATORS, ON_CPUS, DeviceDefaults, EngineOptions, options_from
from gptoss_jax.engine.shapes import EngineShapes, abstract_mesh, device_bytes
from gptoss_jax.model.loading import abstract_model
from gptoss_jax.sizes import MeshShape, choose_shape, padded_vocabulary
from pallas_kernels.mxfp4.tiled import CodeFormat

_MIB, _GIB = 2**20, 2**30

_EXPERT_TILE = 512
"""The largest tile of the expert matmuls: each expert's rows, and each row's columns, are padded to it."""

_ROW_BYTES, _PAIR_BYTES = 2 + 4, 4 + 4 + 2
"""Bytes of each element of the experts' rows: before and after the experts; and of each element of a
(token, expert) pair's row: put back in the tokens' order, gathered from the other devices, and summed."""

_TILE_COLUMNS = 128
"""The columns of a weight are padded to a multiple of this in a TPU's memory."""

_LOGIT_COPIES = 12
"""Arrays of the logits' size that sampling needs at the same time."""

_DRAWN_BYTES = 4 + 4 + 20 * (4 + 4)
"""Bytes of a drawn token: its id and log-probability, and those of the 20 likeliest tokens."""

_SCORE_COPIES = 3
"""Arrays of the attention scores' size that plain attention needs at the same time."""

_PROGRAM, _SPARE = 3 * _MIB, 64 * _MIB
"""Bytes of a step's program for each layer, and a constant allowance for each step."""

_SCALAR_MEMORY = 2**20
"""Bytes of scalar memory of a TPU core, the same for all generations."""

_SCALAR_SPARE = 32 * 2**10
"""Bytes of scalar memory that a kernel needs besides the block table and the list of its blocks."""

_SHORTEST_DEFAULT = 256
"""The smallest default of max_length, in tokens."""

_MAX_TOKENS = 2**31 - 1

_MAX_DEVICES = 64
"""The most devices that an error message proposes."""


class EngineMemoryError(ValueError):
    """The engine does not fit in memory. The message is one line, and names options that would fit."""


@dataclasses.dataclass(frozen=True)
class MemoryPlan:
    """What each device keeps in its memory.

    parameters: bytes of the model's parameters.
    rings: bytes of the sliding layers' caches.
    state: bytes of the steps' other inputs, such as the slots' settings.
    reserve: bytes that are left free for the steps while they run.
    pages: pages on each batch shard.
    max_pages: pages that all slots together can use.
    page_size: tokens in a page.
    page_bytes: bytes of a page on one device.
    max_length: the longest sequence, in tokens.
    scalars: bytes of a TPU's scalar memory that the block table needs; 0 on other devices.
    limit: bytes of a device's memory; None if it does not say.
    """

    parameters: int
    rings: int
    state: int
    reserve: int
    pages: int
    max_pages: int
    page_size: int
    page_bytes: int
    max_length: int
    scalars: int
    limit: int | None

    @property
    def total(self) -> int:
        """The bytes of everything together."""
        return self.parameters + self.rings + self.state + self.reserve + self.pages * self.page_bytes

    def __str__(self) -> str:
        of_limit = "" if self.limit is None else f" of {_gib(self.limit)}"
        share = f" ({self.pages / self.max_pages:.0%} of what all slots can use)" if self.short else ""
        return (
            f"Each device holds {_gib(self.total)}{of_limit} GiB: parameters {_gib(self.parameters)}, "
            f"{self.pages} pages of {self.page_size} tokens{share} {_gib(self.pages * self.page_bytes)}, "
            f"rings {_gib(self.rings)}, slots {_gib(self.state)}, and {_gib(self.reserve)} for the steps. "
            f"The longest sequence is {self.max_length:,} tokens."
        )

    def fits(self, limit: int | None) -> bool:
        """True if it fits into `limit` bytes of a device; None for unlimited memory."""
        return (limit is None or self.total <= limit) and self.scalars <= _SCALAR_MEMORY

    @property
    def short(self) -> bool:
        """True if there are fewer pages than all slots together can use."""
        return self.pages < self.max_pages


def device_limit(device: jax.Device) -> int | None:
    """Bytes of a device's memory that jax may use; None if the device does not say.

    CPU devices share nine tenths of the machine's memory equally.
    """
    if device.platform == "cpu":
        memory = host_memory()
        return None if memory is None else memory * 9 // 10 // jax.local_device_count("cpu")
    limit: int | None = (device.memory_stats() or {}).get("bytes_limit")
    return limit


def defaults_for(device: jax.Device) -> DeviceDefaults:
    """The default options for a kind of device."""
    return ON_CPUS if device.platform == "cpu" else ON_ACCELERATORS


@functools.cache
def parameter_bytes(config: ModelConfig, shape: MeshShape, dtype: Any, form: CodeFormat | None) -> int:
    """Bytes of the parameters on one device.

    `form`: the tile format of the expert weights for the TPU kernel; None if they are kept as published.
    """
    model = abstract_model(config, dtype, abstract_mesh(shape), form)
    return device_bytes(nnx.split(model)[1])


def step_bytes(config: ModelConfig, shape: MeshShape, layout: Layout, form: CodeFormat | None) -> int:
    """Bytes that a step needs on a device while it runs, its program included; an upper estimate.

    In prefill, most of it is the inputs and outputs of the experts; in decode, logits of the whole
    vocabulary. Before it decodes, a TPU 7x also copies the weights of attention, router and unembedding into
    larger tiles.
    """
    tokens = shape.expert * max(bucket.rows * bucket.tokens for bucket in layout.buckets)
    pairs = tokens * config.experts_per_token
    expert_rows = pairs + _EXPERT_TILE * config.num_experts // shape.expert_shards
    columns = -(-config.hidden_size // _EXPERT_TILE) * _EXPERT_TILE
    prefill = columns * (_ROW_BYTES * expert_rows + _PAIR_BYTES * pairs)
    vocabulary = padded_vocabulary(config, shape.tensor)
    decode = _LOGIT_COPIES * 4 * layout.slots // shape.tensor * vocabulary
    decode += layout.decode_steps * layout.slots * _DRAWN_BYTES
    if form not in (None, "e5m2"):
        heads = 2 * (config.num_heads + config.num_kv_heads) * config.head_size // shape.tensor
        rows = config.num_layers * (heads + config.num_experts) + vocabulary // shape.tensor
        decode += 2 * rows * -(-config.hidden_size // _TILE_COLUMNS) * _TILE_COLUMNS
    return max(prefill, decode) + _PROGRAM * config.num_layers + _SPARE


def scalar_bytes(layout: Layout) -> int:
    """Bytes of scalar memory that attention over pages needs on a TPU, at most.

    They hold the block table of a step's rows, int32 with its columns padded to multiples of 128, and the
    list of the kernel's blocks: two int32 for each block of keys and each tile of queries. A block has at
    least eight pages. A tile of queries is one row in decode, and 32 tokens of a row in prefill.
    """
    columns = -(-layout.block_columns // 128) * 128
    steps = [(layout.slots, layout.slots)]
    steps += [(bucket.rows, bucket.rows * -(-bucket.tokens // 32)) for bucket in layout.buckets]
    return max(columns * (4 * rows + tiles) for rows, tiles in steps) + _SCALAR_SPARE


def whole_table_bytes(config: ModelConfig, shape: MeshShape, layout: Layout, dtype: DTypeLike) -> int:
    """Bytes that a step needs in addition to `step_bytes` where attention reads whole block tables, on CPUs.

    Keys and values of all columns of the block table are gathered, for decode those of all slots and for
    prefill those of the step's rows, in the stored dtype and in the model's. Then there are float32 scores of
    every query and key.
    """
    keys = layout.block_columns * layout.page_size
    entry = 2 * config.num_kv_heads * config.head_size // shape.tensor
    heads = config.num_heads // shape.tensor
    found = 0
    for rows, tokens in ((layout.slots, 1), *layout.buckets):
        gathered = rows * keys * entry * (2 * layout.kv_dtype.itemsize + 2 * jnp.dtype(dtype).itemsize)
        found = max(found, gathered + _SCORE_COPIES * 4 * rows * tokens * heads * keys)
    return found


def plan(
    config: ModelConfig,
    shape: MeshShape,
    options: EngineOptions,
    dtype: DTypeLike,
    limit: int | None,
    form: CodeFormat | None = None,
    defaults: DeviceDefaults = ON_ACCELERATORS,
) -> MemoryPlan:
    """Plans the memory of an engine. Options that are None are chosen so that the engine fits.

    Args:
        config: the model.
        shape: the mesh.
        options: the engine's options.
        dtype: what the model computes in.
        limit: bytes of a device's memory, in addition to the limit of `options.memory`; None for no limit.
        form: as in `parameter_bytes`.
        defaults: the defaults for the kind of device.

    Raises:
        EngineMemoryError: not even the pages of one sequence of max_length fit.
        RequestError: options contradict each other.
    """
    if options.memory is not None:
        limit = options.memory if limit is None else min(limit, options.memory)
    options = dataclasses.replace(options, prefill_tokens=options.prefill_tokens or defaults.prefill_tokens)
    planner = _Planner(config, shape, dtype, form, defaults)
    if options.max_length is None:
        options = dataclasses.replace(options, max_length=planner.longest(options, limit))
    smallest = planner.smallest(options)
    if not smallest.fits(limit):
        raise EngineMemoryError(_refusal(smallest, limit, planner.ways_to_fit(options, limit)))
    pages = smallest.max_pages
    if defaults.pool_tokens is not None:
        pages = min(pages, max(smallest.pages, defaults.pool_tokens // smallest.page_size))
    if limit is not None:
        pages = min(pages, smallest.pages + (limit - smallest.total) // max(smallest.page_bytes, 1))
    return dataclasses.replace(smallest, pages=options.pages or pages, limit=limit)


@dataclasses.dataclass(frozen=True)
class _Planner:
    """Makes plans for one model on one mesh with different options."""

    config: ModelConfig
    shape: MeshShape
    dtype: DTypeLike
    form: CodeFormat | None
    defaults: DeviceDefaults

    def smallest(self, options: EngineOptions) -> MemoryPlan:
        """The plan with the pages of one sequence of max_length, or with `options.pages`."""
        layout = lay_out(options, self.config, self.shape, self.dtype)
        mesh, one_page = abstract_mesh(self.shape), layout._replace(pages=1)
        shapes = EngineShapes(self.config, mesh, one_page, self.dtype, self.form)
        chunks = [device_bytes(shapes.chunk(bucket)) for bucket in layout.buckets]
        return MemoryPlan(
            parameters=parameter_bytes(self.config, self.shape, jnp.dtype(self.dtype), self.form),
            rings=device_bytes((shapes.cache.rings, shapes.cache.cached_positions)),
            state=device_bytes(shapes.decode_inputs()) + max(chunks),
            reserve=self._reserve(layout),
            pages=options.pages or layout.block_columns,
            max_pages=layout.slots * layout.block_columns,
            page_size=layout.page_size,
            page_bytes=device_bytes(shapes.cache.pools),
            max_length=layout.max_length,
            scalars=0 if self.form is None else scalar_bytes(layout),
            limit=None,
        )

    def _reserve(self, layout: Layout) -> int:
        reserve = step_bytes(self.config, self.shape, layout, self.form)
        if self.defaults.on_host:
            reserve += whole_table_bytes(self.config, self.shape, layout, self.dtype)
        return reserve

    def fits(self, options: EngineOptions, limit: int | None) -> bool:
        """True if at least one sequence of max_length fits. False if options contradict each other."""
        try:
            return self.smallest(options).fits(limit)
        except RequestError:
            return False

    def longest(self, options: EngineOptions, limit: int | None) -> int:
        """The longest sequence that fits, in tokens: whole pages, or the model's context.

        It is at least 256 tokens even if they do not fit: a smaller engine is of no use.
        """
        context = max(2, min(self.config.context_length, self.defaults.max_length or _MAX_TOKENS))
        if options.pages is not None:
            context = max(2, min(context, options.pages * options.page_size))

        def too_long(length: int) -> bool:
            return not self.smallest(dataclasses.replace(options, max_length=length)).fits(limit)

        if not too_long(context):
            return context
        shortest = min(context, -(-_SHORTEST_DEFAULT // options.page_size) * options.page_size)
        lengths = range(shortest, context, options.page_size)
        fitting = bisect.bisect_left(lengths, True, key=too_long)
        return lengths[fitting - 1] if fitting else shortest

    def ways_to_fit(self, options: EngineOptions, limit: int | None) -> list[str]:
        """Changes of one option, each of which makes the engine fit."""
        ways = []
        if options.pages is not None and self.fits(dataclasses.replace(options, pages=None), limit):
            ways.append("pages left out")
        longest_chunk = lay_out(options, self.config, self.shape, self.dtype).buckets[-1].tokens
        for name, value, smallest in (
            ("slots", options.slots, 1),
            ("max_length", options.max_length or 0, _SHORTEST_DEFAULT),
            ("prefill_tokens", longest_chunk, 64),
            ("snapshots", options.snapshots, 1),
            ("decode_steps", options.decode_steps, 1),
        ):
            halves = (value >> half for half in range(1, value.bit_length()) if value >> half >= smallest)
            changed = ((half, options_from({name: half}, options)) for half in halves)
            found = next((half for half, change in changed if self.fits(change, limit)), None)
            if found is not None:
                ways.append(f"{name}={found}")
        for page_size in (options.page_size << doubling for doubling in range(1, 5)):
            if self.fits(dataclasses.replace(options, page_size=page_size), limit):
                ways.append(f"page_size={page_size}")
                break
        if not self.defaults.on_host:
            devices = math.prod(self.shape)
            for count in (devices << doubling for doubling in range(1, _MAX_DEVICES.bit_length())):
                larger = dataclasses.replace(self, shape=choose_shape(self.config, count))
                if count <= _MAX_DEVICES and larger.fits(options, limit):
                    ways.append(f"{count} devices")
                    break
        return ways


def _refusal(need: MemoryPlan, limit: int | None, ways: list[str]) -> str:
    """The message of an `EngineMemoryError`."""
    way_out = f"it fits with {' or with '.join(ways)}" if ways else "no single option makes it fit"
    if limit is None or need.total <= limit:
        return (
            f"the block table for sequences of {need.max_length} tokens needs {_mib(need.scalars)} MiB of "
            f"each core's scalar memory and may use {_mib(_SCALAR_MEMORY)}; {way_out}"
        )
    return (
        f"the engine needs {_gib(need.total)} GiB of each device and may use {_gib(limit)}: parameters "
        f"{_gib(need.parameters)}, {need.pages} pages {_gib(need.pages * need.page_bytes)}, rings "
        f"{_gib(need.rings)}, slots {_gib(need.state)}, steps {_gib(need.reserve)}; {way_out}"
    )


def _gib(count: int) -> str:
    return f"{count / _GIB:.2f}"


def _mib(count: int) -> str:
    return f"{count / _MIB:.2f}"
