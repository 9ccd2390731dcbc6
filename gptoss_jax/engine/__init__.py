"""The engine: many requests in, their completions out, a whole batch per dispatch."""

from gptoss_jax.engine.engine import Engine
from gptoss_jax.engine.request import Completion, Request, RequestError, SamplingParams

__all__ = ["Completion", "Engine", "Request", "RequestError", "SamplingParams"]
