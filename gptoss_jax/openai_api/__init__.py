"""OpenAI's APIs without HTTP: request bodies in, the objects and the stream events that answer them out.

`prepare` turns a body of Chat Completions or Responses into a request for the engine. `chat_completion` and
`response` turn the samples that the engine made of it into the object that answers it; `ChatStream` and
`ResponseStream` turn the events of samples in progress into those of a stream, which add up to that object.
"""

from gptoss_jax.openai_api.chat_stream import ChatStream
from gptoss_jax.openai_api.errors import ApiError, error_object
from gptoss_jax.openai_api.fields import PATHS, UnknownField
from gptoss_jax.openai_api.json_text import parse_object
from gptoss_jax.openai_api.objects import chat_completion
from gptoss_jax.openai_api.request import Context, Prepared, Rounds, prepare
from gptoss_jax.openai_api.response_object import ResponseMaker, response
from gptoss_jax.openai_api.response_stream import ResponseStream

__all__ = [
    "PATHS",
    "ApiError",
    "ChatStream",
    "Context",
    "Prepared",
    "ResponseMaker",
    "ResponseStream",
    "Rounds",
    "UnknownField",
    "chat_completion",
    "error_object",
    "parse_object",
    "prepare",
    "response",
]
