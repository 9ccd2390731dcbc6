"""Random checkpoints of any configuration, in either published layout, for tests and benchmarks.

A parameter's values depend on the seed and its canonical name only: both layouts of one seed hold the same
model. Nothing is zero that training would have moved from zero (sinks, biases), and magnitudes keep the
activations of a deep model finite.
"""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
from tqdm import tqdm

from checkpoints.config import GPT_OSS_20B, GPT_OSS_120B, CheckpointError, ModelConfig
from checkpoints.published import published_tensors
from checkpoints.published_config import Layout, RopeKey, parse_config
from checkpoints.writing import write_published

_CHUNK_ELEMENTS = 1 << 22  # bounds what generating holds beside the tensor itself
_SCALES = (118, 123)  # E8M0 bytes, both included: 2^-9 … 2^-4, the range of the published weights


def write_random(
    path: str | Path,
    config: ModelConfig,
    seed: int = 0,
    layout: Layout = "huggingface",
    *,
    rope_key: RopeKey = "rope_scaling",
    shard_bytes: int = 5_000_000_000,
    progress: bool = False,
) -> None:
    """Writes a random checkpoint, one tensor in memory at a time.

    Args:
        path: the folder, made if need be.
        config: the model's sizes.
        seed: same seed, same weights, whatever the layout.
        layout: which published layout.
        rope_key: in the Hugging Face layout, where RoPE's constants stand in `config.json`.
        shard_bytes: how large a safetensors file may grow.
        progress: shows a bar.

    Raises:
        CheckpointError: the folder already holds a checkpoint.
    """
    total = sum(
        math.prod(shape) * dtype.itemsize for shape, dtype in published_tensors(config, layout).values()
    )
    with tqdm(total=total, unit="B", unit_scale=True, disable=not progress, desc="writing") as bar:

        def count_bytes(count: int) -> None:
            bar.update(count)

        write_published(
            Path(path),
            config,
            lambda name, out: fill_random(name, out, seed),
            layout=layout,
            rope_key=rope_key,
            shard_bytes=shard_bytes,
            on_tensor=count_bytes,
        )


def fill_random(name: str, out: np.ndarray, seed: int) -> None:
    """Fills `out` with the values that parameter `name` has in the random checkpoint of `seed`."""
    generator = np.random.Generator(np.random.SFC64([seed, *name.encode()]))
    rows = max(1, _CHUNK_ELEMENTS // math.prod(out.shape[1:]))
    for start in range(0, out.shape[0], rows):
        part = out[start : start + rows]
        if name.endswith(".blocks"):
            part[...] = generator.integers(0, 256, part.shape, dtype=np.uint8)
        elif name.endswith(".scales"):
            part[...] = generator.integers(*_SCALES, part.shape, dtype=np.uint8, endpoint=True)
        else:
            steps = generator.integers(-(1 << 15), 1 << 15, part.shape, dtype=np.int16)
            centre, spread = _distribution(name, out.shape)
            part[...] = steps * np.float32(spread / (1 << 15)) + np.float32(centre)


def _distribution(name: str, shape: tuple[int, ...]) -> tuple[float, float]:
    """Centre and half width of the uniform distribution of a bfloat16 parameter."""
    if name.endswith("norm.scale"):
        return 1.0, 0.5
    if name.endswith("sinks"):
        return 0.0, 2.0
    if name.endswith("bias"):
        return 0.0, 0.5
    if name == "embedding.weight":
        return 0.0, 1.0
    return 0.0, math.sqrt(3 / shape[-1])  # keeps the variance of what it multiplies


def named_config(word: str) -> ModelConfig:
    """The model called "20b" or "120b", or the one that a published `config.json` file describes.

    Raises:
        CheckpointError: neither.
    """
    if word in ("20b", "120b"):
        return GPT_OSS_20B if word == "20b" else GPT_OSS_120B
    try:
        return parse_config(json.loads(Path(word).read_text(encoding="utf-8")))[1]
    except (OSError, ValueError) as error:
        raise CheckpointError(f"config is {word}: it must be 20b, 120b or a config.json: {error}") from None
