"""Writing a checkpoint in a published layout, tensor by tensor."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from checkpoints.config import CheckpointError, ModelConfig
from checkpoints.published import Source, published_tensors, sources
from checkpoints.published_config import (
    CONFIG_NAME,
    Layout,
    RopeKey,
    huggingface_config,
    original_config,
)
from checkpoints.safetensors_files import write_sharded


def write_published(
    folder: Path,
    config: ModelConfig,
    fill: Callable[[str, np.ndarray], None],
    *,
    layout: Layout = "huggingface",
    rope_key: RopeKey = "rope_scaling",
    shard_bytes: int = 5_000_000_000,
    on_tensor: Callable[[int], None] = lambda num_bytes: None,
) -> None:
    """Writes a checkpoint that `open_checkpoint`, and in the Hugging Face layout transformers, can read.

    One tensor is in memory at a time. `config.json` comes last, so that an interrupted folder is not taken
    for a checkpoint.

    Args:
        folder: made if need be.
        config: the model.
        fill: called with each canonical parameter name and a writable view of the parameter's shape and dtype
            (the parts of one stacked tensor one after the other), into which it puts the values.
        layout: which published layout.
        rope_key: in the Hugging Face layout, where RoPE's constants stand in `config.json`.
        shard_bytes: how large a safetensors file may grow.
        on_tensor: called with the size of each tensor once it is written.

    Raises:
        CheckpointError: the folder already holds a checkpoint.
    """
    fields = huggingface_config(config, rope_key) if layout == "huggingface" else original_config(config)
    folder.mkdir(parents=True, exist_ok=True)
    if (folder / CONFIG_NAME).exists():
        raise CheckpointError(f"{folder}: already holds a checkpoint, which is not overwritten")
    tensors = published_tensors(config, layout)
    parts: dict[str, list[tuple[str, Source]]] = {}
    for name, source in sources(config, layout).items():
        parts.setdefault(source.tensor, []).append((name, source))

    def values() -> Iterator[tuple[str, np.ndarray]]:
        for tensor_name, (shape, dtype) in tensors.items():
            tensor = np.empty(shape, dtype)
            for name, source in parts[tensor_name]:
                fill(name, source.view(tensor))
            yield tensor_name, tensor
            on_tensor(tensor.nbytes)

    write_sharded(folder, tensors, values(), shard_bytes)
    (folder / CONFIG_NAME).write_text(json.dumps(fields, indent=2) + "\n", encoding="utf-8")
