"""Safetensors files without their library: headers checked before any data is read, tensors memory-mapped.

The format (https://github.com/huggingface/safetensors#format): eight bytes with the header's length, the
header (JSON: name → dtype, shape, data_offsets), the tensors' bytes. A model in several files has an index
beside them, `model.safetensors.index.json`, with a `weight_map`: tensor → file.
"""

from __future__ import annotations

import dataclasses
import json
import math
import struct
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from checkpoints.config import CheckpointError

INDEX_NAME = "model.safetensors.index.json"
_DTYPES = {
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "F16": np.dtype(np.float16),
    "F32": np.dtype(np.float32),
    "F64": np.dtype(np.float64),
    "U8": np.dtype(np.uint8),
    "I8": np.dtype(np.int8),
    "I32": np.dtype(np.int32),
    "I64": np.dtype(np.int64),
}
_DTYPE_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
_LONGEST_HEADER = 100_000_000  # what the format's own library accepts


@dataclasses.dataclass(frozen=True)
class StoredTensor:
    """Where one tensor lies, and what it is."""

    file: Path
    dtype: np.dtype | str  # the format's own word where numpy has no such dtype
    shape: tuple[int, ...]
    offset: int  # bytes from the start of the file

    def map(self) -> np.ndarray:
        """The tensor as a read-only memory map: nothing is read before it is used."""
        if not self.shape:
            return np.memmap(self.file, self.dtype, "r", self.offset, (1,)).reshape(())
        return np.memmap(self.file, self.dtype, "r", self.offset, self.shape)

    def describe(self) -> str:
        """Dtype and shape for a message, `uint8 [2, 3]`."""
        return f"{self.dtype} {list(self.shape)}"


def list_tensors(folder: Path) -> tuple[dict[str, StoredTensor], list[str]]:
    """The tensors of a folder's safetensors files, by name, and what is wrong with the files themselves.

    With an index, the files it names are read, and must hold what it says; without one, every
    `*.safetensors` file of the folder. Only headers are read.
    """
    problems: list[str] = []
    index = folder / INDEX_NAME
    weight_map: dict[str, str] | None = None
    if index.exists():
        weight_map = _read_index(index)
        files = [folder / name for name in sorted(set(weight_map.values()))]
    else:
        files = sorted(folder.glob("*.safetensors"))
    tensors: dict[str, StoredTensor] = {}
    readable = set()
    for file in files:
        try:
            header = read_header(file)
        except CheckpointError as error:
            problems.append(str(error))
            continue
        readable.add(file.name)
        for name, tensor in header.items():
            if name in tensors:
                problems.append(f"{name} is in both {tensors[name].file.name} and {file.name}")
            tensors[name] = tensor
    for name, file_name in (weight_map or {}).items():
        if file_name in readable and (name not in tensors or tensors[name].file.name != file_name):
            problems.append(f"{name} is not in {file_name}, where {INDEX_NAME} places it")
    return tensors, problems


def _read_index(path: Path) -> dict[str, str]:
    try:
        weight_map = json.loads(path.read_text(encoding="utf-8"))["weight_map"]
        if not all(isinstance(file, str) and Path(file).name == file for file in weight_map.values()):
            raise ValueError("weight_map must give each tensor the name of a file beside it")
        return weight_map
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{path}: not an index of safetensors files: {error!r}") from None


def read_header(file: Path) -> dict[str, StoredTensor]:
    """The tensors that a safetensors file declares, after checking that the file is long enough for them.

    Raises:
        CheckpointError: the file is missing, no safetensors file, or cut short.
    """
    try:
        size = file.stat().st_size
        with file.open("rb") as stream:
            length = int.from_bytes(stream.read(8), "little")
            if size < 8 or length > min(size - 8, _LONGEST_HEADER):
                raise CheckpointError(f"{file.name} is cut short or no safetensors file")
            header: dict[str, Any] = json.loads(stream.read(length))
        header.pop("__metadata__", None)
        tensors = {}
        for name, entry in header.items():
            dtype, shape = _DTYPES.get(entry["dtype"], entry["dtype"]), tuple(entry["shape"])
            start, end = entry["data_offsets"]
            if isinstance(dtype, np.dtype) and end - start != math.prod(shape) * dtype.itemsize:
                raise CheckpointError(f"{file.name}: {name} has {end - start} bytes, not those of its shape")
            if 8 + length + end > size:
                raise CheckpointError(f"{file.name} is cut short: {name} ends beyond its last byte")
            tensors[name] = StoredTensor(file, dtype, shape, 8 + length + start)
        return tensors
    except FileNotFoundError:
        raise CheckpointError(f"{file.name} is missing") from None
    except OSError as error:
        raise CheckpointError(f"{file.name} cannot be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointError(f"{file.name} is no safetensors file: its header cannot be read") from None


def write_sharded(
    folder: Path,
    tensors: Mapping[str, tuple[tuple[int, ...], np.dtype]],
    values: Iterable[tuple[str, np.ndarray]],
    shard_bytes: int = 5_000_000_000,
) -> None:
    """Writes tensors as `model-0000N-of-0000M.safetensors` with an index, or as one `model.safetensors`.

    One tensor is in memory at a time.

    Args:
        folder: an existing folder.
        tensors: name → shape and dtype, in the order of `values`.
        values: the tensors themselves.
        shard_bytes: a file ends before the tensor that would make it larger (a file holds at least one).
    """
    shards: list[list[str]] = [[]]
    filled = 0
    sizes = {name: math.prod(shape) * dtype.itemsize for name, (shape, dtype) in tensors.items()}
    for name, size in sizes.items():
        if shards[-1] and filled + size > shard_bytes:
            shards.append([])
            filled = 0
        shards[-1].append(name)
        filled += size
    iterator = iter(values)
    weight_map: dict[str, str] = {}
    for number, names in enumerate(shards, 1):
        file_name = (
            f"model-{number:05}-of-{len(shards):05}.safetensors" if len(shards) > 1 else "model.safetensors"
        )
        with (folder / file_name).open("wb") as stream:
            stream.write(_header({name: tensors[name] for name in names}))
            for name in names:
                given, value = next(iterator)
                shape, dtype = tensors[name]
                if given != name or value.shape != shape or value.dtype != dtype:
                    raise ValueError(
                        f"{given} {value.dtype} {value.shape} came instead of {name} {dtype} {shape}"
                    )
                stream.write(np.ascontiguousarray(value).reshape(-1).view(np.uint8).data)
                weight_map[name] = file_name
    if len(shards) > 1:
        index = {"metadata": {"total_size": sum(sizes.values())}, "weight_map": weight_map}
        (folder / INDEX_NAME).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


def _header(tensors: Mapping[str, tuple[tuple[int, ...], np.dtype]]) -> bytes:
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}  # transformers insists on the key
    end = 0
    for name, (shape, dtype) in tensors.items():
        start, end = end, end + math.prod(shape) * dtype.itemsize
        entries[name] = {"dtype": _DTYPE_NAMES[dtype], "shape": list(shape), "data_offsets": [start, end]}
    header = json.dumps(entries, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)  # aligned data, as the format recommends
    return struct.pack("<Q", len(header)) + header
