"""What evaluations consist of: problems, attempts at them, answers and grades."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from harmony.json_types import JsonObject

HARNESS_REVISION = "7b58334"
"""The commit of openai/gpt-oss whose `gpt_oss/evals` is reproduced: its prompts, its graders, its order."""


class EvaluationError(ValueError):
    """An evaluation cannot start or continue. The message is one line that says why."""


class GradingError(ValueError):
    """One answer cannot be graded, for example because the grader is not reached. One line."""


@dataclass(frozen=True)
class Problem:
    """A problem of an evaluation.

    Attributes:
        id: its name, from the data: the same in every run.
        messages: the chat messages of its prompt. Empty if the prompt depends on the attempt.
        expected: the right answer. None if it depends on the attempt, or if rubrics are graded.
        data: what else its prompts and grades need, such as choices, rubrics and tags.
    """

    id: str
    messages: list[JsonObject]
    expected: str | None
    data: JsonObject = field(default_factory=dict)


@dataclass(frozen=True)
class Attempt:
    """One attempt at a problem.

    Attributes:
        problem: the problem.
        number: which attempt at this problem, from 0.
        messages: the chat messages of its prompt.
        expected: the right answer, such as the letter that the right choice has in this prompt. None if
            rubrics are graded.
        details: what its row is to tell of it, such as "permutation", which choice each letter stands for.
    """

    problem: Problem
    number: int
    messages: list[JsonObject]
    expected: str | None
    details: JsonObject = field(default_factory=dict)


@dataclass(frozen=True)
class Answer:
    """What a model answered.

    Attributes:
        text: the final answer, without reasoning.
        reasoning: the chain of thought; "" if there is none or it is not shown.
        finish_reason: "stop", or "length" if the answer is cut; other words as a server says them.
        usage: "prompt_tokens", "completion_tokens" and "reasoning_tokens"; None for those that are unknown.
    """

    text: str
    reasoning: str
    finish_reason: str
    usage: JsonObject


@dataclass(frozen=True)
class Grade:
    """The grades of one answer.

    Attributes:
        score: as the harness gives it, usually 0 or 1; None if the answer is not graded.
        answer: what the harness' grader read from the text; None if it read nothing.
        strict_score: as the strict grader gives it; None if the evaluation has no strict grader.
        strict_answer: the answer that the text declares, without doubt; None if it declares none.
        details: what else is to be seen, such as rubric items with their grades.
    """

    score: float | None
    answer: str | None
    strict_score: float | None = None
    strict_answer: str | None = None
    details: JsonObject = field(default_factory=dict)


Ask = Callable[[JsonObject], Answer]
"""Answers the body of a chat request, such as {"messages": [...], "temperature": 1.0, "seed": 3}.

It blocks until the answer is there, and several threads may call it at the same time. It raises
`gptoss_jax.evals.samplers.AskError` if there is no answer, after what is worth trying again has been tried.
"""


class Evaluation(Protocol):
    """Problems with their prompts and their grades."""

    @property
    def name(self) -> str:
        """Its name on the command line: "aime", "gpqa" or "healthbench"."""

    @property
    def subset(self) -> str | None:
        """The part of the data that it uses, such as "diamond"; None if there is only one."""

    @property
    def problems(self) -> Sequence[Problem]:
        """All problems, in the order of the data."""

    @property
    def graded_by_model(self) -> bool:
        """True if `grade` asks a model.

        Then all attempts are answered first, and graded by several threads afterwards.
        """

    def attempts(self, count: int) -> list[Attempt]:
        """All attempts, `count` at each problem, in the harness' order.

        That is the first attempts at all problems, then the second ones, and so on.
        """

    def grade(self, attempt: Attempt, text: str) -> Grade:
        """Grades the final answer of an attempt; "" is a blank one.

        Raises:
            GradingError: a model was asked and gave no grade.
        """
