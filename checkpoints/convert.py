"""Converting a published checkpoint once, into the layout that loads fastest: `convert`."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
from pathlib import Path
from typing import Any

from tqdm import tqdm

from checkpoints.config import CheckpointError
from checkpoints.converted import COMPLETE_NAME, UNFINISHED_NAME, groups, read_json, save_group
from checkpoints.opening import VOCABULARY_NAME, SafetensorsCheckpoint, open_checkpoint
from checkpoints.parameters import parameter_specs
from pallas_kernels.mxfp4 import LAYOUT_VERSION

_ORBAX_TEMPORARY = ".orbax-checkpoint-tmp"


def convert(source: str | Path, destination: str | Path, *, progress: bool = True) -> None:
    """Converts a checkpoint in a published layout into the layout of `checkpoints.converted`.

    Works layer by layer: at most one layer is in host memory (and what Orbax copies of it). Each is saved
    atomically; a conversion that was interrupted continues with the first layer that is not there. Converting
    again what is finished does nothing.

    Args:
        source: what `open_checkpoint` takes, in either published layout.
        destination: a folder that is new, empty, or an unfinished conversion of the same source.
        progress: shows a bar of bytes.

    Raises:
        CheckpointError: the source is not a published checkpoint, or the destination holds something else.
    """
    checkpoint = open_checkpoint(source)
    if not isinstance(checkpoint, SafetensorsCheckpoint):
        raise CheckpointError(f"{source}: is converted already")
    destination = Path(destination)
    description = {
        "layout_version": LAYOUT_VERSION,
        "source": str(checkpoint.path.resolve()),
        "source_files": checkpoint.files(),
        "config": dataclasses.asdict(checkpoint.config),
    }
    if _begin(destination, description):
        return
    for leftover in destination.glob(f"*{_ORBAX_TEMPORARY}*"):
        shutil.rmtree(leftover)

    specs = parameter_specs(checkpoint.config)
    total = sum(spec.num_bytes for spec in specs.values())
    with tqdm(total=total, unit="B", unit_scale=True, disable=not progress, desc="converting") as bar:
        for folder, names in groups(checkpoint.config).items():
            if not (destination / folder).exists():
                save_group(destination / folder, {name: checkpoint.read(name) for name in names})
            bar.update(sum(specs[name].num_bytes for name in names))
    if checkpoint.vocabulary:
        shutil.copyfile(checkpoint.vocabulary, destination / VOCABULARY_NAME)
    os.replace(destination / UNFINISHED_NAME, destination / COMPLETE_NAME)


def _begin(destination: Path, description: dict[str, Any]) -> bool:
    """Makes the destination, or checks that it is a conversion of the same source; True if a finished one."""
    for name in (COMPLETE_NAME, UNFINISHED_NAME):
        if (destination / name).exists():
            found = read_json(destination / name)
            if found != description:
                raise CheckpointError(
                    f"{destination}: holds a conversion of another checkpoint or version, "
                    f"{found.get('source')}: choose another folder or remove it"
                )
            return name == COMPLETE_NAME
    if destination.exists() and (not destination.is_dir() or any(destination.iterdir())):
        raise CheckpointError(
            f"{destination}: is not empty and no unfinished conversion: choose another folder"
        )
    destination.mkdir(parents=True, exist_ok=True)
    temporary = destination / f"{UNFINISHED_NAME}.new"
    temporary.write_text(json.dumps(description, indent=2) + "\n", encoding="utf-8")
    os.replace(temporary, destination / UNFINISHED_NAME)
    return False
