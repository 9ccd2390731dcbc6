"""Writes trained float parameters as a checkpoint in the published layout, with experts in MXFP4."""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np

from checkpoints.config import ModelConfig
from checkpoints.writing import write_published
from gptoss_jax.tiny.optimiser import Parameters
from pallas_kernels import mxfp4


def write_checkpoint(
    folder: Path, config: ModelConfig, parameters: Parameters, eos_token_id: int | None = None
) -> None:
    """Writes `config.json` and the weights. All but the experts' matrices are rounded to bfloat16.

    `eos_token_id`: the id of `<|return|>` in the checkpoint's own vocabulary; None if it has none.
    """

    @functools.cache
    def packed(name: str) -> tuple[np.ndarray, np.ndarray]:
        return mxfp4.encode(np.asarray(parameters[name]))

    def fill(name: str, view: np.ndarray) -> None:
        part, _, kind = name.rpartition(".")
        if kind in ("blocks", "scales"):
            view[...] = packed(f"{part}.weight")[kind == "scales"]
        else:
            view[...] = np.asarray(parameters[name]).astype(view.dtype)

    write_published(folder, config, fill, eos_token_id=eos_token_id)
