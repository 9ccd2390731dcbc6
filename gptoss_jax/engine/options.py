"""The engine's options and their defaults. Does not import jax."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Mapping
from typing import Any, NamedTuple, TypedDict

import numpy as np

from gptoss_jax.engine.errors import RequestError
from gptoss_jax.engine.values import integer_from, refuse
from harmony.errors import shown

KV_DTYPES = ("float32", "bfloat16", "float8_e4m3fn", "float8_e5m2")


@dataclasses.dataclass(frozen=True)
class EngineOptions:
    """The options of an engine. The defaults suit most uses.

    slots: sequences that decode at the same time, on all devices together; rounded up so that the mesh
        divides it.
    max_length: the longest sequence, prompt and completion together, in tokens. None for the longest that
        fits in memory, at most the model's context; on CPUs at most 8,192.
    decode_steps: the most tokens that one dispatch draws for a sequence.
    prefill_tokens: prompt tokens that one dispatch computes on each batch shard. None for 2,048, on CPUs 512.
    page_size: tokens in a page of the KV cache.
    pages: pages on each batch shard. None for as many as fit in memory, at most what all slots can use; on
        CPUs at most 65,536 tokens' worth, or one sequence of max_length if that is more.
    snapshots: prompt prefixes on each batch shard whose sliding-window state is kept for later requests; 0
        for no prefix cache.
    kv_dtype: the dtype of the cached keys and values. None for the model's dtype.
    memory: bytes of each device's memory that the engine may use. None for all of it; on CPUs, for an equal
        part of the machine's memory.

    Raises:
        RequestError: an option has a value that is not allowed.
    """

    slots: int = 32
    max_length: int | None = None
    decode_steps: int = 16
    prefill_tokens: int | None = None
    page_size: int = 64
    pages: int | None = None
    snapshots: int = 16
    kv_dtype: str | None = None
    memory: int | None = None

    def __post_init__(self) -> None:
        for name, lowest in _LOWEST.items():
            value = getattr(self, name)
            if value is not None or name not in _OPTIONAL:
                object.__setattr__(self, name, integer_from(name, value, lowest, _HIGHEST))
        if self.memory is not None:
            object.__setattr__(self, "memory", integer_from("memory", self.memory, 1))
        if self.kv_dtype is not None:
            object.__setattr__(self, "kv_dtype", _kv_dtype(self.kv_dtype))


class EngineKeywords(TypedDict, total=False):
    """The fields of `EngineOptions` as keywords; None leaves a field at its default."""

    slots: int | None
    max_length: int | None
    decode_steps: int | None
    prefill_tokens: int | None
    page_size: int | None
    pages: int | None
    snapshots: int | None
    kv_dtype: str | None
    memory: int | None


_LOWEST = {
    **{"slots": 1, "max_length": 2, "decode_steps": 1, "prefill_tokens": 1, "page_size": 1},
    **{"pages": 1, "snapshots": 0},
}
_OPTIONAL = ("max_length", "prefill_tokens", "pages")
_HIGHEST = 2**31 - 1
"""The largest value of an option: the devices count in 32 bits."""


class DeviceDefaults(NamedTuple):
    """Defaults that depend on the kind of device.

    prefill_tokens: prompt tokens of one prefill step.
    max_length: upper bound of the default max_length, in tokens; None for the model's context.
    pool_tokens: upper bound of a batch shard's pages, in tokens; None for as many as fit.
    on_host: True for CPUs. There, attention reads all columns of the block table even for short sequences,
        and more devices do not mean more memory.
    """

    prefill_tokens: int
    max_length: int | None
    pool_tokens: int | None
    on_host: bool


ON_ACCELERATORS = DeviceDefaults(2048, None, None, False)
ON_CPUS = DeviceDefaults(512, 8192, 65_536, True)


def _kv_dtype(value: object) -> str:
    """The name of a dtype that is given by name, or as a numpy or jax dtype."""
    try:
        name = value if isinstance(value, str) else np.dtype(value).name  # type: ignore[call-overload]
    except TypeError:
        name = ""
    if name not in KV_DTYPES:
        refuse("kv_dtype", value, f"one of {', '.join(KV_DTYPES)}")
    return str(name)


def options_from(given: Mapping[str, object], options: EngineOptions | None = None) -> EngineOptions:
    """Returns `options` (None for the defaults) with the given values; a value of None changes nothing.

    Raises:
        RequestError: a name is no option, or a value is not allowed.
    """
    known = [field.name for field in dataclasses.fields(EngineOptions)]
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(str(name), known, 1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise RequestError(
                f"{shown(name)} is no option of the engine: there are {', '.join(known)}{hint}"
            )
    changes: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    return dataclasses.replace(options or EngineOptions(), **changes)
