"""What transformers computes with the embedded model on the fixed prompts: `golden.npz`.

`scripts/make_golden` writes it. Arrays:

    names           the prompts' names
    prompt_I        int32 [T]: the tokens of prompt I
    tokens_I        int32 [N]: what follows it, greedily, in float32
    ids_I           int32 [N, 64]: the likeliest tokens at each place
    logprobs_I      float32 [N, 64]: their log-probabilities (natural logarithms), in float32
    coarse_I        float32 [N, 64]: the log-probabilities of the same tokens, computed in bfloat16
    frequencies     float32 [32]: RoPE's angle per position, in radians, with the published constants
    weights_sha256  of the embedded `model.safetensors`
"""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path

import numpy as np

PATH = Path(__file__).parent / "golden.npz"


@dataclasses.dataclass(frozen=True)
class Answer:
    """What is right after one prompt: see the module. `coarse` has the shape of `logprobs`."""

    name: str
    prompt: list[int]
    tokens: list[int]
    ids: np.ndarray
    logprobs: np.ndarray
    coarse: np.ndarray


@dataclasses.dataclass(frozen=True)
class Golden:
    """The whole file."""

    answers: list[Answer]
    frequencies: np.ndarray
    weights_sha256: str


@functools.cache
def golden() -> Golden:
    """Reads the file."""
    with np.load(PATH) as found:
        answers = [
            Answer(
                str(name),
                found[f"prompt_{index}"].tolist(),
                found[f"tokens_{index}"].tolist(),
                *(found[f"{part}_{index}"] for part in ("ids", "logprobs", "coarse")),
            )
            for index, name in enumerate(found["names"])
        ]
        return Golden(answers, found["frequencies"], str(found["weights_sha256"]))
