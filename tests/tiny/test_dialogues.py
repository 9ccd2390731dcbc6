"""What the generator says is right, is harmony, and never lets training meet what is held out."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gptoss_jax.evals.tiny import Outcome, quotes_result, text_of
from gptoss_jax.tiny import dialogues, sums, tools
from gptoss_jax.tiny.packing import branch_tokens, drill_tokens, group_tokens
from gptoss_jax.tiny.splits import Split, split_of
from gptoss_jax.tiny.tool_templates import TOOL_TEMPLATES
from harmony import Conversation, HarmonyEncoding, Message, Role

operands = st.integers(0, 999)
problems = st.builds(sums.Sum, operands, st.sampled_from("+-"), operands)


def training_groups(count: int) -> Iterator[dialogues.Group]:
    rng = random.Random(11)
    for _ in range(count):
        yield dialogues.draw_group(rng)


def messages_of(group: dialogues.Group) -> Iterator[Message]:
    for turns in group.branches:
        for turn in turns:
            yield from (*turn.given, *turn.completion)


def test_no_held_out_sum_or_call_is_ever_said_in_training(encoding: HarmonyEncoding) -> None:
    seen = 0
    for group in training_groups(300):
        for message in messages_of(group):
            text = text_of(message)
            if message.recipient and message.recipient.startswith("functions."):
                assert split_of(message.recipient.removeprefix("functions.") + text) is Split.TRAINING
                seen += 1
            elif match := re.fullmatch(r"(\d+) ([+-]) (\d+) = -?\d+\.", text):
                assert split_of("".join(match.groups())) is Split.TRAINING
                seen += 1
    assert seen > 500
    rng = random.Random(3)
    for _ in range(20):
        for branch in drill_tokens(encoding, rng)[1]:
            a, operator, b = re.match(r"(\d{3}) ?([+-]) ?(\d{3})", encoding.decode(branch.ids)).groups()
            assert split_of(f"{int(a)}{operator}{int(b)}") is Split.TRAINING


def test_about_one_in_twelve_of_all_sums_is_held_out() -> None:
    held_out = sum(split_of(f"{a}+{b}") is Split.HELD_OUT for a in range(100) for b in range(100))
    assert 700 < held_out < 970


def test_what_is_drawn_for_evaluation_is_held_out() -> None:
    rng = random.Random(4)
    for _ in range(50):
        problem = sums.draw(rng, Split.HELD_OUT)
        assert split_of(f"{problem.a}{problem.operator}{problem.b}") is Split.HELD_OUT
        use = tools.draw_use(rng, tools.draw_tools(rng, 1)[0], Split.HELD_OUT)
        assert use is None or split_of(use.tool.name + use.arguments_json) is Split.HELD_OUT


@given(problems, st.sampled_from(dialogues.EFFORTS))
def test_a_sum_is_worked_to_its_true_result(problem: sums.Sum, effort: str) -> None:
    true = {"+": problem.a + problem.b, "-": problem.a - problem.b}[problem.operator]
    assert problem.answer == f"{problem.a} {problem.operator} {problem.b} = {true}."
    assert int(re.findall(r"(?<!\d)-?\d+", sums.reasoning(problem, effort))[-1]) == true


@given(problems)
def test_the_columns_of_a_sum_are_its_digits(problem: sums.Sum) -> None:
    columns = sums.columns(problem.a, problem.operator, problem.b)
    written = sum(column.digit * 10**place for place, column in enumerate(columns))
    over = 1000 * columns[-1].outgoing
    true = written + over if problem.operator == "+" else written - over
    assert true == {"+": problem.a + problem.b, "-": problem.a - problem.b}[problem.operator]


@given(problems)
def test_more_effort_means_at_least_twice_the_reasoning(problem: sums.Sum) -> None:
    low, medium, high = (len(sums.reasoning(problem, effort)) for effort in dialogues.EFFORTS)
    assert low < medium < high
    assert high >= 2 * low


@pytest.mark.parametrize("topic", TOOL_TEMPLATES)
def test_a_templates_answers_quote_the_result_and_its_calls_repeat_the_request(topic: str) -> None:
    rng = random.Random(topic)
    for _ in range(30):
        tool = tools.draw_tool(rng, topic)
        use = tools.draw_use(rng, tool, Split.TRAINING)
        if use is None:  # a function without arguments whose only call is held out
            assert not tool.parameters
            continue
        assert quotes_result(use, Outcome(True, [dialogues.final(use.answer)], 0)), use
        for value in use.arguments.values():
            assert str(value) in use.question
        assert set(use.arguments) <= set((tool.schema or {"properties": {}})["properties"])


def test_prompts_are_what_harmony_renders_for_the_conversation_so_far(encoding: HarmonyEncoding) -> None:
    for group in training_groups(60):
        prefix, branches = group_tokens(encoding, group)
        for turns, tokens in zip(group.branches, branches, strict=True):
            last = turns[-1]
            before = [m for turn in turns[:-1] for m in (*turn.given, *turn.completion)]
            messages = [*group.setting.messages, *before, *last.given]
            prompt = encoding.render_conversation_for_completion(
                Conversation.from_messages(messages), Role.ASSISTANT
            )
            if any(
                not turn.past for turn in turns[:-1]
            ):  # its call is a target too: the same tokens, rendered
                assert any(m.recipient == "assistant" for m in last.given)
            assert [*prefix, *tokens.ids][: len(prompt)] == prompt


def test_only_what_the_assistant_says_now_is_trained_up_to_a_stop_token(encoding: HarmonyEncoding) -> None:
    stops = set(encoding.stop_tokens_for_assistant_actions())
    for group in training_groups(40):
        for turns in group.branches:
            tokens = branch_tokens(encoding, turns)
            trained = [token for token, flag in zip(tokens.ids, tokens.trained, strict=True) if flag]
            completions = []
            for token in trained:
                if not completions or completions[-1][-1] in stops:
                    completions.append([])
                completions[-1].append(token)
            assert len(completions) == sum(not turn.past for turn in turns)
            assert all(completion[-1] in stops for completion in completions)
            said = [m for turn in turns if not turn.past for m in turn.completion]
            parsed = [
                message
                for completion in completions
                for message in encoding.parse_messages_from_completion_tokens(completion, Role.ASSISTANT)
            ]
            assert [(m.channel, m.recipient, text_of(m)) for m in parsed] == [
                (m.channel, m.recipient, text_of(m)) for m in said
            ]
