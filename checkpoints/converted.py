"""The converted layout: an Orbax checkpoint per layer, its arrays as they are in memory.

    FOLDER/checkpoint.json          what it is; written last, so a folder without it is unfinished
    FOLDER/conversion.json          the same while the conversion runs
    FOLDER/embedding/               an Orbax checkpoint: one folder per parameter, canonical names
    FOLDER/layers.N/
    FOLDER/unembedding/             with the last norm

Orbax stores these arrays as uncompressed Zarr (version 2) chunks: MXFP4 does not compress, and a chunk is
then the array's own bytes. Loading therefore reads chunks straight into the memory that a device takes over;
Orbax's general restore copies everything several times. Any Orbax program can restore the folders as well.
Packed expert weights have one chunk per expert, so a host reads its own experts only.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import logging
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from checkpoints.config import CheckpointError, ModelConfig
from checkpoints.parameters import UINT8, ParameterSpec, parameter_specs
from checkpoints.placing import read_part
from pallas_kernels.mxfp4 import LAYOUT_VERSION

COMPLETE_NAME = "checkpoint.json"
UNFINISHED_NAME = "conversion.json"


def groups(config: ModelConfig) -> dict[str, list[str]]:
    """What is saved at a time: folder → parameter names."""
    found: dict[str, list[str]] = {}
    for name in parameter_specs(config):
        first, second = name.split(".")[:2]
        folder = {"layers": f"layers.{second}", "norm": "unembedding"}.get(first, first)
        found.setdefault(folder, []).append(name)
    return found


def chunk_shape(spec: ParameterSpec) -> tuple[int, ...]:
    """How an array is cut into files: packed weights by expert, all others not at all."""
    return (1, *spec.shape[1:]) if spec.dtype == UINT8 else spec.shape


def save_group(folder: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Saves arrays as one Orbax checkpoint, which exists whole or not at all."""
    import orbax.checkpoint as ocp  # takes seconds to import, and only conversion needs it

    handler = ocp.PyTreeCheckpointHandler(use_ocdbt=False, use_zarr3=False, use_compression=False)
    by_expert = {
        name: ocp.SaveArgs(shard_axes=(0,) if array.dtype == UINT8 else ()) for name, array in arrays.items()
    }
    with _quiet_orbax(), ocp.Checkpointer(handler) as checkpointer:
        checkpointer.save(folder.absolute(), args=ocp.args.PyTreeSave(dict(arrays), save_args=by_expert))


@contextlib.contextmanager
def _quiet_orbax() -> Iterator[None]:
    """Keeps Orbax's warning at each save, that there is no OCDBT to merge, out of the progress bar."""
    logger = logging.getLogger("absl")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


@dataclasses.dataclass(frozen=True)
class ConvertedArray:
    """One array of a converted checkpoint: a folder of raw chunks."""

    folder: Path
    spec: ParameterSpec

    def read(self, index: tuple[slice, ...], out: np.ndarray, once: bool = False) -> None:
        """See `checkpoints.placing.Reader`; opens only the chunks that the index touches."""
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
            read_part(self._chunk_file(position), 0, chunk_spec, tuple(source), out[tuple(target)], once)

    def problem(self) -> str | None:
        """What keeps this array from being read, found without reading data."""
        try:
            header = json.loads((self.folder / ".zarray").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return "missing"
        expected = {
            "shape": list(self.spec.shape),
            "chunks": list(chunk_shape(self.spec)),
            "compressor": None,
            "filters": None,
            "order": "C",
        }
        wrong = [f"{key} {header.get(key)!r}" for key, value in expected.items() if header.get(key) != value]
        dtype = str(header.get("dtype")).lstrip("<|")
        if dtype != ("u1" if self.spec.dtype == UINT8 else self.spec.dtype.name):
            wrong.append(f"dtype {dtype}")
        if wrong:
            return f"has {', '.join(wrong)}"
        size = math.prod(chunk_shape(self.spec)) * self.spec.dtype.itemsize
        bad = [file.name for file in self._chunk_files() if not file.exists() or file.stat().st_size != size]
        return f"lacks whole chunks {', '.join(bad[:3])}" if bad else None

    def _chunk_file(self, position: tuple[int, ...]) -> Path:
        return self.folder / ".".join(map(str, position))

    def _chunk_files(self) -> Iterator[Path]:
        counts = [size // part for size, part in zip(self.spec.shape, chunk_shape(self.spec), strict=True)]
        return (self._chunk_file(position) for position in itertools.product(*map(range, counts)))


def arrays(folder: Path, config: ModelConfig) -> dict[str, ConvertedArray]:
    """Parameter name → where the converted checkpoint in `folder` keeps it."""
    specs = parameter_specs(config)
    return {
        name: ConvertedArray(folder / group / name, specs[name])
        for group, names in groups(config).items()
        for name in names
    }


def find_arrays(folder: Path, config: ModelConfig) -> dict[str, ConvertedArray]:
    """`arrays`, each checked without reading its data.

    Raises:
        CheckpointError: one line with everything that is missing or wrong.
    """
    if not (folder / COMPLETE_NAME).exists():
        parts = groups(config)
        done = sum((folder / part).exists() for part in parts)
        raise CheckpointError(
            f"{folder}: an unfinished conversion, {done} of {len(parts)} parts: run convert again"
        )
    found = arrays(folder, config)
    problems = [f"{name} {problem}" for name, array in found.items() if (problem := array.problem())]
    if problems:
        more = f" and {len(problems) - 12} more" if len(problems) > 12 else ""
        raise CheckpointError(
            f"{folder}: {len(problems)} of {len(found)} parameters cannot be read: "
            f"{'; '.join(problems[:12])}{more}"
        )
    return found


def read_description(path: Path) -> ModelConfig:
    """The configuration in a `checkpoint.json` or `conversion.json`.

    Raises:
        CheckpointError: it cannot be read, or is of another layout version.
    """
    description = read_json(path)
    version = description.get("layout_version")
    if version != LAYOUT_VERSION:
        raise CheckpointError(
            f"{path}: layout_version is {version!r}: this version reads {LAYOUT_VERSION}; "
            f"convert {description.get('source')} again"
        )
    try:
        return ModelConfig(**description["config"])
    except (KeyError, TypeError) as error:
        raise CheckpointError(f"{path}: its config cannot be read: {error}") from None


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file, or a `CheckpointError` that says why not."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: cannot be read as JSON: {error}") from None
    if not isinstance(value, dict):
        raise CheckpointError(f"{path}: must be a JSON object")
    return value
