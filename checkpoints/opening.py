"""`open_checkpoint`: any gpt-oss checkpoint folder, checked, ready to be loaded straight onto devices."""

from __future__ import annotations

import abc
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import jax
import numpy as np

from checkpoints.config import CheckpointError, ModelConfig
from checkpoints.parameters import UINT8, ParameterSpec, parameter_specs
from checkpoints.published import Source, find_tensors, sources
from checkpoints.published_config import Layout, read_config
from checkpoints.safetensors_files import StoredTensor

Shardings = Callable[[str], jax.sharding.Sharding]
"""Parameter name → where its shards go; a parameter not given one goes to the first device."""

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
    def load(self, shardings: Shardings | None = None, dtype: Any = None) -> dict[str, jax.Array]:
        """Every parameter, by canonical name, each placed on its devices as it is read.

        Args:
            shardings: where each parameter goes; a process reads only what its own devices hold. None: the
                first device.
            dtype: what every parameter that is not packed MXFP4 (uint8) becomes; None keeps bfloat16.
        """


class SafetensorsCheckpoint(Checkpoint):
    """A folder in one of the two published layouts."""

    def __init__(self, path: Path, layout: Layout, config: ModelConfig):
        super().__init__(path, layout, config)
        self._tensors: dict[str, StoredTensor] = find_tensors(path, config, layout)
        self._sources: dict[str, Source] = sources(config, layout)

    def load(self, shardings: Shardings | None = None, dtype: Any = None) -> dict[str, jax.Array]:
        """See `Checkpoint.load`; at most one parameter is in host memory beside what is already placed."""
        return {
            name: load_array(self.map(name), sharding_of(name, shardings), dtype)
            for name in parameter_specs(self.config)
        }

    def map(self, name: str) -> np.ndarray:
        """One parameter in its canonical shape, a view of its memory-mapped tensor."""
        source = self._sources[name]
        return source.view(self._tensors[source.tensor].map())


def sharding_of(name: str, shardings: Shardings | None) -> jax.sharding.Sharding:
    """The sharding asked for a parameter, or the first device."""
    return shardings(name) if shardings else jax.sharding.SingleDeviceSharding(jax.local_devices()[0])


def load_array(view: np.ndarray, sharding: jax.sharding.Sharding, dtype: Any) -> jax.Array:
    """A (memory-mapped) array on its devices; copies each distinct shard once, packed weights as they are."""
    target = loaded_dtype(ParameterSpec(view.shape, view.dtype), dtype)
    shards: dict[tuple[Any, ...], np.ndarray] = {}

    def shard(index: tuple[slice, ...] | None) -> np.ndarray:
        index = index or ()
        key = tuple((part.start, part.stop) for part in index)
        if key not in shards:
            shards[key] = np.array(view[index], dtype=target, order="C")
        return shards[key]

    return jax.make_array_from_callback(view.shape, sharding, shard)


def loaded_dtype(spec: ParameterSpec, dtype: Any) -> np.dtype:
    """The dtype in which a parameter is loaded when `dtype` is asked for."""
    return spec.dtype if dtype is None or spec.dtype == UINT8 else np.dtype(dtype)


def open_checkpoint(path: str | Path) -> Checkpoint:
    """Opens a checkpoint and checks it; no weights are read.

    Args:
        path: a folder in the Hugging Face layout, in OpenAI's `original/` layout (the folder itself or its
            parent; beside the Hugging Face layout the latter wins), or written by `convert`; or the word
            "tiny", the embedded model.

    Raises:
        CheckpointError: one line with everything that is wrong.
    """
    folder = TINY if str(path) == "tiny" else Path(path)
    if not folder.is_dir():
        raise CheckpointError(f"{folder}: no such folder; a checkpoint is a folder, or the word tiny")
    for candidate in (folder, folder / "original"):
        if (candidate / "config.json").exists():
            layout, config = read_config(candidate / "config.json")
            return SafetensorsCheckpoint(candidate, layout, config)
    raise CheckpointError(f"{folder}: holds no config.json, neither here nor in original/")
