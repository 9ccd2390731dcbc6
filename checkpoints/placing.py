"""From bytes on disk to arrays on devices, with one copy, and only the parts of this process's devices."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from checkpoints.config import CheckpointError
from checkpoints.parameters import UINT8, ParameterSpec

if TYPE_CHECKING:
    import jax
    from jax.typing import DTypeLike

Reader = Callable[[tuple[slice, ...], np.ndarray, bool], None]
"""Reads a part of a stored array. Arguments: the part's index, an array of the part's shape that receives it,
and a flag: True asks the system to drop the data from its file cache afterwards.
"""

Shardings = Callable[[str], "jax.sharding.Sharding"]
"""Gives the sharding of a parameter by its name."""

_READ_BYTES = 16 << 20  # bytes per read
_THREADS = 4  # parameters read in parallel: enough to keep a disk busy
_ALIGNMENT = 64  # bytes; a CPU device takes over memory with this alignment without a copy


def place_all(
    parameters: Mapping[str, tuple[ParameterSpec, Reader]],
    shardings: Shardings | None,
    dtype: DTypeLike | None,
    padded: Mapping[str, tuple[int, ...]] | None = None,
) -> dict[str, jax.Array]:
    """Places stored parameters on their devices, a few at a time.

    If memory cannot hold both the weights and the system's cache of their files, the files are dropped from
    that cache after reading; they would only displace each other.

    Args:
        parameters: name → shape and dtype as stored, and the reader.
        shardings: gives the sharding of each parameter; None puts all on the first device.
        dtype: the dtype of all parameters that are not packed (uint8); None keeps the stored dtype.
        padded: larger shapes for some parameters, which are padded with zeros; None pads none.
    """
    import jax  # imported here, so that opening and checking a checkpoint needs no jax

    drop_cache = 2 * sum(spec.num_bytes for spec, _ in parameters.values()) > _physical_memory()
    first = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])

    def load(name: str) -> jax.Array:
        spec, read = parameters[name]
        sharding = shardings(name) if shardings else first
        shape = (padded or {}).get(name)
        return place(spec, lambda index, out: read(index, out, drop_cache), sharding, dtype, shape)

    with ThreadPoolExecutor(_THREADS) as pool:
        return dict(zip(parameters, pool.map(load, parameters), strict=True))


def place(
    spec: ParameterSpec,
    read: Callable[[tuple[slice, ...], np.ndarray], None],
    sharding: jax.sharding.Sharding,
    dtype: DTypeLike | None,
    padded: tuple[int, ...] | None = None,
) -> jax.Array:
    """Places a stored parameter on its devices. Each distinct shard is read once, into its own memory.

    Args:
        spec: shape and dtype as stored.
        read: a `Reader` without its flag.
        sharding: the sharding of the parameter.
        dtype: its dtype, unless it is packed (uint8); None keeps the stored dtype.
        padded: a larger shape, padded with zeros; None keeps the stored shape.
    """
    import jax

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
    drop_cache: bool = False,
) -> None:
    """Reads `array[index]` into `out`, where the array (C order) starts at byte `offset` of the file.

    Whole rows are read directly into `out`. Other parts are read through a memory map, which touches only the
    pages that it needs. drop_cache: True drops whole rows from the system's file cache after reading.

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
            count = stream.readinto(left[:_READ_BYTES])
            if not count:
                raise CheckpointError(f"{file}: is cut short")
            if drop_cache and hasattr(os, "posix_fadvise"):
                os.posix_fadvise(stream.fileno(), position, count, os.POSIX_FADV_DONTNEED)
            position += count
            left = left[count:]
