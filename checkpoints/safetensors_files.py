"""Safetensors files: headers checked as strictly as the official library does, tensors read in place.

The format (https://github.com/huggingface/safetensors#format): eight bytes with the header's length, the
header (JSON: name → dtype, shape, data_offsets), the tensors' bytes. A model in several files has an index
beside them, `model.safetensors.index.json`, with a `weight_map`: tensor → file.

Every header that the official library refuses is refused here, so no byte of a file belongs to two tensors or
to none. Four things that the library accepts are also refused: a header longer than `MAX_JSON_BYTES` (the
library accepts 100 MB, which can take gigabytes of memory when parsed); a key that occurs twice in an object
(the format forbids it); JSON nested more than 100 levels deep (the library accepts 127); and lists for
objects or objects for dtypes, which its parser accepts by accident.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import struct
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from checkpoints.config import CheckpointError, shown, shown_name
from checkpoints.files import MAX_JSON_BYTES, open_regular, parse_json, read_json, read_up_to, reason

INDEX_NAME = "model.safetensors.index.json"
_METADATA = "__metadata__"
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
_BITS = {name: dtype.itemsize * 8 for name, dtype in _DTYPES.items()} | {
    "BOOL": 8,
    "F4": 4,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
    "F8_E5M2": 8,
    "F8_E4M3": 8,
    "F8_E8M0": 8,
    "F8_E4M3FNUZ": 8,
    "F8_E5M2FNUZ": 8,
    "I16": 16,
    "U16": 16,
    "U32": 32,
    "U64": 64,
    "C64": 64,
}
"""Bits per element of every dtype in the format."""
_OTHER_WEIGHTS = {
    (".bin", ".pt", ".pth", ".ckpt", ".pkl"): "opening a pickle runs any program in it; "
    "save them as safetensors",
    (".gguf",): "use the published safetensors files instead",
}
"""File name endings of weights in other formats, and what the message says about them."""
_SEPARATORS = frozenset("/\\\0")
_LIMIT = 1 << 64  # offsets and sizes are unsigned 64-bit numbers
_MAX_TENSORS = 100_000  # per folder; the largest possible model has a quarter as many
_MAX_PROBLEMS = 12  # of each kind in one message


@dataclasses.dataclass(frozen=True)
class StoredTensor:
    """The place, dtype and shape of one tensor."""

    file: Path
    dtype: np.dtype | str  # the format's name for a dtype that no parameter has
    shape: tuple[int, ...]
    offset: int  # bytes from the start of the file

    @property
    def file_name(self) -> str:
        """The file's name as text for a message."""
        return shown_name(self.file.name)

    def map(self) -> np.ndarray:
        """The tensor as a read-only memory map; data is read when it is used."""
        return np.memmap(self.file, self.dtype, "r", self.offset, self.shape)

    def describe(self) -> str:
        """Dtype and shape as text for a message, for example `uint8 [2, 3]`."""
        return f"{self.dtype} {list(self.shape)}"


def list_tensors(folder: Path) -> tuple[dict[str, StoredTensor], list[str]]:
    """The tensors of a folder's safetensors files by name, and a list of problems with the files.

    Reads headers only: those of the files in the index, which must hold exactly the tensors that it lists, or
    without an index those of every `*.safetensors` file in the folder.

    Raises:
        CheckpointError: the index cannot be read, or the folder has no safetensors files.
    """
    index = folder / INDEX_NAME
    weight_map: dict[str, str] | None = None
    if os.path.lexists(index):
        weight_map = _read_index(index)
        files = [folder / name for name in sorted(set(weight_map.values()))]
    else:
        files = sorted(folder.glob("*.safetensors"))
        if not files:
            raise CheckpointError(f"{folder}: holds no safetensors files{other_weights(folder)}")
    problems: list[str] = []
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
                both = f"{tensors[name].file_name} and {tensor.file_name}"
                problems.append(f"{shown_name(name)} is in both {both}")
            tensors[name] = tensor
        if len(tensors) > _MAX_TENSORS:
            raise CheckpointError(f"{folder}: has more than {_MAX_TENSORS:,} tensors")
    for name, file_name in (weight_map or {}).items():
        if file_name in readable and (name not in tensors or tensors[name].file.name != file_name):
            problems.append(
                f"{shown_name(name)} is not in {shown_name(file_name)}, where {INDEX_NAME} places it"
            )
    if weight_map is not None:
        problems += [
            f"{shown_name(name)} is in {tensor.file_name}, but not in {INDEX_NAME}"
            for name, tensor in tensors.items()
            if name not in weight_map
        ]
    if len(problems) > _MAX_PROBLEMS:
        problems[_MAX_PROBLEMS:] = [f"{len(problems) - _MAX_PROBLEMS} more problems with files"]
    return tensors, problems


def other_weights(folder: Path) -> str:
    """What a message says about weights in other formats in the folder; empty if there are none."""
    for suffixes, why in _OTHER_WEIGHTS.items():
        names = sorted(file.name for suffix in suffixes for file in folder.glob(f"*{suffix}"))
        if names:
            more = f" and {len(names) - 1} more" if len(names) > 1 else ""
            return f"; its weights ({shown_name(names[0])}{more}) are not read: {why}"
    return ""


def _read_index(path: Path) -> dict[str, str]:
    weight_map = read_json(path).get("weight_map")
    if not isinstance(weight_map, dict):
        raise CheckpointError(f"{path}: weight_map is {shown(weight_map)}: it must map tensors to files")
    for name, file in weight_map.items():
        inside = (
            isinstance(file, str) and file.endswith(".safetensors") and not _SEPARATORS.intersection(file)
        )
        if not inside:
            raise CheckpointError(
                f"{path}: weight_map places {shown_name(name)} in {shown(file)}: it must be a "
                "*.safetensors file beside the index"
            )
    return weight_map


def read_header(file: Path) -> dict[str, StoredTensor]:
    """The tensors in the header of a safetensors file, which together cover its data exactly.

    Raises:
        CheckpointError: the file is missing, not a regular file or truncated, or its header breaks the
            format.
    """
    called = shown_name(file.name)
    try:
        with open_regular(file) as stream:
            size = os.fstat(stream.fileno()).st_size
            length = int.from_bytes(read_up_to(stream, 8), "little")
            if size < 8 or length > size - 8:
                raise CheckpointError(f"{called} is cut short or no safetensors file")
            if length > MAX_JSON_BYTES:
                raise CheckpointError(
                    f"{called} has a header of {length:,} bytes: it may have {MAX_JSON_BYTES:,}"
                )
            header = read_up_to(stream, length)
        return _parse_header(file, header, size)
    except FileNotFoundError:
        raise CheckpointError(f"{called} is missing") from None
    except OSError as error:
        raise CheckpointError(f"{called} cannot be read: {reason(error)}") from None


def _parse_header(file: Path, header: bytes, file_size: int) -> dict[str, StoredTensor]:
    called = shown_name(file.name)
    try:
        entries = parse_json(header)
    except CheckpointError as error:
        raise CheckpointError(f"{called} is no safetensors file: its header {error}") from None
    metadata = entries.pop(_METADATA, None)
    if metadata is not None and not (
        isinstance(metadata, dict) and all(isinstance(value, str) for value in metadata.values())
    ):
        raise CheckpointError(f"{called}: {_METADATA} is {shown(metadata)}: it must map texts to texts")
    tensors = {}
    spans = []
    for name, entry in entries.items():
        try:
            word, shape, (start, stop) = _parse_entry(entry)
        except CheckpointError as error:
            raise CheckpointError(f"{called}: {shown_name(name)} {error}") from None
        tensors[name] = StoredTensor(file, _DTYPES.get(word, word), shape, 8 + len(header) + start)
        spans.append((start, stop, name))
    covered = 0
    for start, stop, name in sorted(spans):
        if start != covered:
            raise CheckpointError(
                f"{called}: {shown_name(name)} begins at byte {start} of the data: it must begin at "
                f"{covered}, where the tensor before it ends"
            )
        covered = stop
    data = file_size - 8 - len(header)
    if covered > data:
        raise CheckpointError(f"{called} is cut short: it has {data:,} of {covered:,} bytes of data")
    if covered < data:
        raise CheckpointError(f"{called} has {data - covered:,} bytes that belong to no tensor")
    return tensors


def _parse_entry(entry: Any) -> tuple[str, tuple[int, ...], tuple[int, int]]:
    """The dtype's name, shape and offsets of one tensor. Error messages continue after the tensor's name."""
    if not isinstance(entry, dict):
        raise CheckpointError(f"is {shown(entry)}: it must be an object")
    missing = [key for key in ("dtype", "shape", "data_offsets") if key not in entry]
    if missing:
        raise CheckpointError(f"has no {missing[0]}")
    word, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(word, str) or word not in _BITS:
        raise CheckpointError(f"has the dtype {shown(word)}: it must be one that safetensors has")
    if not _are_sizes(shape):
        raise CheckpointError(f"has the shape {shown(shape)}: it must be a list of whole numbers from 0 on")
    if not _are_sizes(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise CheckpointError(f"has the data_offsets {shown(offsets)}: they must be a start and an end")
    count = 1
    for size in shape:
        count *= size
        if count >= _LIMIT:
            raise CheckpointError(f"has the shape {shown(shape)}: it has too many elements")
    if count * _BITS[word] != 8 * (offsets[1] - offsets[0]):
        raise CheckpointError(
            f"has {offsets[1] - offsets[0]:,} bytes: {word} {shown(shape)} has {count * _BITS[word] / 8:,g}"
        )
    return word, tuple(shape), (offsets[0], offsets[1])


def _are_sizes(value: Any) -> bool:
    return isinstance(value, list) and all(type(size) is int and 0 <= size < _LIMIT for size in value)


def write_sharded(
    folder: Path,
    tensors: Mapping[str, tuple[tuple[int, ...], np.dtype]],
    values: Iterable[tuple[str, np.ndarray]],
    shard_bytes: int = 5_000_000_000,
) -> None:
    """Writes tensors as `model-0000N-of-0000M.safetensors` with an index, or as one `model.safetensors`.

    Only one tensor is in memory at a time.

    Args:
        folder: a folder that exists.
        tensors: name → shape and dtype, in the order of `values`.
        values: the tensors themselves.
        shard_bytes: the largest size of a file; a tensor that is larger gets a file of its own.
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
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}  # transformers requires this key
    end = 0
    for name, (shape, dtype) in tensors.items():
        start, end = end, end + math.prod(shape) * dtype.itemsize
        entries[name] = {"dtype": _DTYPE_NAMES[dtype], "shape": list(shape), "data_offsets": [start, end]}
    header = json.dumps(entries, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)  # aligns the data, as the format recommends
    return struct.pack("<Q", len(header)) + header
