"""The published scores of the gpt-oss models, and whether noise explains the difference to a run's.

A run and a published score are about the same problems. Which problems they are moves both alike, so it is no
noise between them; only the attempts are. The answers of the published runs are not published: their noise is
taken to be that of the run at hand, which is right if both have the same model.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

from gptoss_jax.evals.records import RunFile, grouped
from gptoss_jax.evals.statistics import error_over_attempts, error_over_problems
from harmony.json_types import Json

LEVEL = 0.05
"""The level of the comparison: how often noise alone is to be called a difference, both sides together."""
_BORDER = 1.959964
"""How many standard errors noise alone exceeds with the chance `LEVEL`."""

SAMPLING = 1.0
"""Temperature and top_p of the published scores."""
MAX_TOKENS = 131_072
"""How many tokens each of their answers could have."""
PROBLEMS = {"aime": 30, "gpqa": 198, "healthbench": 5000, "healthbench hard": 1000}
"""How many problems a published score is about."""

_CARD = "OpenAI's model card of gpt-oss (2025-08)"
_VLLM = "OpenAI's harness on vLLM with B200 GPUs"
_EFFORTS = ("low", "medium", "high")


@dataclass(frozen=True)
class Published:
    """A published score.

    score: from 0 to 1. It is rounded to a tenth of a percent.
    attempts: how many attempts at each problem: the harness' default, for no source says it.
    source: who measured it.
    """

    score: float
    attempts: int
    source: str


def _row(source: str, attempts: int, *scores: float) -> dict[str, Published]:
    """Scores in percent, for the last efforts of low, medium and high."""
    efforts = _EFFORTS[len(_EFFORTS) - len(scores) :]
    return {
        effort: Published(score / 100, attempts, source)
        for effort, score in zip(efforts, scores, strict=True)
    }


SCORES: Mapping[tuple[str, str], Mapping[str, Published]] = {
    ("gpt-oss-120b", "aime"): _row(_CARD, 8, 50.4, 80.0, 92.5),
    ("gpt-oss-120b", "gpqa"): _row(_CARD, 8, 67.1, 73.1, 80.1),
    ("gpt-oss-120b", "healthbench"): _row(_CARD, 1, 57.6),
    ("gpt-oss-120b", "healthbench hard"): _row(_CARD, 1, 30.0),
    ("gpt-oss-20b", "aime"): _row(_VLLM, 8, 33.3, 71.7, 85.8),
    ("gpt-oss-20b", "gpqa"): _row(_VLLM, 8, 56.8, 66.2, 72.9),
}
"""Model and evaluation → effort → score."""


@dataclass(frozen=True)
class Comparison:
    """A run beside a published score.

    score: the run's score by the harness' grader, from 0 to 1.
    published: the published one.
    error: the standard error of their difference; above 0.
    is_bound: True if `error` is at least the standard error, and perhaps more: the run does not show how much
        attempts at a problem differ.
    """

    score: float
    published: Published
    error: float
    is_bound: bool

    @property
    def difference(self) -> float:
        """The run's score less the published one."""
        return self.score - self.published.score

    @property
    def noise_explains(self) -> bool | None:
        """True if the noise of attempts may well be all of the difference; None: that cannot be told."""
        within = abs(self.difference) <= _BORDER * self.error
        return None if within and self.is_bound else within

    @property
    def sentence(self) -> str:
        """What the comparison says, in one sentence."""
        points = abs(100 * self.difference)
        side = "above" if self.difference > 0 else "below"
        score = f"the published {self.published.score:.1%}"
        what = f"As {score}" if points < 0.05 else f"{points:.1f} points {side} {score}"
        error, test = 100 * self.error, f"two-sided test at the level {LEVEL:.0%}"
        size = f"{'at most ' * self.is_bound}{error:.1f} points"
        if self.noise_explains is None:
            return (
                f"{what}: noise may explain it. The difference has a standard error of {size}; the run does "
                f"not show how much attempts at a problem differ, so it cannot be told better ({test})."
            )
        if self.noise_explains:
            return (
                f"{what}: noise explains it. The difference has a standard error of {size}; this run can "
                f"only show differences of more than {_BORDER * error:.1f} points ({test})."
            )
        return f"{what}: noise does not explain it. The difference has a standard error of {size} ({test})."


def model_of(run: Mapping[str, Json]) -> str | None:
    """The published model that a run names, such as "openai/gpt-oss-20b" or a folder; None for others."""
    name = run.get("model")
    found = re.search(r"(?:^|[/\\])(gpt-oss-(?:20b|120b))[/\\]?$", name) if isinstance(name, str) else None
    return found[1] if found else None


def evaluation_of(run: Mapping[str, Json]) -> str:
    """The evaluation as the tables here name it, such as "healthbench hard"."""
    name, subset = run.get("evaluation"), run.get("subset")
    return f"{name} {subset}" if name == "healthbench" and subset not in (None, "all") else str(name)


def compare(file: RunFile, missing: int | None) -> Comparison | str:
    """A run beside the score that is published for its model, evaluation and effort.

    Args:
        file: the run.
        missing: how many attempts have no row yet; None if that is unknown.

    Returns:
        The comparison, or the reason why there is none: one sentence.
    """
    run, evaluation = file.run, evaluation_of(file.run)
    model, effort = model_of(run), run.get("effort")
    published = SCORES.get((model or "", evaluation), {}).get(str(effort))
    graders = sorted({str(record.grader) for record in file.records() if not record.comparable})
    if graders:
        return f"Not comparable: graded by {', '.join(graders)}, and the published score by another model."
    if model is None:
        return f"Not compared: no scores are published for the model {_quoted(run.get('model'))}."
    if published is None:
        return f"Not compared: no score of {evaluation} at effort {effort} is known for {model}."
    if missing is None or missing:
        count = "an unknown number of" if missing is None else f"{missing:,}"
        return f"Not compared yet: {count} attempts are missing."
    if len(file.problems) != PROBLEMS[evaluation]:
        return (
            f"Not compared: {len(file.problems):,} problems, and the published score is about "
            f"{PROBLEMS[evaluation]:,}."
        )
    for name in ("temperature", "top_p"):
        if run.get(name) not in (None, SAMPLING):
            return f"Not compared: {name} is {run[name]}, and {SAMPLING:g} for the published score."
    ungraded = sum(record.blank_score is None for record in file.records())
    if ungraded:
        return f"Not compared yet: {ungraded:,} answers have no grade."
    return _compared(grouped(file, "harness", failed=True), published)


def _compared(groups: list[list[float]], published: Published) -> Comparison:
    count = sum(map(len, groups))
    score = min(1.0, max(0.0, math.fsum(map(math.fsum, groups)) / count))  # as HealthBench's is clipped
    attempts = count / len(groups)
    error, is_bound = error_over_attempts(groups), False
    if not error:
        # Nothing shows how attempts differ. The spread of all scores together is at least as large; where
        # there is none either, that of right and wrong answers with the published share.
        is_bound = True
        first = error_over_problems([group[:1] for group in groups]) or 0.0
        chance = published.score
        error = first / math.sqrt(attempts) or math.sqrt(chance * (1 - chance) / count)
    both = error * math.sqrt(1 + attempts / published.attempts)
    return Comparison(score, published, both, is_bound)


def _quoted(name: Json) -> str:
    return f'"{name}"' if isinstance(name, str) else "of this run"
