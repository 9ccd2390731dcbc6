"""HealthBench: conversations about health, whose answers are graded against rubrics that physicians wrote.

An example has a conversation and a rubric of up to some 50 items: a criterion, its points, its tags. A model,
the grader, says of each item whether the answer meets it, in one call for each item. The score of an example
is the points of the items that are met over the sum of the positive points. It can be negative. The
evaluation's score is the mean of all examples, clipped to 0 to 1.

All that changes a score is that of the harness: the conversation that the grader sees, its instructions, what
counts as a reply, the arithmetic. The instructions are in `healthbench_grader.txt`. That text is taken
unchanged from `GRADER_TEMPLATE` of `gpt_oss/evals/healthbench_eval.py` in github.com/openai/gpt-oss, at
`HARNESS_REVISION` (Apache License 2.0, by OpenAI). It is a part of the evaluation: with another text scores
would not compare.

Two of the harness' slips are not repeated:

- It takes the grader's replies in the order in which they arrive, and gives the first to the first rubric
  item. So its scores depend on which call was faster. Here a verdict belongs to the item it was asked for.
- Its sampler of Chat Completions appends the chain of thought to the conversation, so that the grader reads
  it too. Its default, the sampler of Responses, does not. Here the grader never sees it.
"""

from __future__ import annotations

import functools
import importlib.resources
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from gptoss_jax.evals.data import PublishedFile, json_lines, read_data
from gptoss_jax.evals.drawing import drawn
from gptoss_jax.evals.types import Attempt, EvaluationError, Grade, GradingError, Problem
from harmony.errors import shown_json

if TYPE_CHECKING:
    from harmony.json_types import Json, JsonObject

_ORIGIN = "https://openaipublic.blob.core.windows.net/simple-evals/healthbench/"
FILES = {
    "all": PublishedFile("2025-05-07-06-14-12_oss_eval.jsonl", _ORIGIN),
    "hard": PublishedFile("hard_2025-05-08-21-00-10.jsonl", _ORIGIN),
    "consensus": PublishedFile("consensus_2025-05-09-20-00-46.jsonl", _ORIGIN),
}
"""The file of each part of the data."""

_MOST_POINTS = 1_000_000
"""The published items have -10 to 10. A limit keeps scores finite, and refuses NaN."""


@dataclass(frozen=True)
class RubricItem:
    """One line of a rubric.

    Attributes:
        criterion: what the answer does if it meets the item.
        points: what meeting it is worth; negative for what an answer should not do.
        tags: groups of items that get a score of their own, such as "axis:accuracy". None is there twice.
    """

    criterion: str
    points: int | float
    tags: tuple[str, ...]

    def __str__(self) -> str:
        """The item as the grader reads it. Points are written as in the data: 5 and 5.0 differ."""
        return f"[{self.points}] {self.criterion}"


@dataclass(frozen=True)
class Verdict:
    """What the grader says of one rubric item.

    Attributes:
        criteria_met: True if the answer meets the item.
        explanation: why, in the grader's words; "" if it gave none.
    """

    criteria_met: bool
    explanation: str


class RubricGrader(Protocol):
    """Says which rubric items an answer meets."""

    @property
    def name(self) -> str:
        """What grades, for readers, such as "gpt-4.1-2025-04-14"."""

    @property
    def comparable(self) -> bool:
        """True for the grader of the published scores. Scores by any other cannot be compared with them."""

    def verdicts(self, name: str, prompts: Sequence[str]) -> list[Verdict | GradingError]:
        """Asks the grader, once for each prompt. Several threads may call it at the same time.

        Args:
            name: the name of the answer that is graded, "PROBLEM/ATTEMPT".
            prompts: the user's message of each call, one for each rubric item.

        Returns:
            One verdict for each prompt, or why there is none.
        """


class HealthBench:
    """The evaluation, or one of its smaller parts: see `gptoss_jax.evals.types.Evaluation`.

    Attributes:
        subset: "all", "hard" or "consensus".
        files: the data's file.
        problems: all problems, or those that were drawn.
    """

    name = "healthbench"
    graded_by_model = True

    def __init__(
        self, data: str | Path, subset: str, grader: RubricGrader, examples: int | None = None
    ) -> None:
        """Reads the problems.

        Args:
            data: the folder of the file, or "sample".
            subset: "all", "hard" or "consensus".
            grader: who grades.
            examples: how many problems to draw, as the harness draws them; None for all.

        Raises:
            EvaluationError: the file is missing or not as published.
        """
        self.subset = subset
        self.files = read_data(data, self.name, [FILES[subset]])
        (file,) = self.files
        problems = read_examples(json_lines(file), file.name)
        if examples == len(problems):
            examples = None  # the harness draws only what is less than all
        self.problems: Sequence[Problem] = drawn(problems, examples, random.Random(0))
        self._grader = grader

    def attempts(self, count: int) -> list[Attempt]:
        """See `Evaluation`."""
        return [
            Attempt(problem, number, problem.messages, None)
            for number in range(count)
            for problem in self.problems
        ]

    def grade(self, attempt: Attempt, text: str) -> Grade:
        """Grades an answer. The grade's details are::

            {"metrics": {"overall_score": 0.25, "theme:hedging": 0.25, "axis:accuracy": 1.0, ...},
             "rubric_items": [{"criterion", "points", "tags", "criteria_met", "explanation"}, ...],
             "grader": "gpt-4.1-2025-04-14", "comparable": true}

        Raises:
            GradingError: the grader gave no verdict for a rubric item. Those that it gave are kept by the
                grader, and are not asked for again.
        """
        items = rubric_of(attempt.problem)
        prompts = [grader_prompt(attempt.messages, text, item) for item in items]
        given = self._grader.verdicts(f"{attempt.problem.id}/{attempt.number}", prompts)
        verdicts = [verdict for verdict in given if isinstance(verdict, Verdict)]
        faults = [(number, fault) for number, fault in enumerate(given, 1) if isinstance(fault, GradingError)]
        if faults:
            number, fault = faults[0]
            raise GradingError(
                f"{len(faults)} of {len(items)} rubric items have no grade; item {number}: {fault}"
            )
        tags = _texts(attempt.problem.data["example_tags"])
        metrics = metrics_of(items, [verdict.criteria_met for verdict in verdicts], tags)
        details: JsonObject = {
            "metrics": dict(metrics),
            "rubric_items": [
                {
                    "criterion": item.criterion,
                    "points": item.points,
                    "tags": list(item.tags),
                    "criteria_met": verdict.criteria_met,
                    "explanation": verdict.explanation,
                }
                for item, verdict in zip(items, verdicts, strict=True)
            ],
            "grader": self._grader.name,
            "comparable": self._grader.comparable,
        }
        return Grade(metrics["overall_score"], None, details=details)


def grader_prompt(messages: Sequence[JsonObject], text: str, item: RubricItem) -> str:
    """The user's message of the grader's call for one rubric item.

    The conversation is put in first, as the harness does it. So a conversation that holds the place-holder of
    the rubric item gets the item there, too.

    Args:
        messages: the chat messages of the prompt.
        text: the final answer.
        item: the rubric item.
    """
    turns: list[JsonObject] = [*messages, {"role": "assistant", "content": text}]
    conversation = "\n\n".join(f"{turn['role']}: {turn['content']}" for turn in turns)
    return _template().replace("<<conversation>>", conversation).replace("<<rubric_item>>", str(item))


@functools.cache
def _template() -> str:
    file = importlib.resources.files("gptoss_jax.evals") / "healthbench_grader.txt"
    return file.read_text(encoding="utf-8").removesuffix("\n")


def score_of(items: Sequence[RubricItem], met: Sequence[bool]) -> float | None:
    """The points of the items that are met, over the sum of the positive points.

    Returns:
        The score: at most 1, and below 0 if what should not be done outweighs. None if no item has positive
        points.
    """
    possible = sum(item.points for item in items if item.points > 0)
    if possible == 0:
        return None
    return sum(item.points for item, is_met in zip(items, met, strict=True) if is_met) / possible


def metrics_of(
    items: Sequence[RubricItem], met: Sequence[bool], example_tags: Sequence[str]
) -> dict[str, float]:
    """The scores of one example, by name, as the harness has them.

    "overall_score" is the score. Each tag of the example has the same. Each tag of rubric items has the score
    of these items alone, if one of them has positive points.
    """
    score = score_of(items, met)
    assert score is not None  # read_examples has refused such an example
    metrics = {"overall_score": score, **dict.fromkeys(example_tags, score)}
    groups: dict[str, tuple[list[RubricItem], list[bool]]] = {}
    for item, is_met in zip(items, met, strict=True):
        for tag in item.tags:
            group = groups.setdefault(tag, ([], []))
            group[0].append(item)
            group[1].append(is_met)
    for tag, group in groups.items():
        part = score_of(*group)
        if part is not None:
            metrics[tag] = part
    return metrics


def rubric_of(problem: Problem) -> list[RubricItem]:
    """The rubric items of a problem that `read_examples` made."""
    rubrics = problem.data["rubrics"]
    assert isinstance(rubrics, list)
    return [_rubric_item(item) for item in rubrics]


def read_examples(examples: Iterable[JsonObject], source: str) -> list[Problem]:
    """The examples of the published files as problems.

    A problem's `data` has "rubrics" and "example_tags" as the file has them.

    Args:
        examples: the lines of the file, in their order: objects with "prompt_id", "prompt", "rubrics" and
            "example_tags". Other fields are not used.
        source: the file's name for messages of errors.

    Raises:
        EvaluationError: an example does not have this form, or none could be scored; or an id is there twice.
    """
    problems = []
    seen: set[str] = set()
    for number, example in enumerate(examples, 1):
        try:
            problem = _problem(example)
            if problem.id in seen:
                raise ValueError(f'the "prompt_id" {shown_json(problem.id)} is there twice')
        except ValueError as error:
            raise EvaluationError(f"{source}: example {number} is not one of HealthBench: {error}") from None
        seen.add(problem.id)
        problems.append(problem)
    return problems


def _problem(example: Mapping[str, Json]) -> Problem:
    """Raises ValueError, with what is wrong, for an example of another form."""
    id, prompt, rubrics = (example.get(name) for name in ("prompt_id", "prompt", "rubrics"))
    if not isinstance(id, str) or not id:
        raise ValueError(f'its "prompt_id" is {shown_json(id)}: it must be a text')
    if not isinstance(prompt, list) or not prompt:
        raise ValueError(f'its "prompt" is {shown_json(prompt)}: it must be a list of messages')
    messages: list[JsonObject] = []
    for message in prompt:
        if not isinstance(message, dict) or not all(
            isinstance(message.get(n), str) for n in ("role", "content")
        ):
            raise ValueError(
                f'its "prompt" has {shown_json(message)}: a message has the texts "role" and "content"'
            )
        messages.append(message)
    if not isinstance(rubrics, list):
        raise ValueError(f'its "rubrics" is {shown_json(rubrics)}: it must be a list')
    items = [_rubric_item(item) for item in rubrics]
    if not any(item.points > 0 for item in items):
        raise ValueError("no rubric item has points above 0, so it has no score")
    tags = _texts(example.get("example_tags"))
    return Problem(id, messages, None, {"rubrics": rubrics, "example_tags": list(tags)})


def _rubric_item(item: Json) -> RubricItem:
    """Raises ValueError, with what is wrong, for an item of another form."""
    if not isinstance(item, dict):
        raise ValueError(f"a rubric item is {shown_json(item)}: it must be an object")
    criterion, points = item.get("criterion"), item.get("points")
    if not isinstance(criterion, str):
        raise ValueError(f'the "criterion" of a rubric item is {shown_json(criterion)}: it must be a text')
    if not isinstance(points, int | float) or isinstance(points, bool) or not abs(points) <= _MOST_POINTS:
        raise ValueError(
            f'the "points" of a rubric item are {shown_json(points)}: they must be a number from '
            f"{-_MOST_POINTS} to {_MOST_POINTS}"
        )
    return RubricItem(criterion, points, _texts(item.get("tags")))


def _texts(tags: Json) -> tuple[str, ...]:
    """Tags. Raises ValueError if they are no texts, or if one is there twice."""
    if not isinstance(tags, list) or not all(isinstance(tag, str) for tag in tags):
        raise ValueError(f"the tags are {shown_json(tags)}: they must be a list of texts")
    texts = tuple(tag for tag in tags if isinstance(tag, str))
    if len(set(texts)) < len(texts):
        raise ValueError(f"the tags are {shown_json(tags)}: one is there twice")
    return texts
