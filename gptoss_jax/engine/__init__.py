"""The engine: many requests in, their completions out, a whole batch per dispatch."""

from gptoss_jax.engine.engine import Engine
from gptoss_jax.engine.options import EngineOptions
from gptoss_jax.engine.request import (
    ChannelLimit,
    Completion,
    Request,
    RequestError,
    SamplingParams,
    TokenLogprobs,
    Update,
)

__all__ = [
    "ChannelLimit",
    "Completion",
    "Engine",
    "EngineOptions",
    "Request",
    "RequestError",
    "SamplingParams",
    "TokenLogprobs",
    "Update",
]
