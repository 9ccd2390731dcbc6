"""The Python API: prompts or conversations in, parsed answers out."""

from gptoss_jax.llm.answer import Answer, read_answer
from gptoss_jax.llm.engine_thread import EngineStopped
from gptoss_jax.llm.llm import LLM
from gptoss_jax.llm.prompts import Prompt, PromptOptions
from gptoss_jax.llm.results import (
    Finished,
    Generation,
    PreambleDelta,
    ReasoningDelta,
    Sample,
    StreamEvent,
    TextDelta,
    ToolCall,
    ToolCallReady,
    ToolRun,
    Usage,
)
from gptoss_jax.llm.streams import AsyncStream, Stream
from gptoss_jax.tools import ToolError

__all__ = [
    "LLM",
    "Answer",
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
    "read_answer",
]
