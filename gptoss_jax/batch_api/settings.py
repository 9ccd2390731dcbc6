"""What batches over HTTP are told when the server starts."""

from __future__ import annotations

import dataclasses
from pathlib import Path

DAY_SECONDS = 86400


@dataclasses.dataclass(frozen=True)
class BatchSettings:
    """The folder of files and batches, and its limits.

    folder: made if it is not there. One server uses it at a time.
    max_file_bytes: the longest file that can be uploaded.
    max_bytes, max_files: all files together, output included; an upload beyond them is refused.
    max_rows: requests of a batch.
    max_unfinished: batches that have not ended.
    at_once: batches that are in progress side by side; the others wait, oldest first.
    keep_seconds: how long files are kept that do not say, and batches that have ended.
    window_seconds: how long a batch may take.
    """

    folder: Path
    max_file_bytes: int = 200 << 20
    max_bytes: int = 10 << 30
    max_files: int = 10_000
    max_rows: int = 50_000
    max_unfinished: int = 100
    at_once: int = 4
    keep_seconds: int = 30 * DAY_SECONDS
    window_seconds: int = DAY_SECONDS
