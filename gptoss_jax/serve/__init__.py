"""OpenAI's two APIs over HTTP: an ASGI application in front of one engine.

`create_app` makes the application, `run_server` serves it until it is told to stop. What a request means and
what answers it is decided in `gptoss_jax.openai_api`; here are HTTP, streams, limits, keys and figures.
"""

from gptoss_jax.serve.app import create_app
from gptoss_jax.serve.server import run_server
from gptoss_jax.serve.settings import ServerSettings

__all__ = ["ServerSettings", "create_app", "run_server"]
