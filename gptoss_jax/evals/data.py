"""The data of evaluations: published files in a folder of the user's, or samples of our own making.

None of the published files comes with this package. The samples have the same formats. They say nothing about
a model: they show that everything runs.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from gptoss_jax.evals.types import EvaluationError
from harmony.json_types import JsonObject

SAMPLE = "sample"
"""The name of the samples, in place of a folder."""

_SAMPLES = Path(__file__).parent / "samples"


@dataclass(frozen=True)
class PublishedFile:
    """A file that an evaluation's data is published in.

    Attributes:
        name: its name, which it must have in the folder too.
        origin: where it comes from, for people.
        hashes: the SHA-256 of each version whose content is known, in hexadecimal; empty if none is known.
    """

    name: str
    origin: str
    hashes: frozenset[str] = frozenset()


@dataclass(frozen=True)
class DataFile:
    """A file of an evaluation's data, as it was read.

    Attributes:
        name: its name.
        content: its bytes.
        sha256: the SHA-256 of its bytes, in hexadecimal.
        standing: "sample"; "known" if its hash is that of a published version; "unknown" if the file is not
            one of those that are known, or none is known.
    """

    name: str
    content: bytes
    sha256: str
    standing: str

    @property
    def text(self) -> str:
        """Its text, without a byte order mark.

        Raises:
            EvaluationError: it is not UTF-8.
        """
        try:
            return self.content.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise EvaluationError(f"{self.name} is not UTF-8: byte {error.start} is no character") from None

    def __str__(self) -> str:
        return f"{self.name}  sha256 {self.sha256}  {self.standing}"


def read_data(folder: str | Path, evaluation: str, published: Sequence[PublishedFile]) -> list[DataFile]:
    """Reads an evaluation's files from a folder.

    Args:
        folder: the folder that holds them, or `SAMPLE`.
        evaluation: the evaluation's name, which is that of its folder of samples.
        published: the files that it needs.

    Raises:
        EvaluationError: a file is missing; the message says where it comes from. Or it cannot be read.
    """
    is_sample = str(folder) == SAMPLE
    place = _SAMPLES / evaluation if is_sample else Path(folder)
    if not place.is_dir():
        origins = "; ".join(f"{file.name} from {file.origin}" for file in published)
        raise EvaluationError(f'there is no folder {place}: it must hold {origins}; "{SAMPLE}" is a sample')
    files = []
    for file in published:
        try:
            content = (place / file.name).read_bytes()
        except FileNotFoundError:
            raise EvaluationError(
                f'{place} has no {file.name}: it comes from {file.origin}; "{SAMPLE}" is a sample'
            ) from None
        except OSError as error:
            raise EvaluationError(f"cannot read {place / file.name}: {error.strerror or error}") from None
        digest = hashlib.sha256(content).hexdigest()
        standing = "sample" if is_sample else "known" if digest in file.hashes else "unknown"
        files.append(DataFile(file.name, content, digest, standing))
    return files


def is_sample(evaluation: str, hashes: Collection[str]) -> bool:
    """True if data is the sample of an evaluation.

    Args:
        evaluation: the evaluation's name.
        hashes: the SHA-256 of each of its files, in hexadecimal.
    """
    samples = {
        hashlib.sha256(path.read_bytes()).hexdigest()
        for path in _SAMPLES.glob("*/*")
        if path.parent.name == evaluation
    }
    return bool(hashes) and set(hashes) <= samples


def json_lines(file: DataFile) -> list[JsonObject]:
    """The objects of a JSONL file. Blank lines are skipped.

    Raises:
        EvaluationError: a line is no JSON object.
    """
    rows: list[JsonObject] = []
    for number, line in enumerate(file.text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise EvaluationError(f"line {number} of {file.name} is no JSON: {error}") from None
        if not isinstance(row, dict):
            raise EvaluationError(f"line {number} of {file.name} is no JSON object")
        rows.append(row)
    return rows


def text_field(row: JsonObject, name: str, where: str) -> str:
    """A field of a row that is text.

    Raises:
        EvaluationError: it is missing, or no text; the message begins with `where`.
    """
    value = row.get(name)
    if not isinstance(value, str):
        raise EvaluationError(f'{where} has no text "{name}"')
    return value
