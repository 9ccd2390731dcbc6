"""HealthBench's prompts, replies and arithmetic, against what the harness' own code makes of them."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from gptoss_jax.evals.grader import read_reply
from gptoss_jax.evals.healthbench import (
    FILES,
    HealthBench,
    RubricGrader,
    RubricItem,
    Verdict,
    grader_prompt,
    metrics_of,
    read_examples,
    score_of,
)
from gptoss_jax.evals.types import EvaluationError, GradingError
from tests.evals import harness_healthbench as oracle
from tests.evals import healthbench_cases as cases

HARNESS = os.environ.get("GPTOSS_JAX_HARNESS", "")
with_harness = pytest.mark.skipif(
    not HARNESS, reason="GPTOSS_JAX_HARNESS names no checkout of openai/gpt-oss to compare with"
)
GOLDEN = json.loads(oracle.GOLDEN.read_text(encoding="utf-8"))


class Judge:
    """A grader whose verdicts are a function of the prompt. `silent`: how many prompts have no verdict."""

    name = "judge"
    comparable = False

    def __init__(self, silent: int = 0) -> None:
        self.asked: dict[str, list[str]] = {}
        self.silent = silent

    def verdicts(self, name: str, prompts: Sequence[str]) -> list[Verdict | GradingError]:
        self.asked[name] = list(prompts)
        return [
            GradingError("the line is dead")
            if number < self.silent
            else Verdict(oracle.verdict_of(prompt), "")
            for number, prompt in enumerate(prompts)
        ]


def evaluation_of(folder: Path, examples: Sequence[dict[str, Any]], grader: RubricGrader) -> HealthBench:
    """The evaluation of some examples, read from a file in the published form."""
    path = folder / "2025-05-07-06-14-12_oss_eval.jsonl"
    path.write_text("".join(json.dumps(example) + "\n" for example in examples), encoding="utf-8")
    return HealthBench(folder, "all", grader)


def graded(
    folder: Path, examples: Sequence[dict[str, Any]], text_of: Callable[[int], str]
) -> Iterator[tuple[list[str], dict[str, Any]]]:
    """Of each example our prompts for the grader, and the details of our grade."""
    judge = Judge()
    evaluation = evaluation_of(folder, examples, judge)
    for number, attempt in enumerate(evaluation.attempts(1)):
        grade = evaluation.grade(attempt, text_of(number))
        assert grade.score == grade.details["metrics"]["overall_score"]  # type: ignore[call-overload, index]
        yield judge.asked[f"{attempt.problem.id}/0"], grade.details


def test_prompts_and_metrics_are_those_of_the_harness(tmp_path: Path) -> None:
    examples = cases.examples(len(GOLDEN["graded"]))
    for (ours, details), (prompts, metrics) in zip(
        graded(tmp_path, examples, cases.text_of), GOLDEN["graded"], strict=True
    ):
        assert oracle.digest("".join(sorted(ours)))[:16] == prompts
        assert details["metrics"] == pytest.approx(metrics, rel=1e-12)
        assert list(details["metrics"]) == list(metrics)


def test_the_instructions_of_the_grader_are_those_of_the_harness() -> None:
    marker = RubricItem("<<rubric_item>>", 1, ())
    text = grader_prompt([{"role": "<<conversation>>", "content": ""}], "", marker)
    template = text.replace("<<conversation>>: \n\nassistant: ", "<<conversation>>")
    assert oracle.digest(template.replace("[1] <<rubric_item>>", "<<rubric_item>>")) == GOLDEN["template"]


def test_replies_are_read_as_the_harness_reads_them() -> None:
    replies = cases.replies(len(GOLDEN["read"]))
    read = [reply and reply.criteria_met for reply in map(read_reply, replies)]
    assert "".join(oracle.LETTERS[label] for label in read) == GOLDEN["read"]


def test_an_explanation_is_kept_whatever_it_is() -> None:
    assert read_reply('{"criteria_met": true, "explanation": "It does."}') == Verdict(True, "It does.")
    assert read_reply('{"criteria_met": false}') == Verdict(False, "")
    assert read_reply('{"criteria_met": false, "explanation": ["a", 1]}') == Verdict(False, '["a", 1]')


@with_harness
def test_the_running_harness_grades_2000_answers_alike(tmp_path: Path) -> None:
    harness = oracle.load(Path(HARNESS))
    examples = cases.examples(2000, seed=7)
    for number, (ours, details) in enumerate(graded(tmp_path, examples, cases.text_of)):
        theirs = oracle.graded(harness, examples[number], cases.text_of(number), oracle.reply)
        assert sorted(ours) == sorted(theirs["prompts"])
        assert details["metrics"] == theirs["metrics"]
        assert [{**item, "explanation": "so"} for item in details["rubric_items"]] == theirs["items"]


@with_harness
def test_the_running_harness_gives_verdicts_to_the_wrong_items_where_they_come_out_of_order() -> None:
    """Why its scores move with the time that replies take, and why it is asked in order above."""
    example = {
        **GOOD,
        "rubrics": [{"criterion": c, "points": p, "tags": []} for c, p in (("a", 9), ("b", 1))],
    }
    overtaken = threading.Event()

    def reply(prompt: str) -> str:
        if "[9] a" in prompt:
            assert overtaken.wait(20)
            return '{"criteria_met": true}'
        threading.Timer(0.2, overtaken.set).start()  # when this reply has long been taken
        return '{"criteria_met": false}'

    theirs = oracle.graded(oracle.load(Path(HARNESS)), example, "Hello", reply, in_order=False)
    assert theirs["metrics"]["overall_score"] == 0.1  # the verdict of the item of 9 points went to that of 1


@with_harness
def test_the_running_harness_reads_10000_replies_alike() -> None:
    harness = oracle.load(Path(HARNESS))
    for reply in cases.replies(10_000, seed=8):
        read = read_reply(reply)
        assert (read and read.criteria_met) == oracle.read(harness, reply), reply


@with_harness
def test_the_golden_file_is_what_the_harness_gives_today(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(oracle, "GOLDEN", tmp_path / "golden.json")
    oracle.main(Path(HARNESS))
    assert json.loads((tmp_path / "golden.json").read_text()) == GOLDEN


def test_a_score_counts_undesired_items_and_may_be_negative() -> None:
    good, bad, small = RubricItem("a", 6, ()), RubricItem("b", -9, ()), RubricItem("c", 2, ())
    assert score_of([good, bad, small], [True, False, False]) == 0.75
    assert score_of([good, bad, small], [False, True, True]) == -0.875
    assert score_of([bad], [True]) is None


def test_a_tag_of_only_undesired_items_has_no_score() -> None:
    items = [RubricItem("a", 5, ("axis:accuracy",)), RubricItem("b", -5, ("axis:completeness",))]
    assert metrics_of(items, [True, True], ["theme:x"]) == {
        "overall_score": 0,
        "theme:x": 0,
        "axis:accuracy": 1,
    }


def test_a_place_holder_inside_the_conversation_is_filled_as_by_the_harness() -> None:
    messages: list[Any] = [{"role": "user", "content": "What is <<rubric_item>>?"}]
    prompt = grader_prompt(messages, "No idea.", RubricItem("Is kind", 5, ()))
    assert "user: What is [5] Is kind?\n\nassistant: No idea." in prompt
    assert "<<" not in prompt


def test_an_item_without_a_verdict_leaves_the_answer_without_a_grade(tmp_path: Path) -> None:
    rubrics = [{"criterion": name, "points": 5, "tags": []} for name in "abc"]
    evaluation = evaluation_of(tmp_path, [{**GOOD, "rubrics": rubrics}], Judge(silent=2))
    (attempt,) = evaluation.attempts(1)
    with pytest.raises(GradingError) as caught:
        evaluation.grade(attempt, "Hello")
    assert str(caught.value) == "2 of 3 rubric items have no grade; item 1: the line is dead"


def test_attempts_go_through_all_problems_before_the_next_round(tmp_path: Path) -> None:
    evaluation = evaluation_of(tmp_path, cases.examples(2), Judge())
    assert [(attempt.problem.id, attempt.number) for attempt in evaluation.attempts(2)] == [
        ("example-0", 0),
        ("example-1", 0),
        ("example-0", 1),
        ("example-1", 1),
    ]


@pytest.mark.parametrize("subset", FILES)
def test_each_part_has_a_sample(subset: str) -> None:
    evaluation = HealthBench("sample", subset, Judge())
    assert len(evaluation.problems) == 3
    assert [file.standing for file in evaluation.files] == ["sample"]


def test_examples_are_drawn_as_the_harness_draws_them(tmp_path: Path) -> None:
    evaluation_of(tmp_path, cases.examples(20), Judge())
    for examples, drawn in GOLDEN["drawn"].items():
        evaluation = HealthBench(tmp_path, "all", Judge(), int(examples))
        assert [problem.id for problem in evaluation.problems] == drawn


GOOD = {
    "prompt_id": "p",
    "prompt": [{"role": "user", "content": "Hi"}],
    "rubrics": [{"criterion": "Is kind", "points": 5, "tags": ["axis:a"]}],
    "example_tags": ["theme:x"],
}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"prompt_id": 7}, 'its "prompt_id" is 7: it must be a text'),
        ({"prompt_id": ""}, 'its "prompt_id" is "": it must be a text'),
        ({"prompt": []}, 'its "prompt" is []: it must be a list of messages'),
        ({"prompt": [{"role": "user", "content": None}]}, 'a message has the texts "role" and "content"'),
        ({"prompt": ["Hi"]}, 'its "prompt" has "Hi": a message has the texts "role" and "content"'),
        ({"rubrics": {}}, 'its "rubrics" is {}: it must be a list'),
        ({"rubrics": []}, "no rubric item has points above 0, so it has no score"),
        ({"rubrics": [{"criterion": "a", "points": -5, "tags": []}]}, "no rubric item has points above 0"),
        ({"rubrics": [5]}, "a rubric item is 5: it must be an object"),
        (
            {"rubrics": [{"criterion": None, "points": 5, "tags": []}]},
            'the "criterion" of a rubric item is null',
        ),
        (
            {"rubrics": [{"criterion": "a", "points": True, "tags": []}]},
            'the "points" of a rubric item are true',
        ),
        ({"rubrics": [{"criterion": "a", "points": float("nan"), "tags": []}]}, "a rubric item are NaN"),
        (
            {"rubrics": [{"criterion": "a", "points": "5", "tags": []}]},
            'the "points" of a rubric item are "5"',
        ),
        ({"rubrics": [{"criterion": "a", "points": 5, "tags": ["x", "x"]}]}, "one is there twice"),
        ({"rubrics": [{"criterion": "a", "points": 5}]}, "the tags are null: they must be a list of texts"),
        ({"example_tags": "theme:x"}, 'the tags are "theme:x": they must be a list of texts'),
        ({"example_tags": ["t", "t"]}, "one is there twice"),
    ],
)
def test_an_example_of_another_form_is_refused_in_one_line(change: dict[str, Any], message: str) -> None:
    with pytest.raises(EvaluationError) as caught:
        read_examples([GOOD, {**GOOD, "prompt_id": "q", **change}], "oss_eval.jsonl")
    assert message in str(caught.value)
    assert str(caught.value).startswith("oss_eval.jsonl: example 2 is not one of HealthBench: ")
    assert "\n" not in str(caught.value)


def test_an_id_that_is_there_twice_is_refused() -> None:
    with pytest.raises(EvaluationError, match='the "prompt_id" "p" is there twice'):
        read_examples([GOOD, GOOD], "oss_eval.jsonl")
