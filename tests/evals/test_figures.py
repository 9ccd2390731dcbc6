"""A run's figures, from its file, finished or not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gptoss_jax.evals.figures import Figures, figures_of
from gptoss_jax.evals.published import SCORES, Comparison
from gptoss_jax.evals.records import read_run
from gptoss_jax.evals.report import write_report
from gptoss_jax.evals.types import EvaluationError
from tests.evals import made_runs
from tests.evals.made_runs import cut, failed, graded, row

RUN = {"evaluation": "aime", "subset": None, "model": "tiny", "effort": "low", "temperature": 1.0}


def figures(folder: Path, rows: list[dict[str, Any]], **run: Any) -> Figures:
    return figures_of(read_run(made_runs.write(folder / "out.jsonl", rows, **{**RUN, **run})))


def notes(found: Figures) -> str:
    return "\n".join(found.notes)


def test_a_failed_request_is_a_blank_answer_for_the_harness_and_left_out_besides(tmp_path: Path) -> None:
    rows = [row("p", 0, 1.0), failed("p", 1), row("q", 0, 0.0), row("q", 1, 1.0)]
    found = figures(tmp_path, rows, problems=2, attempts=2)
    assert found.harness.score == pytest.approx(2 / 4)
    assert found.harness.without_failed == pytest.approx(2 / 3)
    assert (found.failed, found.errors, found.missing) == (1, {"timeout": 1}, 0)
    assert found.strict is not None and found.strict.score == pytest.approx(2 / 4)
    assert "1 request failed" in notes(found)


def test_an_answer_without_a_grade_is_in_no_score_and_counted(tmp_path: Path) -> None:
    lost = graded("c", None) | {"error": {"code": "not_graded", "message": "the grader is gone"}}
    found = figures(tmp_path, [graded("a", 0.4), graded("b", 0.2), lost], problems=3, attempts=1)
    assert found.harness.score == pytest.approx(0.3)
    assert (found.ungraded, found.failed, found.errors) == (1, 0, {"not_graded": 1})
    assert "1 answer without a grade" in notes(found)


def test_one_attempt_has_no_error_over_attempts_and_says_so(tmp_path: Path) -> None:
    found = figures(tmp_path, [row("p", 0, 1.0), row("q", 0, 0.0), row("r", 0, 1.0)], problems=3, attempts=1)
    assert found.harness.over_attempts is None
    assert found.harness.over_problems == pytest.approx(1 / 3)
    assert "One attempt at each problem" in notes(found)


def test_all_right_is_no_certainty(tmp_path: Path) -> None:
    rows = [row(f"p{number}", attempt) for attempt in range(2) for number in range(30)]
    found = figures(tmp_path, rows, problems=30, attempts=2)
    assert found.harness.score == 1.0
    assert found.harness.over_problems == 0.0
    assert "only a true score below 90.5%" in notes(found)  # 0.905 ** 30 is 5%


def test_a_file_without_rows_has_no_figures_and_no_division_by_zero(tmp_path: Path) -> None:
    found = figures(tmp_path, [], problems=30, attempts=16)
    assert found.harness.score is None
    assert (found.done, found.missing) == (0, 480)
    said = write_report(tmp_path / "out.jsonl")
    assert "no rows yet" in said and "nan" not in said.lower()
    document = json.loads((tmp_path / "out.report.json").read_text())
    assert document["missing"] == 480


def test_missing_attempts_are_told_and_their_bias_too(tmp_path: Path) -> None:
    rows = [row("p", 0), row("p", 1), row("q", 0)]
    found = figures(tmp_path, rows, problems=2, attempts=2)
    assert found.missing == 1
    assert "1 attempt missing" in notes(found) and "too high" in notes(found)
    assert [at.k for at in found.harness.one_of_k] == [1], "q has one attempt only"


def test_a_torn_last_line_counts_as_missing(tmp_path: Path) -> None:
    path = made_runs.write(tmp_path / "out.jsonl", [row("p", 0), row("p", 1)], **RUN, problems=1, attempts=2)
    path.write_bytes(path.read_bytes()[:-20])
    run = read_run(path)
    assert run.torn
    assert figures_of(run).missing == 1


@pytest.mark.parametrize(
    ("second", "said"),
    [
        (b"{}\n", "line 2 of .* is no row of an evaluation"),
        (b"[1]\n", "line 2 of .* is no row of an evaluation"),
        (b"\xff\n", "line 2 of .* is no row of an evaluation"),
        (b'{"problem": "p", "attempt": 0}\n', 'line 2 of .* has attempt 0 at "p", as line 1 has'),
    ],
)
def test_files_that_are_no_runs_are_refused_in_one_line(tmp_path: Path, second: bytes, said: str) -> None:
    path = made_runs.write(tmp_path / "out.jsonl", [row("p", 0)], **RUN)
    path.write_bytes(path.read_bytes() + second)
    with pytest.raises(EvaluationError, match=said) as error:
        read_run(path)
    assert "\n" not in str(error.value)


def test_what_is_not_there_is_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(EvaluationError, match=r"cannot read .*nowhere\.jsonl: No such file"):
        read_run(tmp_path / "nowhere.jsonl")
    path = made_runs.write(tmp_path / "out.jsonl", [row("p", 0)])
    path.with_name("out.jsonl.run.json").write_text("{")
    with pytest.raises(EvaluationError, match="is not valid JSON"):
        read_run(path)


def test_majorities_follow_choices_and_not_letters(tmp_path: Path) -> None:
    def answered(attempt: int, letter: str, order: list[int]) -> dict[str, Any]:
        right = order["ABCD".index(letter)] == 0
        grade = {"answer": letter, "score": float(right)}
        expected = "ABCD"[order.index(0)]
        return row(
            "q", attempt, harness=grade, strict=grade, expected=expected, details={"permutation": order}
        )

    # The letters are B, B, C: but the two B are different choices, and the wrong ones are the same choice.
    rows = [answered(0, "B", [0, 2, 1, 3]), answered(1, "B", [1, 0, 2, 3]), answered(2, "C", [0, 1, 2, 3])]
    found = figures(tmp_path, rows, evaluation="gpqa", problems=1, attempts=3)
    assert [at.value for at in found.harness.majority_of_k] == pytest.approx([1 / 3, 1 / 3, 0])
    bare = [{**fields, "details": {}} for fields in rows]
    found = figures(tmp_path, bare, evaluation="gpqa", problems=1, attempts=3)
    assert found.harness.majority_of_k == []
    assert "majorities (cons@k) cannot be counted" in notes(found)


def test_ties_and_answers_that_say_nothing(tmp_path: Path) -> None:
    nothing = {"answer": None, "score": 0.0}
    same = {"answer": "0008", "score": 0.0}  # the same number as "8"
    rows = [row("p", 0), row("p", 1, 0.0), row("p", 2, harness=nothing), row("p", 3, harness=nothing)]
    found = figures(tmp_path, rows, problems=1, attempts=4)
    assert found.harness.majority_of_k[-1].value == 0.5
    assert found.harness.majority_of_k[-1].tied == 1
    assert found.harness.unread == 2
    assert found.strict is not None and found.strict.unread == 0
    found = figures(tmp_path, [*rows[:3], row("p", 3, harness=same)], problems=1, attempts=4)
    assert found.harness.majority_of_k[-1].value == 0.0


def test_reasoning_tokens_by_outcome(tmp_path: Path) -> None:
    def used(attempt: int, score: float, tokens: int | None) -> dict[str, Any]:
        return row("p", attempt, score, usage={"reasoning_tokens": tokens})

    long = cut("p", 5) | {"usage": {"reasoning_tokens": 900}}
    rows = [used(0, 1.0, 10), used(1, 1.0, 20), used(2, 1.0, 60), used(3, 0.0, 100), used(4, 0.0, None), long]
    found = figures(tmp_path, rows, problems=1, attempts=6).reasoning
    assert {name: (spread.count, spread.mean, spread.median) for name, spread in found.items()} == {
        "right": (3, 30, 20),
        "wrong": (1, 100, 100),
        "cut": (1, 900, 900),
    }


def test_answers_that_this_runs_limit_cut_are_told(tmp_path: Path) -> None:
    found = figures(tmp_path, [row("p", 0), cut("p", 1)], problems=1, attempts=2, max_length=8192)
    assert found.cut == 1
    assert "1 answer cut by the limit of 8,192 tokens" in notes(found)
    found = figures(tmp_path, [row("p", 0), cut("p", 1)], problems=1, attempts=2, max_length=131_072)
    assert "cut by" not in notes(found)


def test_healthbenchs_figures_are_those_of_numpy(tmp_path: Path) -> None:
    scores = np.random.default_rng(1).normal(0.3, 0.5, 60).tolist()
    rows = [graded(f"h{n}", score, theme=score, rare=score - 2) for n, score in enumerate(scores)]
    found = figures(tmp_path, rows, evaluation="healthbench", problems=60, attempts=1)
    assert found.harness.score == pytest.approx(np.clip(np.mean(scores), 0, 1))
    assert found.bootstrap_error == pytest.approx(np.std(scores) / 60**0.5, rel=0.15)
    tags = {tag.name: tag for tag in found.tags}
    assert tags.keys() == {"theme", "rare"}
    assert tags["theme"].score == pytest.approx(found.harness.score)
    assert (tags["rare"].score, tags["rare"].rows) == (0.0, 60)
    assert found.harness.one_of_k == [] and found.strict is None


AIME = {"evaluation": "aime", "model": "openai/gpt-oss-20b", "effort": "high", "problems": 30, "attempts": 8}


def attempts_with(share: float, attempts: int = 8, problems: int = 30) -> list[dict[str, Any]]:
    """Rows of problems that are hard and easy, with a share of right ones as near as can be."""
    right = np.random.default_rng(0).permutation(problems * attempts) < round(share * problems * attempts)
    return [
        row(f"p{number}", attempt, float(right[number * attempts + attempt]))
        for attempt in range(attempts)
        for number in range(problems)
    ]


def test_a_difference_within_the_noise_of_attempts_is_explained_by_it(tmp_path: Path) -> None:
    found = figures(tmp_path, attempts_with(0.84), **AIME).comparison
    assert isinstance(found, Comparison)
    assert found.published.score == 0.858
    assert found.difference == pytest.approx(0.84166 - 0.858, abs=1e-4)
    # Independent attempts at 30 problems, 8 on either side: the textbook's error of a difference of shares.
    assert found.error == pytest.approx((2 * 0.842 * 0.158 / 240) ** 0.5, rel=0.1)
    assert found.noise_explains is True
    assert "noise explains it" in found.sentence and "two-sided test at the level 5%" in found.sentence


def test_a_difference_beyond_it_is_not_even_where_problems_differ_more(tmp_path: Path) -> None:
    # 22 problems always right, 6 never, 2 by half: the error over problems is 8 points, over attempts 0.9.
    rows = [
        row(f"p{number}", attempt, float(number < 22 or (number < 24 and attempt % 2)))
        for attempt in range(8)
        for number in range(30)
    ]
    found = figures(tmp_path, rows, **AIME)
    assert found.harness.over_problems is not None and found.harness.over_problems > 0.07
    assert isinstance(found.comparison, Comparison)
    assert found.comparison.difference > -1.96 * found.harness.over_problems
    assert found.comparison.noise_explains is False
    assert "noise does not explain it" in found.comparison.sentence


def test_all_right_is_compared_with_a_bound_of_the_noise(tmp_path: Path) -> None:
    found = figures(tmp_path, attempts_with(1.0), **AIME).comparison
    assert isinstance(found, Comparison)
    assert found.is_bound and found.error == pytest.approx((2 * 0.858 * 0.142 / 240) ** 0.5)
    assert found.noise_explains is False
    assert "at most" in found.sentence


def test_one_attempt_can_show_a_difference_but_not_that_noise_is_all_of_it(tmp_path: Path) -> None:
    rows = attempts_with(0.85, attempts=1)
    found = figures(tmp_path, rows, **{**AIME, "attempts": 1}).comparison
    assert isinstance(found, Comparison)
    assert found.noise_explains is None
    assert "noise may explain it" in found.sentence
    found = figures(tmp_path, attempts_with(0.2, attempts=1), **{**AIME, "attempts": 1}).comparison
    assert isinstance(found, Comparison) and found.noise_explains is False


def test_the_published_scores_of_aime_are_those_of_eight_attempts_at_thirty_problems() -> None:
    for (_, evaluation), scores in SCORES.items():
        assert set(scores) <= {"low", "medium", "high"}
        for published in scores.values():
            if evaluation == "aime":
                right = round(published.score * 30 * published.attempts)
                assert published.score == pytest.approx(right / (30 * published.attempts), abs=0.0005 + 1e-9)


@pytest.mark.parametrize(
    ("run", "said"),
    [
        ({"model": "tiny"}, 'no scores are published for the model "tiny"'),
        ({"model": None}, "no scores are published for the model of this run"),
        ({"model": "my-gpt-oss-20b"}, 'no scores are published for the model "my-gpt-oss-20b"'),
        ({"model": "gpt-oss-20b", "evaluation": "healthbench"}, "no score of healthbench at effort high"),
        ({"temperature": 0.6}, "temperature is 0.6"),
        ({"top_p": 0.9}, "top_p is 0.9"),
        ({"attempts": 16}, "240 attempts are missing"),
        ({"attempts": None}, "unknown number of attempts"),
        ({"problems": 15}, "30 problems"),
    ],
)
def test_runs_that_are_not_comparable_are_not_compared_and_say_why(
    tmp_path: Path, run: dict[str, Any], said: str
) -> None:
    rows = attempts_with(0.8)
    if run.get("problems") == 15:
        rows, said = [fields for fields in rows if int(fields["problem"][1:]) < 15], "15 problems"
    found = figures(tmp_path, rows, **{**AIME, **run}).comparison
    assert isinstance(found, str) and found.startswith("Not compared")
    assert said in found and "\n" not in found


def test_scores_of_another_grader_are_not_comparable(tmp_path: Path) -> None:
    run = {
        "evaluation": "healthbench",
        "model": "gpt-oss-120b",
        "effort": "high",
        "problems": 1,
        "attempts": 1,
    }
    found = figures(tmp_path, [graded("a", 0.5)], **run).comparison
    assert isinstance(found, str) and found.startswith("Not comparable: graded by small")
