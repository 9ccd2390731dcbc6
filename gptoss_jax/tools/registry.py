"""The built-in tools by the names that a command line gives them."""

from __future__ import annotations

import dataclasses
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gptoss_jax.tools.types import Tool


class ToolSetupError(ValueError):
    """A tool cannot be made of what was given. The message is one line that says why."""


@dataclasses.dataclass(frozen=True)
class ToolSettings:
    """Settings of the tools. A field that is None stands for the tool's default.

    python_seconds: how long a call of Python may run.
    python_memory_bytes: the memory that a Python session may use.
    """

    python_seconds: float | None = None
    python_memory_bytes: int | None = None


def open_tool(specification: str, settings: ToolSettings | None = None) -> Tool:
    """The tool that a specification names, "python", "browser=FOLDER" or "browser=brave".

    Raises:
        KeyError: there is no such tool.
        ToolSetupError: it cannot be made so.
        ImportError: a package of the extra `tools` is missing.
    """
    settings = settings or ToolSettings()
    name, separator, value = specification.partition("=")
    if name == "python" and not separator:
        return _python(settings)
    if name == "browser" and value:
        return _browser(value)
    raise KeyError(specification)


def _python(settings: ToolSettings) -> Tool:
    from gptoss_jax.tools.python.limits import PythonLimits
    from gptoss_jax.tools.python.tool import PythonTool

    limits = PythonLimits()
    return PythonTool(
        dataclasses.replace(
            limits,
            seconds=settings.python_seconds or limits.seconds,
            memory_bytes=settings.python_memory_bytes or limits.memory_bytes,
        )
    )


def _browser(where: str) -> Tool:
    from gptoss_jax.tools.browser.backend import BackendError
    from gptoss_jax.tools.browser.tool import BrowserTool

    if where == "brave":
        from gptoss_jax.tools.browser.brave import KEY_VARIABLE, BraveBackend

        key = os.environ.get(KEY_VARIABLE, "").strip()
        if not (key and key.isascii() and key.isprintable()):
            raise ToolSetupError(f"browser=brave needs an API key in the environment variable {KEY_VARIABLE}")
        return BrowserTool(BraveBackend(key))
    from gptoss_jax.tools.browser.folder import FolderBackend

    try:
        return BrowserTool(FolderBackend(os.path.expanduser(where)))
    except BackendError as error:
        raise ToolSetupError(f"browser={where}: {error}") from None
