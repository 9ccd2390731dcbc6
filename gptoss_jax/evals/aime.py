"""AIME 2025: thirty problems whose answers are whole numbers from 0 to 999."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from gptoss_jax.evals.boxes import balanced_boxes, bare
from gptoss_jax.evals.data import DataFile, PublishedFile, json_lines, read_data, text_field
from gptoss_jax.evals.drawing import drawn
from gptoss_jax.evals.types import Attempt, EvaluationError, Grade, Problem
from harmony.json_types import Json, JsonObject

_ORIGIN = "the data set opencompass/AIME2025 on Hugging Face"
FILES = {"I": PublishedFile("aime2025-I.jsonl", _ORIGIN), "II": PublishedFile("aime2025-II.jsonl", _ORIGIN)}

ATTEMPTS = 16
"""Attempts at each problem. The harness' command makes 8; the guide that goes with the models says 16."""


class Aime:
    """AIME 2025, both parts.

    Attributes:
        files: the data's files.
        problems: all problems, or those that were drawn.
    """

    name = "aime"
    subset = None
    graded_by_model = False

    def __init__(self, data: str | Path, examples: int | None = None) -> None:
        """Reads the problems.

        Args:
            data: the folder of the files, or "sample".
            examples: how many problems to draw, as the harness draws them; None for all.

        Raises:
            EvaluationError: a file is missing or not as published.
        """
        self.files = read_data(data, self.name, list(FILES.values()))
        problems = [
            problem for part, file in zip(FILES, self.files, strict=True) for problem in _problems(part, file)
        ]
        self.problems: Sequence[Problem] = drawn(problems, examples, random.Random(0))

    def attempts(self, count: int) -> list[Attempt]:
        """See `Evaluation`."""
        return [
            Attempt(problem, number, problem.messages, problem.expected)
            for number in range(count)
            for problem in self.problems
        ]

    def grade(self, attempt: Attempt, text: str) -> Grade:
        """See `Evaluation`. The answers are numbers without leading zeros."""
        given, declared = harness_answer(text), strict_answer(text)
        return Grade(
            score=float(given == attempt.expected),
            answer=given,
            strict_score=float(declared == attempt.expected),
            strict_answer=declared,
        )


def prompt(question: str) -> str:
    """The harness' prompt for a question: with a newline at both ends."""
    return f"\n{question}\nPlease reason step by step, and put your final answer within \\boxed{{}}.\n"


def _problems(part: str, file: DataFile) -> Iterator[Problem]:
    rows = json_lines(file)
    if not rows:
        raise EvaluationError(f"{file.name} has no problems")
    for number, (row, answer) in enumerate(zip(rows, _answers(rows, file), strict=True), 1):
        content = prompt(text_field(row, "question", f"problem {number} of {file.name}"))
        messages: list[JsonObject] = [{"role": "user", "content": content}]
        yield Problem(f"aime-2025-{part}-{number}", messages, str(answer))


def _answers(rows: Sequence[JsonObject], file: DataFile) -> list[int]:
    """The right answers of a file, typed as pandas types its column, which is what the harness sees.

    If all of them are numbers, or texts that are numbers, the column is numeric. Otherwise a text counts as
    the digits that it begins with: "336^\\circ" is 336.
    """
    given = [row.get("answer") for row in rows]
    numbers = [_as_float(value) for value in given]
    numeric = None not in numbers
    answers = []
    for number, (value, as_float) in enumerate(zip(given, numbers, strict=True), 1):
        digits = re.match(r"\d+", value) if isinstance(value, str) and not numeric else None
        if digits is not None:
            answers.append(int(digits[0]))
        elif as_float is not None and (numeric or not isinstance(value, str)):
            answers.append(int(as_float))
        else:
            raise EvaluationError(
                f"problem {number} of {file.name}: its answer must be a whole number or begin with one, "
                f"not {str(value)[:40]!r}"
            )
    return answers


def _as_float(value: Json) -> float | None:
    """A number, or a text that is one, as a number; None for all else, and for infinity."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if abs(number) < 2**53 else None


# The harness' grader


def harness_answer(text: str) -> str | None:
    """The number that the harness reads from an answer; None if it reads none.

    That is the last number behind the commas of the last box that is not empty. Where no box has anything,
    it is the last run of digits anywhere. A box ends at the first closing brace, so none with a brace inside
    is read; digits may be those of any script.
    """
    boxes = [box for box in _boxes_to_first_brace(text) if box]
    if boxes:
        found = boxes[-1].split(",")[-1].strip()
    else:
        runs = re.findall(r"\d+", text)
        found = runs[-1] if runs else ""
    try:
        return str(int(found))
    except ValueError:  # it is no number, or one of more than 4,300 digits
        return None


def _boxes_to_first_brace(text: str) -> Iterator[str]:
    r"""The contents of `\boxed{…}` and `\framebox{…}`, backslash or not, each to the first closing brace.

    In linear time for any text: an expression that searches anew from every opening that is never closed is
    not.
    """
    end = 0
    for opening in re.finditer(r"(?:boxed|framebox)\{", text):
        if opening.start() < end:  # inside the box before
            continue
        closing = text.find("}", opening.end())
        if closing < 0:
            return
        yield text[opening.end() : closing]
        end = closing + 1


# The strict grader

_DEGREES = re.compile(r"\^\s*(?:\\circ|\{\s*\\circ\s*\})|°|\\degree")
_NUMBER = re.compile(r"(?:[a-zA-Z+]+=)?([0-9]{1,9}|[0-9]{1,3}(?:(?:,|\{,\})[0-9]{3})+)\.?")


def strict_answer(text: str) -> str | None:
    r"""The number that an answer declares in boxes, as the prompt asks; None if it declares none, or several.

    Every box must hold the same whole number, in ASCII digits. It may stand in `\text{…}` or behind "m+n =",
    with a degree sign or commas between thousands.
    """
    numbers = set()
    for box in balanced_boxes(text):
        found = _NUMBER.fullmatch(bare(_DEGREES.sub("", box)))
        numbers.add(int(re.sub(r"\D", "", found[1])) if found else None)
    number = numbers.pop() if len(numbers) == 1 else None
    return None if number is None else str(number)
