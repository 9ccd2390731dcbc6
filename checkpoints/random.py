"""Random checkpoints of any configuration, in either published layout; for tests and benchmarks.

A parameter's values depend only on the seed and its canonical name, so both layouts of one seed hold the same
model. Sinks and biases are not zero, as after training, and magnitudes keep the activations of a deep model
finite.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
from tqdm import tqdm

from checkpoints.config import GPT_OSS_20B, GPT_OSS_120B, CheckpointError, ModelConfig
from checkpoints.files import read_json
from checkpoints.published import published_tensors
from checkpoints.published_config import Layout, RopeKey, parse_config
from checkpoints.writing import write_published

_CHUNK_ELEMENTS = 1 << 22  # bounds the memory for generating, beside the tensor itself
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
    """Writes a random checkpoint, with one tensor in memory at a time.

    Args:
        path: the folder; it is created if it does not exist.
        config: the model's sizes.
        seed: the same seed gives the same weights in both layouts.
        layout: the published layout to write.
        rope_key: in the Hugging Face layout, the field of `config.json` for RoPE's constants.
        shard_bytes: the largest size of a safetensors file, unless a single tensor is larger.
        progress: True shows a progress bar; False shows nothing.

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
    """Fills `out` with the values of parameter `name` in the random checkpoint of `seed`."""
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
    """The centre and half the width of the uniform distribution of a bfloat16 parameter."""
    if name.endswith("norm.scale"):
        return 1.0, 0.5
    if name.endswith("sinks"):
        return 0.0, 2.0
    if name.endswith("bias"):
        return 0.0, 0.5
    if name == "embedding.weight":
        return 0.0, 1.0
    return 0.0, math.sqrt(3 / shape[-1])  # keeps the variance of its inputs


def named_config(word: str) -> ModelConfig:
    """The configuration called "20b" or "120b", or that of a published `config.json` file.

    Raises:
        CheckpointError: `word` is neither.
    """
    if word in ("20b", "120b"):
        return GPT_OSS_20B if word == "20b" else GPT_OSS_120B
    try:
        return parse_config(read_json(Path(word)))[1]
    except CheckpointError as error:
        raise CheckpointError(f"config is {word}: it must be 20b, 120b or a config.json: {error}") from None
