"""From bytes on disk to arrays on devices: one copy, and only of what this process's devices hold."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import numpy as np

from checkpoints.config import CheckpointError
from checkpoints.parameters import UINT8, ParameterSpec

Reader = Callable[[tuple[slice, ...], np.ndarray, bool], None]
"""Reads the part of a stored array that an index names into an array of that part's shape.

The flag asks not to leave what was read in the system's file cache.
"""

Shardings = Callable[[str], jax.sharding.Sharding]
"""Parameter name → where its shards go."""

_PIECE = 16 << 20  # bytes read at a time
_THREADS = 4  # parameters read at the same time: enough to keep a disk busy while memory is being filled
_ALIGNMENT = 64  # of what a CPU device takes over without copying it


def place_all(
    parameters: Mapping[str, tuple[ParameterSpec, Reader]],
    shardings: Shardings | None,
    dtype: Any,
    padded: Mapping[str, tuple[int, ...]] | None = None,
) -> dict[str, jax.Array]:
    """Stored parameters on their devices, a few at a time; see `place`. No shardings: the first device.
    `padded`: the shapes of parameters that become larger.

    Where memory cannot hold the weights and a copy of their files, the files are not left in the system's
    cache: they would only push each other, or something useful, out.
    """
    once = 2 * sum(spec.num_bytes for spec, _ in parameters.values()) > _physical_memory()
    first = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])

    def load(name: str) -> jax.Array:
        spec, read = parameters[name]
        sharding = shardings(name) if shardings else first
        shape = (padded or {}).get(name)
        return place(spec, lambda index, out: read(index, out, once), sharding, dtype, shape)

    with ThreadPoolExecutor(_THREADS) as pool:
        return dict(zip(parameters, pool.map(load, parameters), strict=True))


def place(
    spec: ParameterSpec,
    read: Callable[[tuple[slice, ...], np.ndarray], None],
    sharding: jax.sharding.Sharding,
    dtype: Any,
    padded: tuple[int, ...] | None = None,
) -> jax.Array:
    """A stored parameter on its devices; each distinct shard is read once, straight into its own memory.

    Args:
        spec: shape and dtype as stored.
        read: a `Reader` without its flag.
        sharding: where it goes.
        dtype: what it becomes unless it is packed (uint8); None: as stored.
        padded: its shape there, filled up with zeros; None: as stored.
    """
    shape = padded or spec.shape
    target = spec.dtype if dtype is None or spec.dtype == UINT8 else np.dtype(dtype)
    shards: dict[tuple[tuple[int, int], ...], np.ndarray] = {}

    def shard(index: tuple[slice, ...] | None) -> np.ndarray:
        bounds = tuple(part.indices(size)[:2] for part, size in zip(index or (), shape, strict=True))
        if bounds not in shards:
            out = _aligned_empty(tuple(stop - start for start, stop in bounds), target)
            stored = tuple(
                slice(start, min(stop, size)) for (start, stop), size in zip(bounds, spec.shape, strict=True)
            )
            if all(part.stop - part.start == size for part, size in zip(stored, out.shape, strict=True)):
                read(stored, out)
            else:
                out[...] = 0
                if all(part.start < part.stop for part in stored):
                    part = np.empty([part.stop - part.start for part in stored], target)
                    read(stored, part)
                    out[tuple(map(slice, part.shape))] = part
            shards[bounds] = out
        return shards[bounds]

    return jax.make_array_from_callback(shape, sharding, shard)


def _physical_memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _aligned_empty(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    size = math.prod(shape) * dtype.itemsize
    memory = np.empty(size + _ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT
    return memory[start : start + size].view(dtype).reshape(shape)


def read_part(
    file: Path,
    offset: int,
    spec: ParameterSpec,
    index: tuple[slice, ...],
    out: np.ndarray,
    once: bool = False,
) -> None:
    """Reads `array[index]` of the array that begins `offset` bytes into a file (C order) into `out`.

    Whole rows are read straight into `out`; anything else through a memory map, only the pages it touches.
    `once`: whole rows do not stay in the system's file cache, where the system can be told so.

    Raises:
        CheckpointError: the file ends too early.
    """
    rows_are_whole = index[1:] == tuple(slice(0, size) for size in spec.shape[1:])
    if not (rows_are_whole and out.dtype == spec.dtype and out.flags.c_contiguous):
        out[...] = np.memmap(file, spec.dtype, "r", offset, spec.shape)[index]
        return
    left = out.reshape(-1).view(np.uint8).data
    with file.open("rb", buffering=0) as stream:
        position = offset + index[0].start * math.prod(spec.shape[1:]) * spec.dtype.itemsize
        stream.seek(position)
        while left:
            count = stream.readinto(left[:_PIECE])
            if not count:
                raise CheckpointError(f"{file}: is cut short")
            if once and hasattr(os, "posix_fadvise"):
                os.posix_fadvise(stream.fileno(), position, count, os.POSIX_FADV_DONTNEED)
            position += count
            left = left[count:]
