"""Keys and values in eight bits: a quarter of float32's memory, and hardly another answer."""

from __future__ import annotations

import numpy as np
import pytest

from gptoss_jax.engine import Completion, Request, SamplingParams
from gptoss_jax.llm.loading import load_engine
from harmony import Conversation, Message, Role
from tests import tiny_engine

SUMS = [(17 * number % 900 + 3, 31 * number % 800 + 5) for number in range(16)]


def completions(kv_dtype: str | None) -> tuple[dict[str, Completion], int]:
    """Greedy completions of sums by the embedded model, and the bytes of a page."""
    engine, encoding, _ = load_engine(
        "tiny", dtype=tiny_engine.DTYPE, kv_dtype=kv_dtype, **tiny_engine.OPTIONS
    )
    sampling = SamplingParams(temperature=0, max_tokens=64, logprobs=0)
    requests = []
    for number, (left, right) in enumerate(SUMS):
        conversation = Conversation.from_messages(
            [Message.from_role_and_content(Role.USER, f"What is {left} + {right}?")]
        )
        prompt = encoding.render_conversation_for_completion(conversation, Role.ASSISTANT)
        requests.append(Request(str(number), prompt, sampling))
    return {completion.id: completion for completion in engine.run(requests)}, engine.plan.page_bytes


@pytest.mark.slow
@pytest.mark.parametrize("kv_dtype", ["float8_e4m3fn"])
def test_eight_bits_take_a_quarter_of_the_memory_and_change_few_answers(kv_dtype: str) -> None:
    exact, page = completions(None)
    rounded, small_page = completions(kv_dtype)
    assert small_page * 4 == page
    same = [exact[name].tokens == rounded[name].tokens for name in exact]
    assert sum(same) >= len(SUMS) - 2
    differences = [
        abs(before.chosen - after.chosen)
        for name in exact
        for before, after in zip(exact[name].logprobs or (), rounded[name].logprobs or (), strict=False)
        if exact[name].tokens == rounded[name].tokens
    ]
    assert 0 < np.mean(differences) < 0.01  # rounded they are
