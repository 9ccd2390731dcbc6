"""The converted layout: one Orbax checkpoint per layer, whose bytes are those of the arrays in memory.

    FOLDER/checkpoint.json          the description; written last, so a folder without it is unfinished
    FOLDER/conversion.json          the same description while the conversion runs
    FOLDER/conversion.lock          locked by the converting process
    FOLDER/embedding/               an Orbax checkpoint: one folder per parameter, under its canonical name
    FOLDER/layers.N/                the same for layer N
    FOLDER/unembedding/             the same for the final norm and the unembedding

Arrays are stored as uncompressed Zarr (version 2) chunks, since MXFP4 does not compress. Loading reads the
chunks straight into the memory that a device takes over, while Orbax's own restore copies everything several
times. Any Orbax program can restore the folders. Packed expert weights have one chunk per expert, so a host
reads only its own experts.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import logging
import math
import os
import re
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from checkpoints.config import CheckpointError, ModelConfig, shown, shown_name
from checkpoints.files import read_json
from checkpoints.parameters import UINT8, ParameterSpec, parameter_specs
from checkpoints.placing import read_part
from pallas_kernels.mxfp4 import LAYOUT_VERSION

COMPLETE_NAME = "checkpoint.json"
UNFINISHED_NAME = "conversion.json"
LOCK_NAME = "conversion.lock"
_SYSTEM_ERROR = re.compile(r"os_error_code='(\d+)'")
_LAYER_FOLDER = re.compile(r"layers\.\d+")


def groups(config: ModelConfig) -> dict[str, list[str]]:
    """The parts of a conversion, each an Orbax checkpoint: folder → parameter names."""
    found: dict[str, list[str]] = {}
    for name in parameter_specs(config):
        first, second = name.split(".")[:2]
        folder = {"layers": f"layers.{second}", "norm": "unembedding"}.get(first, first)
        found.setdefault(folder, []).append(name)
    return found


def chunk_shape(spec: ParameterSpec) -> tuple[int, ...]:
    """The shape of a chunk: one expert for packed weights, the whole array for all others."""
    return (1, *spec.shape[1:]) if spec.dtype == UINT8 else spec.shape


def save_group(folder: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Saves arrays as one Orbax checkpoint, atomically.

    Raises:
        OSError: the checkpoint cannot be written.
    """
    import orbax.checkpoint as ocp  # imported here: it takes seconds, and only conversion needs it

    handler = ocp.PyTreeCheckpointHandler(use_ocdbt=False, use_zarr3=False, use_compression=False)
    by_expert = {
        name: ocp.SaveArgs(shard_axes=(0,) if array.dtype == UINT8 else ()) for name, array in arrays.items()
    }
    try:
        with _quiet_orbax(), ocp.Checkpointer(handler) as checkpointer:
            checkpointer.save(folder.absolute(), args=ocp.args.PyTreeSave(dict(arrays), save_args=by_expert))
    except ValueError as error:  # TensorStore reports errors of the system this way
        code = _SYSTEM_ERROR.search(str(error))
        if code is None:
            raise
        raise OSError(int(code[1]), os.strerror(int(code[1])), str(folder)) from None


@contextlib.contextmanager
def _quiet_orbax() -> Iterator[None]:
    """Silences Orbax's log messages, which would break the progress bar.

    They are a warning at each save, that there is no OCDBT to merge, and tracebacks of errors that are raised
    anyway.
    """
    logger = logging.getLogger("absl")
    level = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        logger.setLevel(level)


@dataclasses.dataclass(frozen=True)
class ConvertedArray:
    """One array of a converted checkpoint: a folder of raw chunks."""

    folder: Path
    spec: ParameterSpec

    def read(self, index: tuple[slice, ...], out: np.ndarray, drop_cache: bool = False) -> None:
        """A `checkpoints.placing.Reader`. Opens only the chunks that overlap the index."""
        chunk = chunk_shape(self.spec)
        touched = [
            range(part.start // size, -(-part.stop // size)) for part, size in zip(index, chunk, strict=True)
        ]
        for position in itertools.product(*touched):
            source, target = [], []
            for number, size, part in zip(position, chunk, index, strict=True):
                start, stop = max(part.start, number * size), min(part.stop, (number + 1) * size)
                source.append(slice(start - number * size, stop - number * size))
                target.append(slice(start - part.start, stop - part.start))
            chunk_spec = ParameterSpec(chunk, self.spec.dtype)
            read_part(
                self._chunk_file(position), 0, chunk_spec, tuple(source), out[tuple(target)], drop_cache
            )

    def problem(self) -> str | None:
        """Why this array cannot be read, as part of a message; None if it can. Reads no data."""
        if not (self.folder / ".zarray").exists():
            return "is missing"
        try:
            header = read_json(self.folder / ".zarray")
        except CheckpointError as error:
            return f"cannot be read: {error}"
        expected = {
            "shape": list(self.spec.shape),
            "chunks": list(chunk_shape(self.spec)),
            "compressor": None,
            "filters": None,
            "order": "C",
        }
        wrong = [
            f"{key} {shown(header.get(key))}" for key, value in expected.items() if header.get(key) != value
        ]
        dtype = header.get("dtype")
        if dtype not in (("|u1", "<u1") if self.spec.dtype == UINT8 else (self.spec.dtype.name,)):
            wrong.append(f"dtype {shown(dtype)}")
        if wrong:
            return f"has {', '.join(wrong)}"
        size = math.prod(chunk_shape(self.spec)) * self.spec.dtype.itemsize
        bad = [file.name for file in self._chunk_files() if not _is_file_of(size, file)]
        return f"lacks whole chunks {', '.join(bad[:3])}" if bad else None

    def _chunk_file(self, position: tuple[int, ...]) -> Path:
        return self.folder / ".".join(map(str, position))

    def _chunk_files(self) -> Iterator[Path]:
        counts = [size // part for size, part in zip(self.spec.shape, chunk_shape(self.spec), strict=True)]
        return (self._chunk_file(position) for position in itertools.product(*map(range, counts)))


def _is_file_of(size: int, file: Path) -> bool:
    try:
        status = file.stat()
    except OSError:
        return False
    return stat.S_ISREG(status.st_mode) and status.st_size == size


def arrays(folder: Path, config: ModelConfig) -> dict[str, ConvertedArray]:
    """Parameter name → its array in the converted checkpoint `folder`."""
    specs = parameter_specs(config)
    return {
        name: ConvertedArray(folder / group / name, specs[name])
        for group, names in groups(config).items()
        for name in names
    }


def find_arrays(folder: Path, config: ModelConfig) -> dict[str, ConvertedArray]:
    """Returns `arrays(folder, config)` after checking each of them without reading its data.

    Raises:
        CheckpointError: one line with everything that is missing, unexpected or wrong.
    """
    parts = groups(config)
    if not (folder / COMPLETE_NAME).exists():
        done = sum((folder / part).exists() for part in parts)
        raise CheckpointError(
            f"{folder}: an unfinished conversion, {done} of {len(parts)} parts: run convert again to continue"
        )
    report = []
    missing = [part for part in parts if not (folder / part).is_dir()]
    unexpected = [name for name in _folders(folder) if _LAYER_FOLDER.fullmatch(name) and name not in parts]
    unexpected += [
        f"{part}/{name}" for part, names in parts.items() for name in _unexpected(folder / part, names)
    ]
    for kind, names in (("missing", missing), ("unexpected", unexpected)):
        if names:
            report.append(f"{len(names)} {kind} of {len(parts)} parts: {_some(list(map(shown_name, names)))}")
    found = arrays(folder, config)
    problems = [
        f"{name} {problem}"
        for name, array in found.items()
        if array.folder.parent.name not in missing and (problem := array.problem())
    ]
    if problems:
        report.append(f"{len(problems)} of {len(found)} parameters cannot be read: {_some(problems)}")
    if report:
        raise CheckpointError(
            f"{folder}: not the checkpoint its {COMPLETE_NAME} describes: {'; '.join(report)}"
        )
    return found


def part_is_whole(folder: Path, config: ModelConfig, part: str) -> bool:
    """Returns True if every array of one part of an unfinished conversion can be read."""
    specs = parameter_specs(config)
    return (folder / part).is_dir() and not any(
        ConvertedArray(folder / part / name, specs[name]).problem() for name in groups(config)[part]
    )


def _unexpected(folder: Path, names: list[str]) -> list[str]:
    """Parameters in a part's folder that the model does not have.

    Orbax's own files have no dot in their names.
    """
    prefixes = tuple({name.split(".")[0] + "." for name in names})
    return [name for name in _folders(folder) if name.startswith(prefixes) and name not in names]


def _folders(folder: Path) -> list[str]:
    try:
        return sorted(entry.name for entry in os.scandir(folder) if entry.is_dir())
    except OSError:
        return []


def _some(texts: list[str], limit: int = 12) -> str:
    more = f" and {len(texts) - limit} more" if len(texts) > limit else ""
    return "; ".join(texts[:limit]) + more


@dataclasses.dataclass(frozen=True)
class Description:
    """The contents of a `checkpoint.json` or `conversion.json`."""

    config: ModelConfig
    source: str  # the published folder
    source_files: dict[str, list[int]]  # its files: name → size in bytes, modification time in nanoseconds
    eos_token_ids: tuple[
        int, ...
    ]  # the tokens that end a generation; () if the published folder does not name them

    def to_json(self) -> dict[str, Any]:
        """The description as a JSON object."""
        return {"layout_version": LAYOUT_VERSION, **dataclasses.asdict(self)}


def read_description(path: Path) -> Description:
    """Reads a `checkpoint.json` or `conversion.json`.

    Raises:
        CheckpointError: the file cannot be read, or has another layout version.
    """
    fields = read_json(path)
    version, source = fields.get("layout_version"), fields.get("source")
    if version != LAYOUT_VERSION:
        raise CheckpointError(
            f"{path}: layout_version is {shown(version)}: this version reads {LAYOUT_VERSION}; "
            f"convert {shown(source)} again"
        )
    config, files, eos = fields.get("config"), fields.get("source_files"), fields.get("eos_token_ids", [])
    if not isinstance(source, str):
        raise CheckpointError(f"{path}: source is {shown(source)}: it must be a path")
    if not isinstance(files, dict):
        raise CheckpointError(f"{path}: source_files is {shown(files)}: it must be an object")
    if not isinstance(eos, list) or not all(type(token) is int for token in eos):
        raise CheckpointError(f"{path}: eos_token_ids is {shown(eos)}: it must be a list of tokens")
    if not isinstance(config, dict):
        raise CheckpointError(f"{path}: config is {shown(config)}: it must be an object")
    known = {field.name: field.default is dataclasses.MISSING for field in dataclasses.fields(ModelConfig)}
    wrong = [name for name in config if name not in known]
    wrong += [name for name, needed in known.items() if needed and name not in config]
    if wrong:
        raise CheckpointError(f"{path}: config lacks or should not have {shown_name(wrong[0])}")
    try:
        return Description(ModelConfig(**config), source, files, tuple(eos))
    except CheckpointError as error:
        raise CheckpointError(f"{path}: {error}") from None
