"""The Python API: `LLM` takes prompts or conversations and returns parsed answers."""

from gptoss_jax.answers import (
    Finished,
    PreambleDelta,
    ReasoningDelta,
    Sample,
    StreamEvent,
    TextDelta,
    ToolCall,
    ToolCallReady,
    Usage,
)
from gptoss_jax.engine.engine_thread import EngineStopped
from gptoss_jax.llm.llm import LLM
from gptoss_jax.llm.prompts import Prompt, PromptOptions
from gptoss_jax.llm.results import Generation, ToolRun
from gptoss_jax.llm.streams import AsyncStream, Stream
from gptoss_jax.llm.tools import ToolError

__all__ = [
    "LLM",
    "AsyncStream",
    "EngineStopped",
    "Finished",
    "Generation",
    "PreambleDelta",
    "Prompt",
    "PromptOptions",
    "ReasoningDelta",
    "Sample",
    "Stream",
    "StreamEvent",
    "TextDelta",
    "ToolCall",
    "ToolCallReady",
    "ToolError",
    "ToolRun",
    "Usage",
]
