"""The built-in tools that run beside the model: a Python session and a browser.

A `Tool` is what a command line names; each conversation has a session of it. `ToolSessions` are those of one
conversation, and run the calls that the model makes.
"""

from gptoss_jax.tools.sessions import ToolSessions
from gptoss_jax.tools.types import Tool, ToolSession, answer_to, text_of

__all__ = ["Tool", "ToolSession", "ToolSessions", "answer_to", "text_of"]
