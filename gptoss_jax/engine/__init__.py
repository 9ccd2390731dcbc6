"""The engine: takes many requests and returns their completions, with continuous batching.

Importing this package does not import jax, nor do its modules for requests, scheduling, pages and grammars.
The name `Engine` imports jax when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gptoss_jax.engine.errors import RequestError, RequestFailed
from gptoss_jax.engine.options import EngineOptions
from gptoss_jax.engine.request import (
    ChannelLimit,
    Completion,
    Request,
    SamplingParams,
    TokenLogprobs,
    Update,
)

if TYPE_CHECKING:
    from gptoss_jax.engine.engine import Engine

__all__ = [
    "ChannelLimit",
    "Completion",
    "Engine",
    "EngineOptions",
    "Request",
    "RequestError",
    "RequestFailed",
    "SamplingParams",
    "TokenLogprobs",
    "Update",
]


def __getattr__(name: str) -> Any:
    """Imports `Engine`, and with it jax, at its first use."""
    if name != "Engine":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from gptoss_jax.engine.engine import Engine

    return Engine
