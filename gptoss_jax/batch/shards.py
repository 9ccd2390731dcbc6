"""Parts of an input that are answered apart from each other, without anything that coordinates them."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from gptoss_jax.batch.errors import BatchError

if TYPE_CHECKING:
    from harmony.json_types import Json

MAX_SHARDS = 99_999

_FORM = re.compile(r"(auto|\d{1,9})(?:/(\d{1,9}))?", re.ASCII)
_NUMBER = re.compile(r"\d{1,9}", re.ASCII)
_PLACES = (
    ("JOB_COMPLETION_INDEX", "JOB_COMPLETIONS"),
    ("TPU_WORKER_ID", "TPU_WORKER_HOSTNAMES"),
    ("SLURM_PROCID", "SLURM_NTASKS"),
)
"""Variables with the index of a process, and with how many there are. Kubernetes sets the first of an indexed
Job and leaves JOB_COMPLETIONS to the Job's author; TPU pods list all hosts; Slurm counts tasks."""


@dataclasses.dataclass(frozen=True)
class Shard:
    """Every `count`-th line of an input, from line `index` + 1 on.

    index: from 0, below `count`. count: how many shards the input has, at most 99,999.

    Raises:
        BatchError: the numbers are not allowed.
    """

    index: int
    count: int

    def __post_init__(self) -> None:
        if not 0 <= self.index < self.count <= MAX_SHARDS:
            raise BatchError(
                f"the shard is {self.index}/{self.count}: it must be I/N, with N from 1 to {MAX_SHARDS} and "
                "I from 0 to N-1"
            )

    def has(self, line: int) -> bool:
        """True if a line, numbered from 1, belongs to the shard."""
        return (line - 1) % self.count == self.index

    def path(self, output: str | Path) -> Path:
        """The shard's own output, of that of the whole: ``out.jsonl`` → ``out-00003-of-00008.jsonl``."""
        path = Path(output)
        return path.with_name(f"{path.stem}-{self.index:05}-of-{self.count:05}{path.suffix}")

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"


def shard_of(text: str, environment: Mapping[str, str] = os.environ) -> Shard:
    """Returns the shard that ``I/N``, ``auto`` or ``auto/N`` names.

    ``auto`` takes the index, and without N the number of shards, from the first of these pairs of variables
    whose first is set: JOB_COMPLETION_INDEX and JOB_COMPLETIONS; TPU_WORKER_ID and TPU_WORKER_HOSTNAMES,
    which has the names of all hosts between commas; SLURM_PROCID and SLURM_NTASKS.

    Raises:
        BatchError: the text has another form, or a variable is not set or is no number.
    """
    form = _FORM.fullmatch(text)
    if form is None or (form[1] != "auto" and form[2] is None):
        raise BatchError(f"the shard is {text!r}: it must be I/N such as 0/8, auto, or auto/N")
    if form[1] != "auto":
        return Shard(int(form[1]), int(form[2]))
    index_name, count_name = next((pair for pair in _PLACES if pair[0] in environment), ("", ""))
    if not index_name:
        names = ", ".join(pair[0] for pair in _PLACES)
        raise BatchError(f"the shard is {text}: none of the variables {names} is set")
    count = form[2] or environment.get(count_name)
    if count is None:
        raise BatchError(
            f"the shard is {text} and {index_name} is {environment[index_name]}, but {count_name} is not "
            "set: give auto/N"
        )
    if count_name == "TPU_WORKER_HOSTNAMES" and not form[2]:
        count = str(len(count.split(",")))
    for name, value in ((index_name, environment[index_name]), (count_name, count)):
        if not _NUMBER.fullmatch(value):
            raise BatchError(f"{name} is {value!r}: it must be a whole number")
    return Shard(int(environment[index_name]), int(count))


def noted(shard: Shard, rows: int) -> dict[str, Json]:
    """What a shard's output notes of it, so that `merge` knows when all is there. `rows`: of this shard."""
    return {"index": shard.index, "count": shard.count, "rows": rows}


def whole_run(run: Mapping[str, Json]) -> dict[str, Json]:
    """What a run over the whole input would note: the same, without the shard."""
    return {name: value for name, value in run.items() if name != "shard"}
