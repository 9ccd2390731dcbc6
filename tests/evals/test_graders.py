"""Both graders of AIME and GPQA: equal to the harness', strict beside it, in linear time; and the prompts."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from gptoss_jax.evals.aime import Aime, harness_answer, strict_answer
from gptoss_jax.evals.gpqa import Gpqa
from gptoss_jax.evals.letters import harness_letter, strict_letter
from tests.evals import grader_cases
from tests.evals import harness_graders as oracle

HARNESS = os.environ.get("GPTOSS_JAX_HARNESS", "")
with_harness = pytest.mark.skipif(
    not HARNESS, reason="GPTOSS_JAX_HARNESS names no checkout of openai/gpt-oss to compare with"
)
GOLDEN = json.loads(oracle.GOLDEN.read_bytes())
ANSWERS = grader_cases.answers()


def test_the_golden_file_is_about_these_answers() -> None:
    assert len(ANSWERS) == len(GOLDEN["letters"]) == len(GOLDEN["numbers"]) == grader_cases.COUNT
    assert oracle.digest(ANSWERS) == GOLDEN["answers"]
    assert {"A", "B", "C", "D", ""} < set(GOLDEN["letters"]) and {None, "42"} < set(GOLDEN["numbers"])


def test_letters_are_those_that_the_harness_reads() -> None:
    wrong = [
        (text, letter)
        for text, letter in zip(ANSWERS, GOLDEN["letters"], strict=True)
        if harness_letter(text) != letter
    ]
    assert wrong == []


def test_numbers_are_those_that_the_harness_reads() -> None:
    found = [number and oracle.hashed(number) for number in map(harness_answer, ANSWERS)]
    wrong = [
        (text[:80], ours, theirs)
        for text, ours, theirs in zip(ANSWERS, found, GOLDEN["numbers"], strict=True)
        if ours != theirs
    ]
    assert wrong == []


@pytest.mark.parametrize("examples", [None, 7])
@pytest.mark.parametrize("evaluation", [Aime, Gpqa])
def test_prompts_choices_and_right_answers_are_those_of_the_harness(evaluation, examples, tmp_path) -> None:
    grader_cases.write_data(tmp_path)
    attempts = oracle.ATTEMPTS if examples is None else 1
    made = evaluation(tmp_path, examples).attempts(attempts)
    assert len(made) == attempts * (examples or {Aime: 30, Gpqa: 198}[evaluation])
    asked = [(attempt.messages, attempt.expected) for attempt in made]
    assert oracle.digest(asked) == GOLDEN["prompts"][f"{evaluation.name} {attempts} {examples}"]


def test_more_attempts_leave_the_earlier_ones_as_they_are(tmp_path) -> None:
    grader_cases.write_data(tmp_path)
    gpqa = Gpqa(tmp_path)
    assert gpqa.attempts(8)[: 2 * 198] == gpqa.attempts(2)
    for attempt in gpqa.attempts(2):
        order, choices = attempt.details["permutation"], attempt.problem.data["choices"]
        prompt = attempt.messages[0]["content"]
        shown = [("nan" if not choices[index] else choices[index]) for index in order]
        assert [f"({letter}) {text}" in prompt for letter, text in zip("ABCD", shown, strict=True)] == [
            True
        ] * 4


@pytest.mark.parametrize(
    "text",
    [
        *("\n" * 60_000, " \n" * 9_000, "Answer" + "\n" * 60_000, "Answer:" + " " * 60_000 + "x"),
        *("\\boxed{" * 9_000, "\\boxed{A" * 8_000, "\\boxed{" * 9_000 + "}", "\\textbf{B" * 6_000),
        *("boxed{" * 9_000, "**Answer" + " " * 60_000, "(" * 60_000, "*" * 60_000, "_ " * 9_000),
        *(
            "{" * 60_000,
            "\\boxed{" + "{" * 9_000 + "}" * 9_000,
            "\\boxed{" + "\\text{" * 9_000 + "}" * 9_001,
        ),
        "The answer is A, " * 4_000,
        "not " * 15_000 + "the answer is B",
    ],
    ids=lambda text: repr(text[:12]),
)
def test_a_long_text_takes_no_longer_than_its_length(text) -> None:
    """Were the time quadratic, as the harness' is for most of these, this would run for many minutes."""
    for grader in (harness_letter, strict_letter, harness_answer, strict_answer):
        grader(text)


@pytest.mark.parametrize(
    ("text", "letter"),
    [
        *(
            ("A", "A"),
            ("**B**", "B"),
            ("(C)", "C"),
            ("D.", "D"),
            ("$\\boxed{A}$", "A"),
            ("\\boxed{\\text{(B)}}", "B"),
        ),
        *(("**Answer:** B", "B"), ("Answer: (C)", "C"), ("The correct answer is **D) 3 eV**.", "D")),
        *(
            ("(B) 3.2 eV", "B"),
            ("**C) 3.2 eV**", "C"),
            ("So it is this.\n\n**Answer: A**\n\nBecause of B.", "A"),
        ),
        *(
            ("First, A is wrong.\n\nB", "B"),
            ("The final answer is option (D), as shown.", "D"),
            ("Answer:\nB", "B"),
        ),
        ("The answer is not A, so the answer is B.", "B"),
        *(
            ("", None),
            ("Because the field is weak, none of these", None),
            ("A plant makes sugar from light.", None),
        ),
        *(("Answer: A or B", None), ("Answer: A. No, answer: B", None), ("\\boxed{A} or \\boxed{B}", None)),
        *(
            ("Option B is wrong.", None),
            ("The answer is A proton.", None),
            ("\\boxed{42}", None),
            ("b", None),
        ),
        *(
            ("If the answer is A, then it falls.", None),
            ("I don't think the answer is C.", None),
            ("E", None),
        ),
    ],
)
def test_the_strict_grader_takes_only_a_letter_that_is_declared_without_doubt(text, letter) -> None:
    assert strict_letter(text) == letter


@pytest.mark.parametrize(
    ("text", "number"),
    [
        *(
            ("\\boxed{42}", "42"),
            ("\\boxed{042}", "42"),
            ("$\\boxed{\\text{42}}$", "42"),
            ("\\boxed{1{,}234}", "1234"),
        ),
        *(("\\boxed{336^\\circ}", "336"), ("\\boxed{336^{\\circ}}", "336"), ("\\boxed{m+n = 42}", "42")),
        *(("\\boxed{42} and again \\boxed{42}", "42"), ("\\framebox{7}", "7"), ("\\boxed{ 42\\,}.", "42")),
        *(("", None), ("42", None), ("**Answer: 42**", None), ("\\boxed{12} or \\boxed{34}", None)),
        *(
            ("\\boxed{}", None),
            ("\\boxed{42", None),
            ("\\boxed{\\frac{84}{2}}", None),
            ("\\boxed{-42}", None),
        ),
        *(
            ("\\boxed{12, 34}", None),
            ("\\boxed{٤٢}", None),
            ("boxed{42}", None),
            ("\\boxed{42} \\boxed{}", None),
        ),
    ],
)
def test_the_strict_grader_takes_only_the_one_number_that_is_boxed(text, number) -> None:
    assert strict_answer(text) == number


def test_both_grades_stand_side_by_side() -> None:
    aime, gpqa = Aime("sample"), Gpqa("sample")
    (first, *_), (question, *_) = aime.attempts(1), gpqa.attempts(1)
    boxed = aime.grade(first, f"\\boxed{{{first.expected}}}")
    assert (boxed.score, boxed.answer, boxed.strict_score, boxed.strict_answer) == (1, "69", 1, "69")
    bare = aime.grade(first, f"It is {first.expected}")
    assert (bare.score, bare.answer, bare.strict_score, bare.strict_answer) == (1, "69", 0, None)
    generous = gpqa.grade(question, f"{question.expected}lthough I doubt it")
    assert (generous.score, generous.strict_score, generous.strict_answer) == (1, 0, None)
    blank = gpqa.grade(question, "")
    assert (blank.score, blank.answer, blank.strict_answer) == (0, None, None)


@with_harness
def test_the_golden_file_is_what_the_harness_makes() -> None:
    letter, number = oracle.letter_of(Path(HARNESS)), oracle.number_of(Path(HARNESS))
    assert [letter(text) for text in ANSWERS] == GOLDEN["letters"]
    assert [found and oracle.hashed(found) for found in map(number, ANSWERS)] == GOLDEN["numbers"]


@with_harness
@pytest.mark.parametrize("evaluation", [Aime, Gpqa])
def test_prompts_equal_those_that_the_harness_sends_now(evaluation, tmp_path) -> None:
    pytest.importorskip("pandas", reason="the harness reads its data with pandas")
    pytest.importorskip("jinja2", reason="the harness makes its pages with jinja2")
    grader_cases.write_data(tmp_path)
    asked = oracle.asked(Path(HARNESS), tmp_path, evaluation.name, oracle.ATTEMPTS, None)
    made = evaluation(tmp_path).attempts(oracle.ATTEMPTS)
    assert [(attempt.messages, attempt.expected) for attempt in made] == asked
