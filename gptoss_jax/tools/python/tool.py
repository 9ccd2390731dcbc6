"""The built-in tool `python`."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from pathlib import Path

from gptoss_jax.tools.python.code import code_of
from gptoss_jax.tools.python.kernel import Execution, Kernel, KernelError
from gptoss_jax.tools.python.limits import PythonLimits
from gptoss_jax.tools.python.text import readable
from gptoss_jax.tools.types import ToolSession, answer_to, text_of
from harmony import Message, ToolNamespaceConfig

_GONE = "Its variables are gone; the next call begins a new session in the same folder"


class PythonTool:
    """Runs the model's Python code in a Jupyter kernel. It is no sandbox: see docs/tools.md."""

    name = "python"

    def __init__(self, limits: PythonLimits | None = None) -> None:
        """`limits`: what each session may use; None for the defaults."""
        self._limits = limits or PythonLimits()

    @property
    def declaration(self) -> ToolNamespaceConfig:
        """The tool's entry in the system message, with the time limit that holds."""
        declaration = ToolNamespaceConfig.python()
        trained = f"{PythonLimits().seconds} seconds"
        text = (declaration.description or "").replace(trained, f"{float(self._limits.seconds)} seconds")
        return declaration.model_copy(update={"description": text})

    def session(self) -> ToolSession:
        """A new session; its kernel starts at the first call."""
        return PythonSession(self._limits)


class PythonSession:
    """A kernel and its working folder. Calls run one after another."""

    def __init__(self, limits: PythonLimits) -> None:
        self._limits = limits
        self._lock = asyncio.Lock()
        self._folder: Path | None = None
        self._kernel: Kernel | None = None

    async def run(self, call: Message) -> Message:
        """See `ToolSession`."""
        async with self._lock:
            try:
                return answer_to(call, await self._run(code_of(text_of(call))))
            except (KernelError, OSError) as error:
                await self._drop_kernel()
                return answer_to(call, f"[The code was not run: {error}.]")
            except asyncio.CancelledError:
                if self._kernel is not None and self._kernel.has_ended is not None:
                    await self._drop_kernel()
                raise

    async def close(self) -> None:
        """See `ToolSession`."""
        async with self._lock:
            await self._drop_kernel()
            if self._folder is not None:
                shutil.rmtree(self._folder, ignore_errors=True)
                self._folder = None

    async def _run(self, code: str) -> str:
        note = ""
        if self._kernel is not None and self._kernel.has_ended is not None:
            note = f"[The Python session had ended: {self._kernel.has_ended}. This is a new one.]\n"
            await self._drop_kernel()
        if self._kernel is None:
            if self._folder is None:
                self._folder = Path(tempfile.mkdtemp(prefix="gptoss-python-"))
            self._kernel = await Kernel.start(self._folder, self._limits)
        execution = await self._kernel.execute(code)
        if execution.ended is not None:
            await self._drop_kernel()
        return note + self._described(execution)

    async def _drop_kernel(self) -> None:
        if self._kernel is not None:
            kernel, self._kernel = self._kernel, None
            await kernel.close()

    def _described(self, execution: Execution) -> str:
        """The answer to a call: its output, and what else the model must know."""
        output = readable("".join(execution.output)).rstrip("\n")
        notes = []
        if execution.cut:
            shown = self._limits.output_characters
            notes.append(f"[The output is cut: {shown} of {shown + execution.cut} characters are shown.]")
        if execution.interrupted:
            notes.append(f"[The call ran for {self._limits.seconds:g} seconds and was interrupted.]")
        if execution.ended is not None:
            notes.append(f"[The Python session has ended: {execution.ended}. {_GONE}.]")
        if not output and not notes:
            notes.append("[no output; print(…) or a last line that is an expression shows values]")
        return "\n".join(filter(None, [output, *notes]))
