"""Runs of evaluations as files, made without a model."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

THOUGHT = "We need the number. Let me count again, with care.\n\n"


def row(problem: str = "p", attempt: int = 0, score: float | None = 1.0, **fields: Any) -> dict[str, Any]:
    """A row whose answer is "7" if it is right and "8" if it is wrong."""
    answer = None if score is None else "7" if score else "8"
    return {
        "id": f"{problem}/{attempt}",
        "problem": problem,
        "attempt": attempt,
        "seed": 11,
        "messages": [{"role": "user", "content": f"What is {problem}?"}],
        "expected": "7",
        "reasoning": THOUGHT,
        "text": f"It is {answer}.",
        "finish_reason": "stop",
        "usage": {"prompt_tokens": 90, "completion_tokens": 60, "reasoning_tokens": 50},
        "harness": {"answer": answer, "score": score},
        "strict": {"answer": answer, "score": score},
        "details": {},
        "error": None,
        **fields,
    }


def failed(problem: str = "p", attempt: int = 0) -> dict[str, Any]:
    """The row of a request without an answer."""
    return row(
        problem,
        attempt,
        reasoning="",
        text="",
        finish_reason=None,
        usage=None,
        harness={"answer": None, "score": None},
        strict=None,
        error={"code": "timeout", "message": "no answer within 600 s"},
    )


def cut(problem: str = "p", attempt: int = 0) -> dict[str, Any]:
    """The row of an answer that the limit of tokens ended."""
    none = {"answer": None, "score": 0.0}
    return row(problem, attempt, text="", finish_reason="length", harness=none, strict=none)


def graded(problem: str, score: float | None, **tags: float) -> dict[str, Any]:
    """A row of HealthBench."""
    metrics = {} if score is None else {"overall_score": score, **tags}
    item = {
        "criterion": "Asks for the age",
        "points": 5,
        "tags": [],
        "criteria_met": True,
        "explanation": "yes",
    }
    details = {"metrics": metrics, "rubric_items": [item], "grader": "small", "comparable": False}
    return row(problem, expected=None, harness={"answer": None, "score": score}, strict=None, details=details)


def write(path: Path, rows: Iterable[dict[str, Any]], **run: Any) -> Path:
    """Writes rows, numbered in their order, and what is known of the run beside them."""
    lines = [json.dumps({**fields, "line": line}) for line, fields in enumerate(rows, 1)]
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    path.with_name(path.name + ".run.json").write_text(json.dumps(run), encoding="utf-8")
    return path


def aime(problems: int = 30, attempts: int = 16, seed: int = 0, share: float = 0.86) -> list[dict[str, Any]]:
    """Rows like those of AIME: most problems are easy, some hard, a few answers are cut or failed."""
    rng = random.Random(seed)
    chances = [min(1.0, max(0.0, rng.gauss(share, 0.25))) for _ in range(problems)]
    rows = []
    for attempt in range(attempts):
        for number, chance in enumerate(chances):
            name = f"aime-2025-{'I' if number < 15 else 'II'}-{number % 15 + 1}"
            tokens = int(rng.lognormvariate(9.2 + (1 - chance), 0.5))
            messages = [{"role": "user", "content": f"\nFind the sum of all such n ({name}).\n"}]
            draw = rng.random()
            tokens = 16_000 if draw < 0.02 else min(tokens, 16_000)
            usage = {"prompt_tokens": 180, "completion_tokens": tokens + 400, "reasoning_tokens": tokens}
            if draw < 0.004:
                rows.append({**failed(name, attempt), "expected": "70", "messages": messages})
            elif draw < 0.02:
                rows.append({**cut(name, attempt), "expected": "70", "messages": messages, "usage": usage})
            else:
                right = rng.random() < chance
                answer = "70" if right else str(rng.choice([12, 12, 12, 105, 588]))
                grade = {"answer": answer, "score": float(right)}
                plain = rng.random() < 0.02
                rows.append(
                    row(
                        name,
                        attempt,
                        float(right),
                        expected="70",
                        messages=messages,
                        reasoning=THOUGHT * rng.randint(3, 30),
                        text=f"The sum is \\boxed{{{answer}}}." if not plain else f"The sum is {answer}.",
                        usage=usage,
                        harness=grade,
                        strict={"answer": None, "score": 0.0} if plain else grade,
                    )
                )
    return rows
