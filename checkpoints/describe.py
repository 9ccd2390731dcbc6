"""`describe`: a checkpoint folder in a few lines of text."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from checkpoints.config import CheckpointError, ModelConfig
from checkpoints.opening import VOCABULARY_NAME, find_checkpoint, open_checkpoint
from checkpoints.parameters import count_parameters, parameter_specs

_LAYOUTS = {
    "huggingface": "Hugging Face (safetensors)",
    "original": "OpenAI original (safetensors)",
    "orbax": "converted (Orbax)",
}


@dataclasses.dataclass(frozen=True)
class CheckpointDescription:
    """The facts about a checkpoint folder."""

    rows: dict[str, str]  # heading → text
    complete: bool  # True: every tensor exists, with the right shape and dtype

    def __str__(self) -> str:
        return "\n".join(f"{heading:<10}  {text}" for heading, text in self.rows.items())


def describe(path: str | Path) -> CheckpointDescription:
    """Describes a checkpoint: layout, sizes, parameters, bytes by part, files, vocabulary, and completeness.

    Args:
        path: as for `open_checkpoint`.

    Raises:
        CheckpointError: there is no checkpoint, or its configuration cannot be read. Missing and wrong
            tensors are part of the description instead.
    """
    folder, layout, config = find_checkpoint(path)
    try:
        open_checkpoint(folder)
        complete, state = True, "complete: every tensor is there, of the right shape and dtype"
    except CheckpointError as error:
        complete, state = False, f"NOT complete: {error}"
    files = [file for file in folder.rglob("*") if file.is_file()]
    vocabulary = VOCABULARY_NAME if (folder / VOCABULARY_NAME).exists() else "o200k_harmony (none of its own)"
    rows = {
        "checkpoint": str(folder),
        "layout": _LAYOUTS[layout],
        "state": state,
        **_model(config),
        "files": f"{len(files):,} with {_size(sum(file.stat().st_size for file in files))}",
        "vocabulary": vocabulary,
    }
    return CheckpointDescription(rows, complete)


def _model(config: ModelConfig) -> dict[str, str]:
    count = count_parameters(config)
    parts = {"experts (MXFP4)": 0, "attention, routers, norms": 0, "embeddings": 0}
    for name, spec in parameter_specs(config).items():
        if ".experts." in name:
            part = "experts (MXFP4)"
        else:
            part = "embeddings" if "embedding" in name else "attention, routers, norms"
        parts[part] += spec.num_bytes
    total = sum(parts.values())
    return {
        "model": f"{config.num_layers} layers, hidden {config.hidden_size}, {config.num_heads} query and "
        f"{config.num_kv_heads} KV heads of size {config.head_size}, window {config.sliding_window}",
        "experts": f"{config.num_experts} a layer, {config.experts_per_token} active, "
        f"intermediate {config.intermediate_size}",
        "context": f"{config.context_length:,} tokens (YaRN: "
        f"{config.yarn_original_length:,} × {config.yarn_factor:g}, theta {config.rope_theta:g})",
        "tokens": f"{config.vocabulary_size:,} vocabulary rows",
        "parameters": f"{_count(count.total)} total, {_count(count.active)} active per token",
        "weights": f"{_size(total)}: " + ", ".join(f"{part} {_size(size)}" for part, size in parts.items()),
    }


def _count(number: int) -> str:
    for unit, word in ((10**9, "B"), (10**6, "M"), (10**3, "k")):
        if number >= unit:
            return f"{number / unit:.1f} {word}"
    return str(number)


def _size(number: int) -> str:
    for unit, word in ((10**9, "GB"), (10**6, "MB"), (10**3, "kB")):
        if number >= unit:
            return f"{number / unit:.2f} {word}"
    return f"{number} bytes"
