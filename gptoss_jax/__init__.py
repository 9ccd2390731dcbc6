"""Run OpenAI's gpt-oss models on JAX, with experts that stay in MXFP4.

`LLM` is the Python API::

    from gptoss_jax import LLM, SamplingParams

    with LLM("tiny") as llm:
        for output in llm.generate(["What is 2 + 3?", "What is 4 + 5?"], SamplingParams(temperature=0)):
            print(output.text)
"""

from __future__ import annotations

import importlib
import logging
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gptoss_jax.engine import RequestError, SamplingParams
    from gptoss_jax.engine.request import ChannelLimit
    from gptoss_jax.llm import LLM, Generation, Sample

logging.getLogger(__name__).addHandler(logging.NullHandler())  # no output unless a program asks for it

_HOMES = {
    "LLM": "gptoss_jax.llm",
    "Generation": "gptoss_jax.llm",
    "Sample": "gptoss_jax.llm",
    "SamplingParams": "gptoss_jax.engine.request",
    "ChannelLimit": "gptoss_jax.engine.request",
    "RequestError": "gptoss_jax.engine.request",
}

__all__ = ["LLM", "ChannelLimit", "Generation", "RequestError", "Sample", "SamplingParams"]


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})


def __getattr__(name: str) -> Any:
    """Imports a name at its first use, so that commands without JAX do not wait for it."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
