"""Parses completions into samples: reasoning, preamble, text, tool calls, usage and log-probabilities.

`read_sample` parses a finished completion, and `SampleReader` one that is still being generated. Both run the
same code, so the events of a stream add up to the sample of the finished completion. A sample may have
several completions, with calls of built-in tools between them: `SampleReader.add_result`.
"""

from gptoss_jax.answers.events import (
    BuiltInCallDone,
    BuiltInCallReady,
    Finished,
    PreambleDelta,
    ReasoningDelta,
    StreamEvent,
    TextDelta,
    ToolCallDelta,
    ToolCallReady,
)
from gptoss_jax.answers.messages import Kind, kind_of, renderable, text_of
from gptoss_jax.answers.reader import SampleReader, read_sample
from gptoss_jax.answers.sample import (
    AnswerReason,
    BuiltInCall,
    Sample,
    ScoredToken,
    ToolCall,
    Usage,
    usage_of,
)

__all__ = [
    "AnswerReason",
    "BuiltInCall",
    "BuiltInCallDone",
    "BuiltInCallReady",
    "Finished",
    "Kind",
    "PreambleDelta",
    "ReasoningDelta",
    "Sample",
    "SampleReader",
    "ScoredToken",
    "StreamEvent",
    "TextDelta",
    "ToolCall",
    "ToolCallDelta",
    "ToolCallReady",
    "Usage",
    "kind_of",
    "read_sample",
    "renderable",
    "text_of",
    "usage_of",
]
