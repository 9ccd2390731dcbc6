"""The files of a checkpoint: what they describe, and their SHA-256."""

from __future__ import annotations

import concurrent.futures
import hashlib
from collections.abc import Callable
from pathlib import Path

from checkpoints import open_checkpoint
from checkpoints.config import GPT_OSS_20B, GPT_OSS_120B, ModelConfig, shown_name
from checkpoints.files import open_regular
from checkpoints.opening import TINY
from checkpoints.parameters import count_parameters, parameter_specs
from gptoss_jax.verify.golden import golden
from gptoss_jax.verify.rows import Check, Failure, Outcome, reading
from gptoss_jax.vocabulary import PUBLISHED_TOKENIZER_SHA256, load_encoding_for

EMBEDDED_WEIGHTS = "model.safetensors"
"""The file of the embedded model's weights, whose hash is stored."""


def known_sha256() -> dict[str, str]:
    """SHA-256 of files that are known here → what they are. Those of the published weights are not known."""
    return {
        PUBLISHED_TOKENIZER_SHA256: "the published tokenizer",
        golden().weights_sha256: "the embedded model",
    }


_READ_BYTES = 4 << 20
_THREADS = 4
_MOST_LINES = 12
"""Files that the page lists; of more it gives one SHA-256 of them all."""


def name_of(config: ModelConfig) -> str:
    """The published model that has these sizes, or "another model"."""
    names = {GPT_OSS_20B: "gpt-oss-20b", GPT_OSS_120B: "gpt-oss-120b"}
    return names.get(config, "another model")


def description_check(path: str) -> Check:
    """The configuration, the names, shapes and dtypes of all tensors, and the vocabulary."""
    return Check(
        "checkpoint",
        "its configuration is read in full, and every tensor is there with its shape and dtype",
        "the folder is not what its config.json describes: download or convert it again",
        lambda: _describe(path),
    )


def _describe(path: str) -> Outcome:
    checkpoint = open_checkpoint(path)
    config = checkpoint.config
    encoding = load_encoding_for(checkpoint)
    specs = parameter_specs(config)
    size, count = sum(spec.num_bytes for spec in specs.values()), count_parameters(config)
    measured = (
        f"sizes of {name_of(config)}: {config.num_layers} layers of {config.num_experts} experts, "
        f"{count.total / 1e9:.3g} B parameters; {checkpoint.layout} layout, {len(specs)} tensors, "
        f"{size / 1e9:.3g} GB"
    )
    details = {
        "layout": checkpoint.layout,
        "tensors": len(specs),
        "bytes": size,
        "config": dict(vars(config)),
        "vocabulary": encoding.name,
    }
    return Outcome(True, measured, "each as config.json says", details)


def hash_check(folder: Path, *, converted: bool, most_bytes: int | None) -> Check:
    """converted: True for a folder that `convert` wrote. most_bytes: larger checkpoints are not hashed; None:
    all are.
    """
    return Check(
        "file hashes",
        "the files can be read to their end, and those that are known here are what they should be",
        "a file cannot be read or was changed: the disk or the download is damaged",
        lambda: _hash(folder, files_of(folder, converted), most_bytes),
    )


def files_of(folder: Path, converted: bool) -> list[Path]:
    """The files of weights, configuration and vocabulary, by name."""
    patterns = ("*.safetensors", "*.json", "*.tiktoken")
    found = folder.rglob("*") if converted else (file for one in patterns for file in folder.glob(one))
    return sorted({file for file in found if file.is_file()})


def _hash(folder: Path, files: list[Path], most_bytes: int | None) -> Outcome:
    size = sum(file.stat().st_size for file in files)
    if most_bytes is not None and size > most_bytes:
        return Outcome(None, f"{size / 1e9:.3g} GB are not hashed with --quick")
    with reading("file hashes", size) as bar, concurrent.futures.ThreadPoolExecutor(_THREADS) as pool:
        digests = list(pool.map(lambda file: sha256(file, bar.update), files))
    names = [shown_name(file.relative_to(folder).as_posix()) for file in files]
    hashes, all_known = dict(zip(names, digests, strict=True)), known_sha256()
    known = {name: all_known[digest] for name, digest in hashes.items() if digest in all_known}
    listing = "".join(f"{digest}  {name}\n" for name, digest in hashes.items())
    whole = hashlib.sha256(listing.encode()).hexdigest()
    if len(hashes) <= _MOST_LINES:
        lines = [f"{digest}  {name}  ({known.get(name, 'unknown')})" for name, digest in hashes.items()]
    else:
        lines = [f"{whole}  SHA-256 of the list of all {len(hashes)} files with theirs"]
    damaged = folder == TINY and EMBEDDED_WEIGHTS not in known
    return Outcome(
        not damaged,
        f"{len(files)} files, {size / 1e9:.3g} GB: "
        + (f"{EMBEDDED_WEIGHTS} is not the embedded model" if damaged else f"{len(known)} known")
        + f", {len(files) - len(known)} unknown (listed below)",
        "",
        {"sha256": hashes, "known": known, "list_sha256": whole, "bytes": size},
        lines,
    )


def sha256(file: Path, progress: Callable[[int], object] = lambda _: None) -> str:
    """The SHA-256 of a file, which is never in memory as a whole.

    Raises:
        Failure: it cannot be read.
    """
    digest = hashlib.sha256()
    buffer = memoryview(bytearray(_READ_BYTES))
    try:
        with open_regular(file) as stream:
            while count := stream.readinto(buffer):  # type: ignore[attr-defined]
                digest.update(buffer[:count])
                progress(count)
    except OSError as error:
        raise Failure(f"{shown_name(file.name)} cannot be read: {error.strerror or error}") from None
    return digest.hexdigest()
