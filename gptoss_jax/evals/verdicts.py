"""The grader's verdicts on disk: a run that is killed while it is graded asks for none of them again."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from gptoss_jax.batch.errors import BatchError, cannot
from gptoss_jax.batch.output import OutputFile
from gptoss_jax.evals.healthbench import Verdict
from gptoss_jax.evals.types import EvaluationError

if TYPE_CHECKING:
    from harmony.json_types import Json


class VerdictFile:
    """A file with one line for each verdict, written as soon as it is there. Use it as a context manager.

    Opening it changes nothing, `overwrite` or not; the first verdict does.

    A verdict counts only for the prompt that it answers: the file has the prompt's hash. So verdicts of
    another run, or on answers that have changed, are never taken for those of this one. Any thread may use
    it.

    Args:
        path: the file. It is made if it does not exist.
        settings: what verdicts depend on, as JSON: the grader. A file with others is refused.
        overwrite: True begins anew.

    Raises:
        EvaluationError: the file belongs to another grader, another run writes it, or it cannot be written.
    """

    def __init__(self, path: Path, settings: Mapping[str, Json], *, overwrite: bool = False) -> None:
        self._lock = threading.Lock()
        self._verdicts: dict[tuple[str, str], Verdict] = {}
        try:
            self._file = OutputFile(path, settings, overwrite=overwrite)
            self._lines = 0 if overwrite else len(self._file.done)
            self._begun = False
            try:
                if self._lines:
                    self._read()
            except BaseException:
                self._file.close()
                raise
        except BatchError as error:
            raise EvaluationError(str(error)) from None

    def find(self, name: str, prompt: str) -> Verdict | None:
        """The verdict on a rubric item, "PROBLEM/ATTEMPT/ITEM", for this prompt; None if there is none."""
        return self._verdicts.get((name, _digest(prompt)))

    def add(self, name: str, prompt: str, verdict: Verdict) -> None:
        """Keeps a verdict.

        Raises:
            EvaluationError: the disk is full or fails.
        """
        digest = _digest(prompt)
        row: dict[str, Json] = {
            "id": name,
            "prompt_sha256": digest,
            "criteria_met": verdict.criteria_met,
            "explanation": verdict.explanation,
        }
        with self._lock:
            try:
                if not self._begun:
                    self._file.begin()
                    self._begun = True
                self._file.append(self._lines + 1, row)
            except BatchError as error:
                raise EvaluationError(str(error)) from None
            self._lines += 1
            self._verdicts[name, digest] = verdict

    def close(self) -> None:
        """Makes the verdicts durable and closes the file."""
        with self._lock:
            self._file.close()

    def __enter__(self) -> VerdictFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _read(self) -> None:
        path = self._file.path
        try:
            with path.open("rb") as file:
                for line in file:
                    row = json.loads(line)
                    if not isinstance(row["criteria_met"], bool) or not isinstance(row["explanation"], str):
                        raise TypeError
                    verdict = Verdict(row["criteria_met"], row["explanation"])
                    self._verdicts[row["id"], row["prompt_sha256"]] = verdict
        except OSError as error:
            raise cannot("read", path, error) from None
        except (ValueError, KeyError, TypeError):
            raise BatchError(f"{path} has a line that is no verdict: begin anew with --overwrite") from None


def verdicts_path(output: Path) -> Path:
    """The file of verdicts beside an output: OUT.verdicts.jsonl for OUT.jsonl."""
    return output.with_name(f"{output.name.removesuffix('.jsonl')}.verdicts.jsonl")


def _digest(prompt: str) -> str:
    return hashlib.sha256(prompt.encode("utf-8", "surrogatepass")).hexdigest()
