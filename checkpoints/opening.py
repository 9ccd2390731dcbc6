"""`open_checkpoint`: any gpt-oss checkpoint folder, checked, ready to be loaded straight onto devices."""

from __future__ import annotations

import abc
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import jax
import numpy as np

from checkpoints.config import CheckpointError, ModelConfig
from checkpoints.converted import COMPLETE_NAME, UNFINISHED_NAME, find_arrays, read_description
from checkpoints.parameters import parameter_specs
from checkpoints.placing import Reader, Shardings, place_all, read_part
from checkpoints.published import Source, find_tensors, sources
from checkpoints.published_config import CONFIG_NAME, Layout, read_config
from checkpoints.safetensors_files import StoredTensor

TINY = Path(__file__).parent / "tiny"
"""The embedded, trained toy model."""

VOCABULARY_NAME = "vocabulary.tiktoken"


class Checkpoint(abc.ABC):
    """A checkpoint folder whose configuration and tensors have been checked; nothing is loaded yet."""

    def __init__(self, path: Path, layout: Layout | Literal["orbax"], config: ModelConfig):
        self.path = path
        self.layout = layout
        self.config = config

    @property
    def vocabulary(self) -> Path | None:
        """The file of base64 token ranks that a checkpoint with its own vocabulary brings."""
        path = self.path / VOCABULARY_NAME
        return path if path.exists() else None

    @abc.abstractmethod
    def load(
        self,
        shardings: Shardings | None = None,
        dtype: Any = None,
        padded: Mapping[str, tuple[int, ...]] | None = None,
    ) -> dict[str, jax.Array]:
        """Every parameter, by canonical name, each placed on its devices as it is read.

        Args:
            shardings: where each parameter goes; a process reads only what its own devices hold. None: its
                first device.
            dtype: what every parameter that is not packed MXFP4 (uint8) becomes; None keeps bfloat16.
            padded: larger shapes for some parameters, which are filled up with zeros.
        """


class SafetensorsCheckpoint(Checkpoint):
    """A folder in one of the two published layouts."""

    def __init__(self, path: Path, layout: Layout, config: ModelConfig):
        super().__init__(path, layout, config)
        self._tensors: dict[str, StoredTensor] = find_tensors(path, config, layout)
        self._sources: dict[str, Source] = sources(config, layout)

    def load(
        self,
        shardings: Shardings | None = None,
        dtype: Any = None,
        padded: Mapping[str, tuple[int, ...]] | None = None,
    ) -> dict[str, jax.Array]:
        """See `Checkpoint.load`."""
        specs = parameter_specs(self.config)
        readers = {name: (spec, self._reader(name)) for name, spec in specs.items()}
        return place_all(readers, shardings, dtype, padded)

    def read(self, name: str) -> np.ndarray:
        """One parameter, canonical shape and dtype, in host memory."""
        spec = self._sources[name].parameter
        out = np.empty(spec.shape, spec.dtype)
        self._reader(name)(tuple(slice(0, size) for size in spec.shape), out, False)
        return out

    def files(self) -> dict[str, list[int]]:
        """The safetensors files: name → size in bytes, time of the last change in nanoseconds."""
        status = {file: file.stat() for file in sorted({tensor.file for tensor in self._tensors.values()})}
        return {file.name: [found.st_size, found.st_mtime_ns] for file, found in status.items()}

    def _reader(self, name: str) -> Reader:
        source = self._sources[name]
        tensor = self._tensors[source.tensor]

        def read_rows(index: tuple[slice, ...], out: np.ndarray, once: bool) -> None:
            read_part(tensor.file, tensor.offset + source.start_byte, source.parameter, index, out, once)

        def read_view(index: tuple[slice, ...], out: np.ndarray, once: bool) -> None:
            # The mapping, and what it counts as memory, ends with this call.
            out[...] = source.view(tensor.map())[index]

        return read_view if source.interleaved else read_rows


class ConvertedCheckpoint(Checkpoint):
    """A folder written by `checkpoints.convert`."""

    def __init__(self, path: Path, config: ModelConfig):
        super().__init__(path, "orbax", config)
        self._arrays = find_arrays(path, config)

    def load(
        self,
        shardings: Shardings | None = None,
        dtype: Any = None,
        padded: Mapping[str, tuple[int, ...]] | None = None,
    ) -> dict[str, jax.Array]:
        """See `Checkpoint.load`."""
        readers = {name: (array.spec, array.read) for name, array in self._arrays.items()}
        return place_all(readers, shardings, dtype, padded)


def open_checkpoint(path: str | Path) -> Checkpoint:
    """Opens a checkpoint and checks it; no weights are read.

    Args:
        path: a folder in the Hugging Face layout; one in OpenAI's `original/` layout, or its parent if that
            has no `config.json`; one written by `convert`; or the word "tiny", the embedded model.

    Raises:
        CheckpointError: one line with everything that is wrong.
    """
    folder, layout, config = find_checkpoint(path)
    if layout == "orbax":
        return ConvertedCheckpoint(folder, config)
    return SafetensorsCheckpoint(folder, layout, config)


def find_checkpoint(path: str | Path) -> tuple[Path, Layout | Literal["orbax"], ModelConfig]:
    """The folder that `open_checkpoint` opens, its layout and configuration; its tensors are not looked at.

    Raises:
        CheckpointError: there is no checkpoint, or its configuration cannot be read.
    """
    folder = TINY if str(path) == "tiny" else Path(path)
    if not folder.is_dir():
        raise CheckpointError(f"{folder}: no such folder; a checkpoint is a folder, or the word tiny")
    for description in (COMPLETE_NAME, UNFINISHED_NAME):
        if (folder / description).exists():
            return folder, "orbax", read_description(folder / description)
    for candidate in (folder, folder / "original"):
        if (candidate / CONFIG_NAME).exists():
            return candidate, *read_config(candidate / CONFIG_NAME)
    raise CheckpointError(f"{folder}: holds neither config.json nor original/config.json: not a checkpoint")
