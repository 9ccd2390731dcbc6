"""Writes a checkpoint in a published layout, tensor by tensor."""

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
    eos_token_id: int | None = None,
    on_tensor: Callable[[int], None] = lambda num_bytes: None,
) -> None:
    """Writes a checkpoint that `open_checkpoint` can read; transformers can read the Hugging Face layout.

    Only one tensor is in memory at a time. `config.json` is written last, so that an incomplete folder does
    not pass for a checkpoint.

    Args:
        folder: it is created if it does not exist.
        config: the model's configuration.
        fill: called with each canonical parameter name and an array of the parameter's shape and dtype, which
            it fills with the values.
        layout: the published layout to write.
        rope_key: in the Hugging Face layout, the field of `config.json` for RoPE's constants.
        shard_bytes: the largest size of a safetensors file, unless a single tensor is larger.
        eos_token_id: the token that ends an answer; opening a checkpoint's vocabulary checks it. None omits
            it.
        on_tensor: called with the size in bytes of each tensor after it is written.

    Raises:
        CheckpointError: the folder already holds a checkpoint.
    """
    fields = huggingface_config(config, rope_key) if layout == "huggingface" else original_config(config)
    if eos_token_id is not None:
        fields["eos_token_id"] = eos_token_id
    folder.mkdir(parents=True, exist_ok=True)
    if (folder / CONFIG_NAME).exists():
        raise CheckpointError(f"{folder}: already holds a checkpoint: choose another folder")
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
