"""Streams two answers at the same time. Leaving a loop early would cancel its request."""

import asyncio

from gptoss_jax import LLM, SamplingParams
from gptoss_jax.llm import Finished, TextDelta


async def show(llm: LLM, question: str) -> None:
    """Prints an answer as it is generated."""
    async for event in llm.astream(question, SamplingParams(temperature=0), effort="low"):
        if isinstance(event, TextDelta):
            print(f"{question} → …{event.text}")
        elif isinstance(event, Finished):
            print(f"{question} took {event.result.usage.generated_tokens} tokens")


async def main() -> None:
    """Asks two questions at the same time."""
    with LLM("tiny") as llm:
        await asyncio.gather(show(llm, "What is 214 + 387?"), show(llm, "Who are you?"))


asyncio.run(main())
