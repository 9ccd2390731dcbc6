"""`open_checkpoint`: opens and checks any gpt-oss checkpoint folder, to be loaded straight onto devices."""

from __future__ import annotations

import abc
import copy
import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Self

import numpy as np

from checkpoints.config import CheckpointError, ModelConfig
from checkpoints.converted import COMPLETE_NAME, UNFINISHED_NAME, find_arrays, read_description
from checkpoints.parameters import parameter_specs
from checkpoints.placing import Reader, Shardings, place_all, read_part
from checkpoints.published import Source, find_tensors, sources
from checkpoints.published_config import CONFIG_NAME, Layout, read_config, read_eos_token_ids
from checkpoints.safetensors_files import StoredTensor, other_weights

if TYPE_CHECKING:
    import jax
    from jax.typing import DTypeLike

TINY = Path(__file__).parent / "tiny"
"""The folder of the embedded tiny model, which is trained."""

VOCABULARY_NAME = "vocabulary.tiktoken"
TOKENIZER_NAME = "tokenizer.json"


class Checkpoint(abc.ABC):
    """A checkpoint folder whose configuration and tensors are checked. No weights are loaded yet."""

    def __init__(
        self,
        path: Path,
        layout: Layout | Literal["orbax"],
        config: ModelConfig,
        eos_token_ids: tuple[int, ...],
    ):
        self.path = path
        self.layout = layout
        self.config = config
        self.eos_token_ids = eos_token_ids
        """The tokens that end a generation; () if the checkpoint does not name them."""

    @property
    def vocabulary(self) -> Path | None:
        """The file with the checkpoint's own vocabulary, as base64 token ranks; None if it has none."""
        return self._beside_weights(VOCABULARY_NAME)

    @property
    def tokenizer(self) -> Path | None:
        """The `tokenizer.json` of a Hugging Face folder; None if there is none."""
        return self._beside_weights(TOKENIZER_NAME)

    def _beside_weights(self, name: str) -> Path | None:
        path = self.path / name
        return path if path.exists() else None

    @abc.abstractmethod
    def load(
        self,
        shardings: Shardings | None = None,
        dtype: DTypeLike | None = None,
        padded: Mapping[str, tuple[int, ...]] | None = None,
    ) -> dict[str, jax.Array]:
        """Loads every parameter by its canonical name, and places it on its devices as it is read.

        Args:
            shardings: gives the sharding of each parameter; a process reads only the parts of its own
                devices. None puts everything on the first device of the process.
            dtype: the dtype of all parameters except packed MXFP4 ones (uint8); None keeps bfloat16.
            padded: larger shapes for some parameters, which are padded with zeros; None pads none.

        Raises:
            CheckpointError: a file has become shorter since the checkpoint was opened.
        """

    @abc.abstractmethod
    def _reader(self, name: str) -> Reader:
        """The reader of one parameter."""

    def read(self, name: str, rows: slice = slice(None)) -> np.ndarray:
        """Reads one parameter into host memory, in its canonical dtype and shape.

        rows: which of its first dimension; all by default.
        """
        spec = parameter_specs(self.config)[name]
        start, stop, _ = rows.indices(spec.shape[0])
        out = np.empty((stop - start, *spec.shape[1:]), spec.dtype)
        self._reader(name)((slice(start, stop), *(slice(0, size) for size in spec.shape[1:])), out, False)
        return out

    def first_layers(self, count: int) -> Self:
        """The same checkpoint without the layers from `count` on: what is before and after them stays."""
        shorter = copy.copy(self)
        shorter.config = dataclasses.replace(self.config, num_layers=min(count, self.config.num_layers))
        return shorter


class SafetensorsCheckpoint(Checkpoint):
    """A folder in one of the two published layouts."""

    def __init__(self, path: Path, layout: Layout, config: ModelConfig):
        super().__init__(path, layout, config, read_eos_token_ids(path / CONFIG_NAME))
        self._tensors: dict[str, StoredTensor] = find_tensors(path, config, layout)
        self._sources: dict[str, Source] = sources(config, layout)

    def load(
        self,
        shardings: Shardings | None = None,
        dtype: DTypeLike | None = None,
        padded: Mapping[str, tuple[int, ...]] | None = None,
    ) -> dict[str, jax.Array]:
        """See `Checkpoint.load`."""
        specs = parameter_specs(self.config)
        readers = {name: (spec, self._reader(name)) for name, spec in specs.items()}
        return place_all(readers, shardings, dtype, padded)

    def files(self) -> dict[str, list[int]]:
        """The safetensors files: name → size in bytes, modification time in nanoseconds."""
        status = {file: file.stat() for file in sorted({tensor.file for tensor in self._tensors.values()})}
        return {file.name: [found.st_size, found.st_mtime_ns] for file, found in status.items()}

    def _reader(self, name: str) -> Reader:
        source = self._sources[name]
        tensor = self._tensors[source.tensor]

        def read_rows(index: tuple[slice, ...], out: np.ndarray, drop_cache: bool) -> None:
            read_part(
                tensor.file, tensor.offset + source.start_byte, source.parameter, index, out, drop_cache
            )

        def read_view(index: tuple[slice, ...], out: np.ndarray, drop_cache: bool) -> None:
            # The memory map, and the memory it counts for, is released with this call.
            out[...] = source.view(tensor.map())[index]

        return read_view if source.interleaved else read_rows


class ConvertedCheckpoint(Checkpoint):
    """A folder that `checkpoints.convert` wrote."""

    def __init__(self, path: Path):
        description = read_description(_description_file(path) or path / COMPLETE_NAME)
        super().__init__(path, "orbax", description.config, description.eos_token_ids)
        self._arrays = find_arrays(path, description.config)

    def load(
        self,
        shardings: Shardings | None = None,
        dtype: DTypeLike | None = None,
        padded: Mapping[str, tuple[int, ...]] | None = None,
    ) -> dict[str, jax.Array]:
        """See `Checkpoint.load`."""
        specs = parameter_specs(self.config)
        readers = {name: (spec, self._reader(name)) for name, spec in specs.items()}
        return place_all(readers, shardings, dtype, padded)

    def _reader(self, name: str) -> Reader:
        return self._arrays[name].read


def open_checkpoint(path: str | Path) -> Checkpoint:
    """Opens a checkpoint and checks it, without reading weights.

    Args:
        path: a folder in the Hugging Face layout, in OpenAI's `original/` layout (or its parent, if that has
            no `config.json`), or written by `convert`; or the word "tiny" for the embedded model.

    Raises:
        CheckpointError: one line with everything that is wrong.
    """
    folder, layout, config = find_checkpoint(path)
    if layout == "orbax":
        return ConvertedCheckpoint(folder)
    return SafetensorsCheckpoint(folder, layout, config)


def find_checkpoint(path: str | Path) -> tuple[Path, Layout | Literal["orbax"], ModelConfig]:
    """The folder that `open_checkpoint` opens, its layout and its configuration. Tensors are not checked.

    Raises:
        CheckpointError: there is no checkpoint, or its configuration cannot be read.
    """
    folder = TINY if str(path) == "tiny" else Path(path)
    if not folder.is_dir():
        raise CheckpointError(f"{folder}: no such folder: a checkpoint is a folder, or the word tiny")
    if description := _description_file(folder):
        return folder, "orbax", read_description(description).config
    for candidate in (folder, folder / "original"):
        if (candidate / CONFIG_NAME).exists():
            return candidate, *read_config(candidate / CONFIG_NAME)
    neither = "holds neither config.json nor original/config.json: not a checkpoint"
    raise CheckpointError(f"{folder}: {neither}{other_weights(folder)}")


def _description_file(folder: Path) -> Path | None:
    """The description file of a conversion, finished or not; None if the folder is not a conversion."""
    files = (folder / COMPLETE_NAME, folder / UNFINISHED_NAME)
    return next((file for file in files if file.exists()), None)
