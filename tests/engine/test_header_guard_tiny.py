"""Where the embedded model writes valid headers, the header guard changes nothing and costs no step."""

from __future__ import annotations

import re

import pytest

from gptoss_jax.engine import Engine, Request, SamplingParams
from gptoss_jax.engine.grammar import HeaderGuard
from gptoss_jax.llm.loading import load_engine
from gptoss_jax.llm.prompts import conversation_of
from harmony import HarmonyEncoding, Role
from tests import tiny_engine

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Gets the weather.",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}},
                "required": ["city"],
            },
        },
    }
]
QUESTIONS = [
    "What is 2 + 3?",
    "Who are you?",
    "What is 41 + 17?",
    "What is the weather in Paris?",
    "What is the weather in Oslo?",
    "Hello!",
    "What time is it?",
    "Write a poem about rain.",
]
CALL = (
    r" to=functions\.get_weather<\|channel\|>(?:analysis|commentary)"
    r"|<\|channel\|>(?:analysis|commentary) to=functions\.get_weather"
)
MESSAGES = (
    r"<\|channel\|>(?:analysis|commentary)<\|message\|>[^<]*(?:<\|end\|>|$)",
    r"<\|channel\|>final<\|message\|>[^<]*(?:<\|return\|>|$)",
    rf"(?:{CALL})(?: ?<\|constrain\|>json)?<\|message\|>[^<]*(?:<\|call\|>|$)",
)


@pytest.fixture(scope="module")
def loaded() -> tuple[Engine, HarmonyEncoding]:
    """The embedded model."""
    engine, encoding, _ = load_engine("tiny", dtype=tiny_engine.DTYPE, **tiny_engine.OPTIONS)
    return engine, encoding


def is_valid(text: str) -> bool:
    """Whether a completion is whole messages as the format has them; the last may be cut in its content."""
    messages = re.split(r"(?<=<\|end\|>)<\|start\|>assistant", text)
    return all(any(re.fullmatch(kind, one) for kind in MESSAGES) for one in messages)


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_where_the_model_writes_valid_headers_the_tokens_and_the_work_are_equal(
    loaded: tuple[Engine, HarmonyEncoding], temperature: float
) -> None:
    engine, encoding = loaded
    requests: dict[bool, list[Request]] = {False: [], True: []}
    for number, question in enumerate(QUESTIONS * 2):
        tools = TOOLS if number >= len(QUESTIONS) else None
        asked = conversation_of(question, {"tools": tools, "effort": "low", "date": "2026-01-02"})
        prompt = encoding.render_conversation_for_completion(asked, Role.ASSISTANT)
        for guarded, made in requests.items():
            guard = HeaderGuard.for_conversation(asked) if guarded else None
            sampling = SamplingParams(temperature=temperature, max_tokens=200, header_guard=guard)
            made.append(Request(f"{number}", prompt, sampling))
    work, texts = {}, {}
    for guarded, made in requests.items():
        list(engine.run(made))  # so that both find the same prompts in the cache
        before = engine.statistics.copy()
        texts[guarded] = {one.id: encoding.decode(one.tokens) for one in engine.run(made)}
        done = engine.statistics - before
        work[guarded] = (done.dispatches, done.row_steps, done.generated_tokens, done.refused_tokens)
    valid = [id for id, text in texts[False].items() if is_valid(text)]
    assert len(valid) >= len(QUESTIONS)
    assert any("to=functions." in texts[False][id] for id in valid)
    assert {id: texts[True][id] for id in valid} == {id: texts[False][id] for id in valid}
    if len(valid) == len(texts[False]):
        assert work[True] == work[False]
    assert all(is_valid(text) for text in texts[True].values())
