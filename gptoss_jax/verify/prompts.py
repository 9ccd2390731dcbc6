"""The fixed prompts that logits are compared on."""

from __future__ import annotations

from collections.abc import Mapping

from gptoss_jax.llm.prompts import PromptOptions, rendered_prompt
from harmony import HarmonyEncoding

DATE = "2025-08-05"

WEATHER: Mapping[str, object] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Tells the weather in a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}

QUESTION = "What is the weather in Lisbon?"

_NUMBERS = ", ".join(f"{7 * index % 100} + {index}" for index in range(1, 25))


def prompts(encoding: HarmonyEncoding) -> dict[str, list[int]]:
    """Name → tokens. The longest is longer than the published models' window of 128 tokens."""
    asked: dict[str, tuple[str, PromptOptions]] = {
        "sum": ("What is 214 + 387?", {"effort": "low"}),
        "call": (QUESTION, {"effort": "medium", "tools": [WEATHER]}),
        "long": (f"Here are some sums: {_NUMBERS}. What is 14 + 28?", {"effort": "high"}),
    }
    return {
        name: rendered_prompt(text, {**options, "date": DATE}, encoding).tokens
        for name, (text, options) in asked.items()
    }
