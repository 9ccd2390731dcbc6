"""The options of `gptoss-jax serve` for files and batches."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from gptoss_jax.commands.batch import checkpoint_fingerprint
from gptoss_jax.commands.options import whole_number

if TYPE_CHECKING:
    from checkpoints import Checkpoint
    from gptoss_jax.batch_api import BatchSettings
    from harmony.json_types import Json


def add_data_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options."""
    group = parser.add_argument_group("files and batches")
    group.add_argument(
        "--data",
        type=Path,
        metavar="FOLDER",
        help="keep files and batches in this folder, made if it is not there; batches that have not ended "
        "are gone on with at the next start (default: there are no files and batches)",
    )
    group.add_argument(
        "--data-max-file-mib",
        type=whole_number(1),
        default=200,
        metavar="N",
        help="the longest file that can be uploaded, in MiB (default: 200)",
    )
    group.add_argument(
        "--data-max-mib",
        type=whole_number(1),
        default=10240,
        metavar="N",
        help="the most that all files may have, in MiB; uploads beyond it are refused (default: 10240)",
    )
    group.add_argument(
        "--data-max-rows",
        type=whole_number(1),
        default=50_000,
        metavar="N",
        help="the most requests of a batch (default: 50000)",
    )
    group.add_argument(
        "--data-days",
        type=whole_number(1),
        default=30,
        metavar="N",
        help="how long files are kept that do not say, and batches that have ended, in days (default: 30)",
    )


def batch_settings_of(options: argparse.Namespace) -> BatchSettings | None:
    """The folder of files and batches, and its limits; None without one."""
    from gptoss_jax.batch_api import BatchSettings

    if options.data is None:
        return None
    return BatchSettings(
        options.data,
        max_file_bytes=options.data_max_file_mib << 20,
        max_bytes=options.data_max_mib << 20,
        max_rows=options.data_max_rows,
        keep_seconds=options.data_days * 86400,
    )


def engine_settings_of(options: argparse.Namespace, checkpoint: Checkpoint) -> dict[str, Json]:
    """What answers depend on beside requests and sampling. With others, a batch is not gone on with."""
    return {
        "checkpoint": checkpoint_fingerprint(checkpoint.path),
        "dtype": options.dtype,
        "kv_dtype": options.kv_dtype,
        "max_length": options.max_length,
    }
