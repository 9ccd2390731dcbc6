"""An agent of OpenAI's Agents SDK that calls a function, through both APIs."""

import asyncio
import os

from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from openai import AsyncOpenAI

URL = os.environ.get("GPTOSS_JAX_URL", "http://127.0.0.1:8000/v1")


@function_tool
def get_weather(city: str) -> str:
    """Get the weather."""
    print("get_weather was called for", city)
    return '{"degrees":21,"sky":"sunny"}'


async def main() -> None:
    """Asks the same through Responses and through Chat Completions."""
    set_tracing_disabled(True)
    async with AsyncOpenAI(base_url=URL, api_key="none") as client:
        name = (await client.models.list()).data[0].id
        for model in (
            OpenAIResponsesModel(model=name, openai_client=client),
            OpenAIChatCompletionsModel(model=name, openai_client=client),
        ):
            agent = Agent(
                name="forecaster",
                tools=[get_weather],
                model=model,
                model_settings=ModelSettings(tool_choice="required", temperature=0, max_tokens=200),
            )
            result = await Runner.run(agent, "What is the weather in Oslo?")
            print("answer:", result.final_output)


asyncio.run(main())
