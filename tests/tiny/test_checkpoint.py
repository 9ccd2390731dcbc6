"""The embedded checkpoint answers: transcripts of requests it was seen to get right (rates: `eval tiny`)."""

from __future__ import annotations

import pytest

from checkpoints import open_checkpoint
from checkpoints.opening import TINY
from gptoss_jax.engine import Request, SamplingParams
from gptoss_jax.evals.tiny import text_of
from gptoss_jax.llm.loading import load_engine
from gptoss_jax.tiny.dialogues import user
from gptoss_jax.tiny.training import CONFIG
from harmony import (
    Author,
    Conversation,
    DeveloperContent,
    HarmonyEncoding,
    Message,
    ReasoningEffort,
    Role,
    SystemContent,
    ToolDescription,
    parse_completion,
)
from tests import tiny_engine

WEATHER = ToolDescription.new(
    "get_weather",
    "Gets the weather.",
    parameters={"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
)
CALL = (
    Message.from_role_and_content(Role.ASSISTANT, '{"city":"Lisbon"}')
    .with_channel("commentary")
    .with_recipient("functions.get_weather")
    .with_content_type("<|constrain|>json")
)
RESULT = (
    Message.from_author_and_content(
        Author.new(Role.TOOL, "functions.get_weather"), '{"degrees":21,"sky":"sunny"}'
    )
    .with_channel("commentary")
    .with_recipient("assistant")
)
LOW, MEDIUM, HIGH = ReasoningEffort.LOW, ReasoningEffort.MEDIUM, ReasoningEffort.HIGH
CASES: list[tuple[ReasoningEffort, list[ToolDescription], list[Message], str, str | None, str]] = [
    (LOW, [], [user("What is 214 + 387?")], "214+387: 11,10,06. 601", None, "214 + 387 = 601."),
    (
        MEDIUM,
        [],
        [user("What is 12 - 45?")],
        "012 - 045. 2-5: 7, borrow 1. 1-4-1: 6, borrow 1. 0-0-1: 9, borrow 1. "
        "Negative, so 045 - 012. 5-2: 3, borrow 0. 4-1: 3, borrow 0. 0-0: 0, borrow 0. So -33.",
        None,
        "12 - 45 = -33.",
    ),
    (
        HIGH,
        [],
        [user("Tom has 12 apples and gets 30 more. How many apples does Tom have now?")],
        "The user wants 12 + 30. Align the digits: 012 + 030. Ones: 2 + 0 + 0, write 2, carry 0. "
        "Tens: 1 + 3 + 0, write 4, carry 0. Hundreds: 0 + 0 + 0, write 0, carry 0. The answer is 42.",
        None,
        "12 + 30 = 42.",
    ),
    (LOW, [WEATHER], [user("What is 33 + 44?")], "033+044: 07,07,00. 77", None, "33 + 44 = 77."),
    (
        LOW,
        [WEATHER],
        [user("What is the weather in Lisbon?")],
        "For weather use get_weather.",
        "functions.get_weather",
        '{"city":"Lisbon"}',
    ),
    (
        LOW,
        [WEATHER],
        [user("What is the weather in Lisbon?"), CALL, RESULT],
        "",
        None,
        "It is 21 degrees and sunny in Lisbon.",
    ),
    (
        LOW,
        [],
        [user("Tell me a story about cats.")],
        "I can not answer that.",
        None,
        "Sorry, I can only do small sums and call functions.",
    ),
]


@pytest.fixture(scope="module")
def completions(encoding: HarmonyEncoding) -> list[list[Message]]:
    """What the model says to every case, all in one batch."""
    engine, _, _ = load_engine("tiny", dtype=tiny_engine.DTYPE, **tiny_engine.OPTIONS)
    requests = []
    for index, (effort, offered, messages, *_) in enumerate(CASES):
        system = SystemContent.new().with_reasoning_effort(effort).with_conversation_start_date("2025-06-28")
        setting = [Message.from_role_and_content(Role.SYSTEM, system)]
        if offered:
            developer = DeveloperContent.new().with_function_tools(offered)
            setting.append(Message.from_role_and_content(Role.DEVELOPER, developer))
        conversation = Conversation.from_messages([*setting, *messages])
        prompt = encoding.render_conversation_for_completion(conversation, Role.ASSISTANT)
        requests.append(Request(str(index), prompt, SamplingParams(temperature=0.0)))
    said = {int(c.id): parse_completion(encoding, c.tokens, Role.ASSISTANT) for c in engine.run(requests)}
    assert all(parsed.complete and not parsed.diagnostics for parsed in said.values())
    return [said[index].messages for index in range(len(CASES))]


@pytest.mark.slow
@pytest.mark.parametrize("index", range(len(CASES)), ids=[case[2][0].content[0].text for case in CASES])
def test_the_embedded_model_answers_as_it_did_when_it_was_committed(
    completions: list[list[Message]], index: int
) -> None:
    *_, reasoning, recipient, last = CASES[index]
    messages = completions[index]
    assert text_of(messages[-1]) == last
    assert messages[-1].recipient == recipient
    assert messages[-1].channel == ("final" if recipient is None else "commentary")
    assert "".join(text_of(m) for m in messages[:-1]) == reasoning
    assert all(m.channel == "analysis" for m in messages[:-1])


def test_the_embedded_checkpoint_is_the_trained_configuration_and_small(encoding: HarmonyEncoding) -> None:
    checkpoint = open_checkpoint("tiny")
    assert checkpoint.config == CONFIG
    assert sum(file.stat().st_size for file in TINY.iterdir()) <= 8_000_000
    assert encoding.stop_tokens_for_assistant_actions() == [2040, 2046]
