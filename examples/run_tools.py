"""Lets the model call a Python function. Its schema comes from the signature and the docstring."""

from gptoss_jax import LLM, SamplingParams


def get_weather(city: str) -> dict[str, int | str]:
    """Gets the weather."""
    return {"degrees": 21, "sky": "sunny"}


with LLM("tiny") as llm:
    run = llm.run_tools(
        "What is the weather in Oslo?", {"get_weather": get_weather}, SamplingParams(temperature=0)
    )
    for message in run.conversation:
        print(message.to_dict())
    print(run.generation.text)
