"""Converting a published checkpoint into the layout that loads fastest: `convert`."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from tqdm import tqdm

from checkpoints.config import CheckpointError, shown
from checkpoints.converted import (
    COMPLETE_NAME,
    LOCK_NAME,
    UNFINISHED_NAME,
    Description,
    groups,
    part_is_whole,
    read_description,
    save_group,
)
from checkpoints.files import open_regular, reason
from checkpoints.opening import TOKENIZER_NAME, VOCABULARY_NAME, SafetensorsCheckpoint, open_checkpoint
from checkpoints.parameters import parameter_specs

try:
    import fcntl
except ImportError:  # Windows has no lock, so nothing stops a second conversion into the same folder
    fcntl = None  # type: ignore[assignment]

_ORBAX_TEMPORARY = ".orbax-checkpoint-tmp"


def convert(source: str | Path, destination: str | Path, *, progress: bool = True) -> None:
    """Converts a checkpoint in a published layout into the layout of `checkpoints.converted`.

    Works layer by layer, so host memory holds at most one layer and Orbax's copy of it. Each layer is saved
    atomically: an interrupted conversion continues with the first layer that is missing or incomplete.
    Converting a finished conversion again does nothing. A lock keeps other processes from converting into the
    same folder.

    Args:
        source: a folder in either published layout, or "tiny"; see `open_checkpoint`.
        destination: a folder that does not exist, is empty, or holds a conversion of the same source.
        progress: True shows a progress bar in bytes; False shows nothing.

    Raises:
        CheckpointError: the source is not a published checkpoint; or the destination holds something else, is
            being written by another process, has too little space or cannot be written.
    """
    checkpoint = open_checkpoint(source)
    if not isinstance(checkpoint, SafetensorsCheckpoint):
        raise CheckpointError(f"{source}: is already converted")
    destination = Path(destination)
    description = Description(
        checkpoint.config, str(checkpoint.path.resolve()), checkpoint.files(), checkpoint.eos_token_ids
    )
    try:
        _check_destination(destination)
        if _is_finished(destination, description):
            return
        destination.mkdir(parents=True, exist_ok=True)
        with _only_writer(destination):
            if not _is_finished(destination, description):
                _begin(destination, description)
                _write(checkpoint, destination, progress)
    except OSError as error:
        raise CheckpointError(
            f"{destination}: cannot be written: {reason(error)}; finished layers are kept: run convert again "
            "to continue"
        ) from None


def _write(checkpoint: SafetensorsCheckpoint, destination: Path, progress: bool) -> None:
    """Writes the missing parts, then the file that marks the conversion as complete."""
    _remove_leftovers(destination)
    config = checkpoint.config
    specs = parameter_specs(config)
    sizes = {part: sum(specs[name].num_bytes for name in names) for part, names in groups(config).items()}
    done = [part for part in sizes if part_is_whole(destination, config, part)]
    needed = sum(size for part, size in sizes.items() if part not in done)
    free = shutil.disk_usage(destination).free
    if needed > free:
        raise CheckpointError(
            f"{destination}: converting needs {needed / 1e9:.2f} GB more, and {free / 1e9:.2f} GB are free"
        )
    with tqdm(
        total=sum(sizes.values()), unit="B", unit_scale=True, disable=not progress, desc="converting"
    ) as bar:
        for part, names in groups(config).items():
            if part not in done:
                arrays = _read(checkpoint, names)
                shutil.rmtree(destination / part, ignore_errors=True)  # it may be incomplete
                try:
                    save_group(destination / part, arrays)
                except BaseException:
                    _remove_leftovers(destination)
                    raise
                if not part_is_whole(destination, config, part):
                    raise CheckpointError(f"{destination / part}: was written but cannot be read")
            bar.update(sizes[part])
    for file, name in ((checkpoint.vocabulary, VOCABULARY_NAME), (checkpoint.tokenizer, TOKENIZER_NAME)):
        if file:
            with open_regular(file) as stream, (destination / name).open("wb") as copy:
                shutil.copyfileobj(stream, copy)
    os.replace(destination / UNFINISHED_NAME, destination / COMPLETE_NAME)
    (destination / LOCK_NAME).unlink(missing_ok=True)


def _read(checkpoint: SafetensorsCheckpoint, names: list[str]) -> dict[str, np.ndarray]:
    try:
        return {name: checkpoint.read(name) for name in names}
    except OSError as error:
        raise CheckpointError(f"{checkpoint.path}: cannot be read: {reason(error)}") from None


def _remove_leftovers(destination: Path) -> None:
    """Removes the temporary folders of an interrupted save."""
    for leftover in destination.glob(f"*{_ORBAX_TEMPORARY}*"):
        shutil.rmtree(leftover, ignore_errors=True)


def _check_destination(destination: Path) -> None:
    """Raises CheckpointError if the destination holds anything but a conversion."""
    if not os.path.lexists(destination):
        return
    if destination.is_dir():
        found = set(os.listdir(destination))
        if not found or found & {COMPLETE_NAME, UNFINISHED_NAME, f"{UNFINISHED_NAME}.new", LOCK_NAME}:
            return
    raise CheckpointError(f"{destination}: is not empty and not a conversion: choose another folder")


@contextlib.contextmanager
def _only_writer(destination: Path) -> Iterator[None]:
    """Locks the folder against other conversions; the lock ends with this process at the latest."""
    descriptor = os.open(destination / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        if fcntl is not None:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise CheckpointError(f"{destination}: another process is converting into it") from None
        yield
    finally:
        os.close(descriptor)


def _is_finished(destination: Path, description: Description) -> bool:
    """Returns True if the destination is a finished conversion of the same source.

    Raises:
        CheckpointError: it is a conversion, finished or not, of another source.
    """
    for name in (COMPLETE_NAME, UNFINISHED_NAME):
        if (destination / name).exists():
            found = read_description(destination / name)
            if found != description:
                raise CheckpointError(
                    f"{destination}: holds a conversion of another checkpoint or version, "
                    f"{shown(found.source)}: choose another folder or remove it"
                )
            return name == COMPLETE_NAME
    return False


def _begin(destination: Path, description: Description) -> None:
    """Writes the file that says what is being converted."""
    temporary = destination / f"{UNFINISHED_NAME}.new"
    temporary.write_text(json.dumps(description.to_json(), indent=2) + "\n", encoding="utf-8")
    os.replace(temporary, destination / UNFINISHED_NAME)
