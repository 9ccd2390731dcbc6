"""What an engine keeps in a device's memory, and how many pages of the cache fit beside it.

All of it follows from shapes, so it is known before anything is allocated. Only what the steps need while
they run is an estimate, above what the TPU compiler reports for the models and slices of docs/engine.md.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from checkpoints.config import ModelConfig
from gptoss_jax.engine.options import EngineOptions, Layout, lay_out
from gptoss_jax.engine.request import RequestError
from gptoss_jax.engine.shapes import EngineShapes, abstract_mesh, device_bytes
from gptoss_jax.model.loading import abstract_model
from gptoss_jax.sharding import MeshShape, choose_shape, padded_vocabulary
from pallas_kernels.mxfp4.tiled import Form

_MIB, _GIB = 2**20, 2**30

_EXPERT_TILE = 512
"""Rows that an expert's own may be rounded up to, and columns that a row may."""

_ROW_BYTES, _PAIR_BYTES = 2 + 4, 4 + 4 + 2
"""Bytes for each number of the experts' rows, as they go in and come out; and of those that are a token's,
as they are put back in its order, gathered from the other devices and summed."""

_LOGIT_COPIES = 10
"""Arrays as large as the logits while tokens are drawn."""

_PROGRAM, _SPARE = 3 * _MIB, 64 * _MIB
"""Bytes of a program for each layer, and of a step in any case."""

_MOST_DEVICES = 64
"""Devices that an error proposes at most."""


class EngineMemoryError(ValueError):
    """An engine that does not fit; the message is one line and says what does not, and what would."""


@dataclasses.dataclass(frozen=True)
class MemoryPlan:
    """What each device holds, in bytes.

    `parameters`; `rings` of the sliding layers; `state`, what the steps take beside them; `reserve` for what
    the steps need while they run. On each batch shard `pages` of `page_size` tokens, `page_bytes` each;
    `most_pages` is what all slots can use. `limit`: what a device has, None where it does not say.
    """

    parameters: int
    rings: int
    state: int
    reserve: int
    pages: int
    most_pages: int
    page_size: int
    page_bytes: int
    limit: int | None

    @property
    def total(self) -> int:
        """All of it."""
        return self.parameters + self.rings + self.state + self.reserve + self.pages * self.page_bytes

    def __str__(self) -> str:
        of_limit = "" if self.limit is None else f" of {_gib(self.limit)}"
        share = f" ({self.pages / self.most_pages:.0%} of what all slots can use)" if self.short else ""
        return (
            f"Each device holds {_gib(self.total)}{of_limit} GiB: parameters {_gib(self.parameters)}, "
            f"{self.pages} pages of {self.page_size} tokens{share} {_gib(self.pages * self.page_bytes)}, "
            f"rings {_gib(self.rings)}, slots {_gib(self.state)}, and {_gib(self.reserve)} for the steps."
        )

    @property
    def short(self) -> bool:
        """Whether there are fewer pages than all slots can use."""
        return self.pages < self.most_pages


def device_limit(device: jax.Device) -> int | None:
    """Bytes of a device's memory that jax may use; None where it does not say, as on CPUs."""
    limit: int | None = (device.memory_stats() or {}).get("bytes_limit")
    return limit


@functools.cache
def parameter_bytes(config: ModelConfig, shape: MeshShape, dtype: Any, form: Form | None) -> int:
    """Bytes of the parameters that one device holds.

    `form`: that of experts rearranged for the TPU kernel, None where they are as published.
    """
    model = abstract_model(config, dtype, abstract_mesh(shape), form)
    return device_bytes(nnx.split(model)[1])


def step_bytes(config: ModelConfig, shape: MeshShape, layout: Layout, form: Form | None) -> int:
    """Bytes that a step may need on a device while it runs, its program included.

    Most of it is, when prompts are computed, the rows of all experts and what they leave, and when tokens are
    drawn, rows of the whole vocabulary. A 7x also copies the other weights into larger tiles before it
    decodes.
    """
    tokens = shape.expert * max(bucket.rows * bucket.tokens for bucket in layout.buckets)
    pairs = tokens * config.experts_per_token
    rows = pairs + _EXPERT_TILE * config.num_experts // shape.expert_shards
    columns = -(-config.hidden_size // _EXPERT_TILE) * _EXPERT_TILE
    prefill = columns * (_ROW_BYTES * rows + _PAIR_BYTES * pairs)
    vocabulary = padded_vocabulary(config, shape.tensor)
    decode = _LOGIT_COPIES * 4 * layout.slots // shape.tensor * vocabulary
    if form not in (None, "e5m2"):
        heads = 2 * config.num_layers * (config.num_heads + config.num_kv_heads) * config.head_size
        decode += 2 * (heads + vocabulary) * config.hidden_size // shape.tensor
    return max(prefill, decode) + _PROGRAM * config.num_layers + _SPARE


def plan(
    config: ModelConfig,
    shape: MeshShape,
    options: EngineOptions,
    dtype: DTypeLike,
    limit: int | None,
    form: Form | None = None,
) -> MemoryPlan:
    """What an engine with these options holds, with as many pages as fit, or as the options ask for.

    `limit`: bytes of a device; the options' `memory` is another one. Raises `EngineMemoryError` if not even
    the pages of one sequence fit, and what `lay_out` raises.
    """
    if options.memory is not None:
        limit = options.memory if limit is None else min(limit, options.memory)
    least = _least(config, shape, options, dtype, form)
    if limit is None:
        return dataclasses.replace(least, pages=options.pages or least.most_pages)
    if least.total > limit:
        raise EngineMemoryError(
            _refusal(least, limit, _ways_to_fit(config, shape, options, dtype, limit, form))
        )
    fitting = least.pages + (limit - least.total) // max(least.page_bytes, 1)
    return dataclasses.replace(least, pages=options.pages or min(fitting, least.most_pages), limit=limit)


def _least(
    config: ModelConfig, shape: MeshShape, options: EngineOptions, dtype: DTypeLike, form: Form | None
) -> MemoryPlan:
    """The plan with the pages of one longest sequence, or those that the options ask for."""
    layout = lay_out(options, config, shape, dtype)
    one_page = layout._replace(cache=layout.cache._replace(pages=1))
    shapes = EngineShapes(config, abstract_mesh(shape), one_page, dtype, form)
    chunks = [device_bytes(shapes.chunk(bucket)) for bucket in layout.buckets]
    return MemoryPlan(
        parameters=parameter_bytes(config, shape, jnp.dtype(dtype), form),
        rings=device_bytes((shapes.cache.rings, shapes.cache.held)),
        state=device_bytes(shapes.decode_inputs()) + max(chunks),
        reserve=step_bytes(config, shape, layout, form),
        pages=options.pages or layout.page_columns,
        most_pages=layout.slots * layout.page_columns,
        page_size=layout.cache.page_size,
        page_bytes=device_bytes(shapes.cache.pools),
        limit=None,
    )


def _ways_to_fit(
    config: ModelConfig,
    shape: MeshShape,
    options: EngineOptions,
    dtype: DTypeLike,
    limit: int,
    form: Form | None,
) -> list[str]:
    """Single changes with which the engine fits."""

    def fits(shape: MeshShape, **changes: Any) -> bool:
        try:
            return _least(config, shape, dataclasses.replace(options, **changes), dtype, form).total <= limit
        except RequestError:  # the other options do not allow it
            return False

    ways = []
    if options.pages is not None and fits(shape, pages=None):
        ways.append("pages left out")
    longest_chunk = lay_out(options, config, shape, dtype).buckets[-1].tokens
    for name, value, smallest in (
        ("slots", options.slots, 1),
        ("max_length", options.max_length, 256),
        ("prefill_tokens", longest_chunk, 64),
    ):
        halves = (value >> half for half in range(1, value.bit_length()) if value >> half >= smallest)
        found = next((half for half in halves if fits(shape, **{name: half})), None)
        if found is not None:
            ways.append(f"{name}={found}")
    devices = math.prod(shape)
    more = (devices * 2**doubling for doubling in range(1, _MOST_DEVICES.bit_length()))
    enough = (count for count in more if count <= _MOST_DEVICES and fits(choose_shape(config, count)))
    count = next(enough, None)
    if count is not None:
        ways.append(f"{count} devices")
    return ways


def _refusal(least: MemoryPlan, limit: int, ways: list[str]) -> str:
    """What an error says."""
    return (
        f"the engine needs {_gib(least.total)} GiB of each device and may use {_gib(limit)}: parameters "
        f"{_gib(least.parameters)}, {least.pages} pages {_gib(least.pages * least.page_bytes)}, rings "
        f"{_gib(least.rings)}, slots {_gib(least.state)}, steps {_gib(least.reserve)}; "
        + (f"it fits with {' or with '.join(ways)}" if ways else "no single option makes it fit")
    )


def _gib(count: int) -> str:
    return f"{count / _GIB:.2f}"
