"""The evaluation counts what it says it counts."""

from __future__ import annotations

import random

import pytest

from gptoss_jax.evals import tiny
from gptoss_jax.tiny import dialogues, sums, tools
from gptoss_jax.tiny.packing import branch_tokens
from gptoss_jax.tiny.splits import Split
from harmony import HarmonyEncoding, Message


def tokens_said(encoding: HarmonyEncoding, turn: dialogues.Turn) -> list[int]:
    """What a flawless model generates after the turn's prompt."""
    tokens = branch_tokens(encoding, [turn])
    return [token for token, trained in zip(tokens.ids, tokens.trained, strict=True) if trained]


@pytest.fixture()
def use() -> tools.Use:
    rng = random.Random(0)
    found = tools.draw_use(rng, tools.draw_tool(rng, "weather"), Split.TRAINING)
    assert found is not None
    return found


def outcome(message: Message) -> tiny.Outcome:
    return tiny.Outcome(True, [message], 0)


def test_a_flawless_completion_is_well_formed_and_right(encoding: HarmonyEncoding, use: tools.Use) -> None:
    problem = sums.Sum(12, "-", 30)
    said = tokens_said(encoding, dialogues.sum_turn(random.Random(1), "high", problem))
    found = tiny.outcome_of(encoding, said, calls=False)
    assert found.well_formed and tiny.answers(problem, found)
    assert found.reasoning_tokens == len(encoding.encode(sums.reasoning(problem, "high")))
    called = tiny.outcome_of(encoding, tokens_said(encoding, dialogues.call_turn(use, "low")), calls=True)
    assert called.well_formed and tiny.calls_rightly(use, called)
    answered = tiny.outcome_of(
        encoding, tokens_said(encoding, dialogues.answer_turn(use, "low")), calls=False
    )
    assert answered.well_formed and tiny.quotes_result(use, answered)


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        ("<|channel|>final<|message|>12.", False),  # no end
        ("<|channel|>analysis<|message|>Hm.<|return|>", False),  # no answer
        (
            "<|channel|>final<|message|>1<|end|><|start|>assistant<|channel|>final<|message|>2<|return|>",
            False,
        ),
        ("<|channel|>final<|message|>12.<|return|>", True),  # an answer where a call is due
        ("final<|message|>12.<|return|>", False),  # a broken header
        ("<|channel|>final<|message|>1<|start|>2<|return|>", False),
    ],
)
def test_anything_less_is_not_well_formed(encoding: HarmonyEncoding, text: str, calls: bool) -> None:
    assert not tiny.outcome_of(encoding, encoding.encode(text, allowed_special="all"), calls).well_formed


def test_a_call_is_right_only_with_the_name_and_every_argument(use: tools.Use) -> None:
    assert tiny.calls_rightly(use, outcome(dialogues.call(use)))
    assert not tiny.calls_rightly(use, outcome(dialogues.call(use).with_recipient("functions.other")))
    for content in ("{}", "{", use.arguments_json.replace("}", ',"more":1}')):
        wrong = Message.from_role_and_content("assistant", content).with_channel("commentary")
        assert not tiny.calls_rightly(use, outcome(wrong.with_recipient(f"functions.{use.tool.name}")))
    assert not tiny.calls_rightly(use, tiny.Outcome(False, [], 0))


def test_a_number_inside_another_is_no_quotation(use: tools.Use) -> None:
    degrees, sky = use.result["degrees"], use.result["sky"]
    assert tiny.quotes_result(use, outcome(dialogues.final(f"{degrees} degrees, {sky}.")))
    assert not tiny.quotes_result(use, outcome(dialogues.final(f"1{degrees} degrees, {sky}.")))
    assert not tiny.quotes_result(use, outcome(dialogues.final(f"{degrees}5 degrees, {sky}.")))
    assert not tiny.quotes_result(use, outcome(dialogues.final(f"{degrees} degrees.")))
    assert not tiny.quotes_result(use, outcome(dialogues.analysis(f"{degrees} degrees, {sky}.")))


def test_the_table_shows_shares_of_all_requests_and_the_ratio_of_reasoning() -> None:
    problem = sums.Sum(1, "+", 1)

    def question(effort: str) -> tiny.Question:
        return tiny.Question(effort, [], False, lambda found: tiny.answers(problem, found))

    right = tiny.Outcome(True, [dialogues.final("1 + 1 = 2.")], 10)
    wrong = tiny.Outcome(False, [dialogues.final("1 + 1 = 3.")], 30)
    kinds = [[(question("low"), right), (question("high"), wrong)] for _ in range(3)]
    lines = tiny.scores(kinds)
    assert [line.value for line in lines] == [50, 50, 50, 50, 3]
    assert [line.requests for line in lines] == [6, 2, 2, 2, 4]
    assert "50.0%" in tiny.table(lines) and "3.0x" in tiny.table(lines)


@pytest.mark.parametrize(
    "draw", [tiny.sum_questions, tiny.call_questions, tiny.answer_questions], ids=lambda draw: draw.__name__
)
def test_questions_take_all_efforts_in_turn_and_are_the_same_every_time(draw) -> None:
    first, again = draw(random.Random(5), 9), draw(random.Random(5), 9)
    assert [q.effort for q in first] == list(dialogues.EFFORTS) * 3
    assert [q.prompt for q in first] == [q.prompt for q in again]
