"""Some of the problems, for a short run."""

from __future__ import annotations

import random

from gptoss_jax.evals.types import EvaluationError, Problem


def drawn(problems: list[Problem], examples: int | None, rng: random.Random) -> list[Problem]:
    """`examples` of the problems, as the harness draws them with `rng`; all of them for None.

    Raises:
        EvaluationError: there are not as many.
    """
    if examples is None:
        return problems
    if examples > len(problems):
        raise EvaluationError(f"--examples is {examples}: there are {len(problems)} problems")
    return rng.sample(problems, examples)
