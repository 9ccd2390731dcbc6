"""GPQA diamond: 198 questions of science with four choices, whose order differs from attempt to attempt."""

from __future__ import annotations

import csv
import io
import random
from collections.abc import Sequence
from pathlib import Path

from gptoss_jax.evals.data import DataFile, PublishedFile, read_data
from gptoss_jax.evals.drawing import drawn
from gptoss_jax.evals.letters import harness_letter, strict_letter
from gptoss_jax.evals.types import Attempt, EvaluationError, Grade, Problem
from harmony.json_types import JsonObject

FILE = PublishedFile(
    "gpqa_diamond.csv",
    "https://openaipublic.blob.core.windows.net/simple-evals/gpqa_diamond.csv",
)

ATTEMPTS = 8
"""Attempts at each problem, as in the harness."""

LETTERS = "ABCD"
_CHOICES = ("Correct Answer", "Incorrect Answer 1", "Incorrect Answer 2", "Incorrect Answer 3")

_MISSING = frozenset(
    {"", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN"}
    | {"<NA>", "N/A", "NA", "NULL", "NaN", "None", "n/a", "nan", "null"}
)
"""Cells that pandas reads as missing. The harness prints such a one as "nan"."""


class Gpqa:
    """GPQA diamond.

    Attributes:
        files: the data's file.
        problems: all problems, or those that were drawn; their `data` has "choices", the right one first.
    """

    name = "gpqa"
    subset = "diamond"
    graded_by_model = False

    def __init__(self, data: str | Path, examples: int | None = None) -> None:
        """Reads the problems.

        Args:
            data: the folder of the file, or "sample".
            examples: how many problems to draw, as the harness draws them; None for all.

        Raises:
            EvaluationError: the file is missing or not as published.
        """
        self.files = read_data(data, self.name, [FILE])
        # One source of chance draws the problems, and then the order of each attempt's choices.
        rng = random.Random(0)
        self.problems: Sequence[Problem] = drawn(_problems(self.files[0]), examples, rng)
        self._state = rng.getstate()

    def attempts(self, count: int) -> list[Attempt]:
        """See `Evaluation`. Attempts of the same number have the same orders of choices, whatever `count`."""
        rng = random.Random()
        rng.setstate(self._state)
        return [
            _attempt(problem, number, rng.sample(range(4), 4))
            for number in range(count)
            for problem in self.problems
        ]

    def grade(self, attempt: Attempt, text: str) -> Grade:
        """See `Evaluation`. The answers are letters; the harness may read any other character."""
        given, declared = harness_letter(text), strict_letter(text)
        return Grade(
            score=float(given == attempt.expected),
            answer=given or None,
            strict_score=float(declared == attempt.expected),
            strict_answer=declared,
        )


def prompt(question: str, choices: Sequence[str]) -> str:
    """The harness' prompt for a question with four choices."""
    listed = "\n".join(f"({letter}) {choice}" for letter, choice in zip(LETTERS, choices, strict=True))
    return (
        f"{question}\n\n{listed}\n\n"
        "Express your final answer as the corresponding option 'A', 'B', 'C', or 'D'."
    )


def _attempt(problem: Problem, number: int, order: Sequence[int]) -> Attempt:
    given = [str(choice) for choice in problem.data["choices"]]  # type: ignore[union-attr]
    choices = [given[index] for index in order]
    messages: list[JsonObject] = [{"role": "user", "content": prompt(str(problem.data["question"]), choices)}]
    # The first that reads like the right one, should two choices be the same.
    expected = LETTERS[choices.index(given[0])]
    return Attempt(problem, number, messages, expected, {"permutation": [*order]})


def _problems(file: DataFile) -> list[Problem]:
    """The questions of the file, in its order."""
    header, *rows = _cells(file)
    for name in ("Question", *_CHOICES):
        if name not in header:
            raise EvaluationError(f'{file.name} has no column "{name}"')
    problems, ids = [], set()
    for number, row in enumerate(rows, 1):
        cells = dict(zip(reversed(header), reversed(row), strict=True))  # the first of two columns counts
        identifier = cells.get("Record ID") or f"gpqa-diamond-{number}"
        if identifier in ids:
            raise EvaluationError(f'{file.name} has two rows with the "Record ID" {identifier!r}')
        ids.add(identifier)
        question, *choices = (
            "nan" if cells[name] in _MISSING else cells[name] for name in ("Question", *_CHOICES)
        )
        data: JsonObject = {"question": question, "choices": [*choices]}
        problems.append(Problem(identifier, [], None, data))
    return problems


def _cells(file: DataFile) -> list[list[str]]:
    """The rows of the file, the head first. Rows without a cell are skipped."""
    try:
        rows = [row for row in csv.reader(io.StringIO(file.text, newline=""), strict=True) if row]
    except csv.Error as error:
        raise EvaluationError(f"{file.name} is no CSV: {error}") from None
    if len(rows) < 2:
        raise EvaluationError(f"{file.name} has no rows")
    for number, row in enumerate(rows):
        if len(row) != len(rows[0]):
            raise EvaluationError(
                f"row {number} of {file.name} has {len(row)} cells for {len(rows[0])} columns"
            )
    return rows
