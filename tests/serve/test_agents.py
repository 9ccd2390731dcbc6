"""The Agents SDK in a tool loop of five turns: it passes the reasoning back, and no call is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from openai import AsyncOpenAI

from gptoss_jax.engine.request import Request
from gptoss_jax.serve.sealing import Sealer
from harmony import HarmonyEncoding
from tests.llm.fake_engine import FakeEngine, Script
from tests.serve.served import serving

TURNS = 5
SEALED: Any = ["reasoning.encrypted_content"]


def said_in(prompt: str) -> str:
    """A call for each turn; at last an answer that tells which thoughts of earlier turns the prompt has."""
    turn = prompt.count("<|start|>functions.double to=assistant")
    if turn < TURNS:
        return (
            f"<|channel|>analysis<|message|>Thought {turn}.<|end|><|start|>assistant"
            f'<|channel|>commentary to=functions.double <|constrain|>json<|message|>{{"a":{turn}}}<|call|>'
        )
    kept = [number for number in range(TURNS) if f"Thought {number}." in prompt]
    return f"<|channel|>final<|message|>Kept {kept}.<|return|>"


@pytest.fixture(scope="module")
def urls(encoding: HarmonyEncoding) -> Iterator[dict[str, str]]:
    """The addresses of a server that shows reasoning, and of one that hides it."""

    def script(request: Request, sample: int) -> Script:
        text = said_in(encoding.decode(request.prompt))
        return Script(encoding.encode(text, allowed_special="all"))

    def engine() -> FakeEngine:
        return FakeEngine(script, chunk=4, max_length=4000)

    sealer = Sealer(None)
    with (
        serving(engine(), encoding, sealer=sealer) as shown,
        serving(engine(), encoding, sealer=sealer, hide_reasoning=True) as hidden,
    ):
        yield {"shown": shown, "hidden": hidden}


async def run_agent(url: str, model: str, stream: bool, include: Any) -> tuple[str, list[int]]:
    """The last answer of an agent on a model class of the SDK, and what its function was called with."""
    import agents  # slow to load: only where its tests run
    from agents.run import RunConfig

    called: list[int] = []

    @agents.function_tool
    def double(a: int) -> str:
        """Doubles a number."""
        called.append(a)
        return str(2 * a)

    async with AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        settings = agents.ModelSettings(response_include=include, store=False)
        chosen = getattr(agents, model)(model="m", openai_client=client)
        agent = agents.Agent(name="a", tools=[double], model=chosen, model_settings=settings)
        config = RunConfig(tracing_disabled=True)
        if not stream:
            return (await agents.Runner.run(agent, "Go.", run_config=config)).final_output, called
        result = agents.Runner.run_streamed(agent, "Go.", run_config=config)
        async for _ in result.stream_events():
            pass
        return result.final_output, called


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("model", "server", "include"),
    [
        ("OpenAIResponsesModel", "shown", None),
        ("OpenAIResponsesModel", "shown", SEALED),
        ("OpenAIResponsesModel", "hidden", SEALED),
        ("OpenAIChatCompletionsModel", "shown", None),
    ],
)
def test_five_turns_keep_all_thoughts(
    urls: dict[str, str], model: str, server: str, include: Any, stream: bool
) -> None:
    answer, called = asyncio.run(run_agent(urls[server], model, stream, include))
    assert called == list(range(TURNS))
    assert answer == f"Kept {list(range(TURNS))}."


@pytest.mark.parametrize("model", ["OpenAIResponsesModel", "OpenAIChatCompletionsModel"])
def test_five_turns_without_the_thoughts_lose_no_call(urls: dict[str, str], model: str) -> None:
    answer, called = asyncio.run(run_agent(urls["hidden"], model, False, None))
    assert called == list(range(TURNS))
    assert answer == "Kept []."
