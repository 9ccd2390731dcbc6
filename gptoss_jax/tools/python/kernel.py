"""A Python kernel in processes of its own."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import os
import secrets
import sys
import tempfile
from pathlib import Path
from typing import Any

import zmq
import zmq.asyncio
from jupyter_client import AsyncKernelClient
from jupyter_client.connect import write_connection_file

from gptoss_jax.tools.python.limits import PythonLimits
from gptoss_jax.tools.python.supervisor import FREEZE, INTERRUPT, KILL, THAW

_HERE = Path(__file__).parent
_START_SECONDS = 120.0
_INTERRUPT_SECONDS = 10.0
"""How long a call may go on after it was interrupted, before the kernel is killed."""

_LAST_OUTPUT_SECONDS = 1.0
"""How long the end of the output is awaited after the reply to a call."""

_SOCKET_PATH_BYTES = 100
"""The longest path of a Unix socket that every system takes, with its number."""

_MESSAGE_BYTES = 1 << 18
"""The longest message that is taken from a kernel. Its session cuts output to less; code may undo it."""

_INHERITED = (
    "PATH",
    "PYTHONPATH",
    "VIRTUAL_ENV",
    "CONDA_PREFIX",
    "LD_LIBRARY_PATH",
    "DYLD_LIBRARY_PATH",
    "LANG",
    "LC_ALL",
    "LC_CTYPE",
    "TZ",
)
"""The environment variables that a kernel gets from this process: no keys, tokens or proxies."""


class KernelError(RuntimeError):
    """A kernel does not start. The message is one line that says why."""


@dataclasses.dataclass
class Execution:
    """What a call did.

    output: standard output and error, values shown and tracebacks, in the order in which they came.
    cut: how many characters of output were left out.
    interrupted: True if it was interrupted because its time was over.
    ended: why the kernel has ended, in words; None if it goes on.
    """

    output: list[str] = dataclasses.field(default_factory=list)
    cut: int = 0
    interrupted: bool = False
    ended: str | None = None


class Kernel:
    """A running kernel. Between calls all its processes stand still."""

    def __init__(self, process: asyncio.subprocess.Process, client: AsyncKernelClient, limits: PythonLimits):
        self._process = process
        self._client = client
        self._limits = limits
        self._report = asyncio.ensure_future(self._read_report())

    @classmethod
    async def start(cls, folder: Path, limits: PythonLimits) -> Kernel:
        """Starts a kernel that works in `folder/work`. If this process ends, the folder is removed.

        Raises:
            KernelError: it does not start.
        """
        run = Path(tempfile.mkdtemp(prefix="k", dir=folder))
        work = folder / "work"
        work.mkdir(exist_ok=True)
        connection_file = str(run / "c")
        transport, address = "ipc", str(run / "s")
        if len(os.fsencode(address)) > _SOCKET_PATH_BYTES:
            transport, address = "tcp", "127.0.0.1"
        key = secrets.token_hex(32).encode()
        write_connection_file(connection_file, ip=address, key=key, transport=transport)
        settings = {
            "command": [
                sys.executable,
                "-P",
                str(_HERE / "kernel_process.py"),
                connection_file,
                str(limits.output_characters),
            ],
            "memory_bytes": limits.memory_bytes,
            "processes": limits.processes,
            "folder": str(folder),
        }
        with open(run / "errors", "wb") as errors:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-I",
                "-S",
                str(_HERE / "supervisor.py"),
                json.dumps(settings),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=errors,
                cwd=work,
                env=_environment(work, run),
                start_new_session=True,  # Ctrl-C at the terminal is for this process alone
            )
        context = zmq.asyncio.Context()
        context.setsockopt(zmq.MAXMSGSIZE, _MESSAGE_BYTES)
        client = AsyncKernelClient(context=context)
        client.load_connection_file(connection_file)
        kernel = cls(process, client, limits)
        try:
            client.start_channels(stdin=False, hb=False, control=False)
            async with asyncio.timeout(_START_SECONDS):
                ended = await kernel._unless_ended(kernel._ready())
            if ended is not None:
                lines = (run / "errors").read_text(errors="replace").split("\n")
                said = next((line for line in reversed(lines) if line.strip()), ended)
                raise KernelError(f"the Python kernel does not start: {said.strip()}")
        except TimeoutError:
            await kernel.close()
            raise KernelError(f"the Python kernel did not start in {_START_SECONDS:.0f} seconds") from None
        except BaseException:
            await kernel.close()
            raise
        kernel._command(FREEZE)
        return kernel

    @property
    def has_ended(self) -> str | None:
        """Why the kernel has ended, in words; None if it runs."""
        return _ending(self._report.result()) if self._report.done() else None

    async def execute(self, code: str) -> Execution:
        """Runs code. Cancelling the task interrupts it; if that does not end it, the kernel is killed."""
        execution = Execution()
        self._command(THAW)
        running = asyncio.ensure_future(self._execute(code, execution))
        try:
            ended = await self._unless_ended(self._in_time(running, execution))
        except asyncio.CancelledError:
            await self._interrupt(running)
            raise
        finally:
            if not running.done():
                running.cancel()
            if not self._report.done():
                self._command(FREEZE)
        execution.ended = execution.ended or ended
        return execution

    async def close(self) -> None:
        """Ends the kernel and all processes that it started."""
        self._command(KILL)
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            async with asyncio.timeout(_INTERRUPT_SECONDS):
                await self._process.wait()
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()
        await self._report
        self._client.stop_channels()
        # It waits for a thread of its own, and the event loop need not.
        await asyncio.to_thread(self._client.context.destroy, linger=0)

    async def _ready(self) -> None:
        """Waits until the kernel answers, and its output arrives here."""
        while True:
            request = self._client.kernel_info()
            while (await self._client.get_shell_msg())["parent_header"].get("msg_id") != request:
                pass
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LAST_OUTPUT_SECONDS):
                    while (await self._client.get_iopub_msg())["parent_header"].get("msg_id") != request:
                        pass
                    return

    async def _in_time(self, running: asyncio.Future[None], execution: Execution) -> None:
        """Waits for a call, for as long as it may run."""
        done, _ = await asyncio.wait({running}, timeout=self._limits.seconds)
        if not done:
            execution.interrupted = True
            if not await self._interrupt(running):
                execution.ended = "it did not end when it was interrupted, and was killed"
                return
        running.result()

    async def _interrupt(self, running: asyncio.Future[None]) -> bool:
        """Interrupts the call. Returns False if that did not help: then the kernel is killed."""
        self._command(INTERRUPT)
        either: set[asyncio.Future[Any]] = {running, self._report}
        await asyncio.wait(either, timeout=_INTERRUPT_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        if not running.done():
            self._command(KILL)
            await self._report
        return running.done()

    async def _execute(self, code: str, execution: Execution) -> None:
        request = self._client.execute(code, allow_stdin=False)
        reader = asyncio.ensure_future(self._read_output(request, execution))
        # What cannot be read ends the output and not the call.
        reader.add_done_callback(lambda task: task.cancelled() or task.exception())
        try:
            while True:
                reply = await self._client.get_shell_msg()
                if reply["parent_header"].get("msg_id") == request:
                    break
            # The last message of the output can be lost, where there was too much of it.
            await asyncio.wait({reader}, timeout=_LAST_OUTPUT_SECONDS)
        finally:
            reader.cancel()
        content = reply["content"]
        execution.cut += _count(content.get("cut"))
        for entry in content.get("payload", []):
            if entry.get("source") == "ask_exit":
                execution.ended = "the code asked it to"
                self._command(KILL)
            else:
                text = str(entry.get("text", ""))
                execution.output.append(text[: self._limits.output_characters] + "\n")

    async def _read_output(self, request: str, execution: Execution) -> None:
        """Collects the output, until the kernel says that it is idle."""
        left = self._limits.output_characters
        errors_left = left + 1000  # an error is never left out because of what was printed before it
        while True:
            message = await self._client.get_iopub_msg()
            kind, content = message["header"]["msg_type"], message["content"]
            is_own = message["parent_header"].get("msg_id") == request
            if kind == "status" and is_own and content.get("execution_state") == "idle":
                return
            if kind == "error" and is_own:
                text = "\n".join(map(str, content.get("traceback", [])))[:errors_left] + "\n"
                errors_left -= len(text)
                execution.output.append(text)
                continue
            # Threads of earlier calls may write too.
            text = _shown(kind, content)
            execution.output.append(text[:left])
            execution.cut += max(len(text) - left, 0)
            left -= min(len(text), left)

    async def _unless_ended(self, coroutine: Any) -> str | None:
        """Waits for the coroutine, or for the kernel's end, of which it returns the reason.

        A message from the kernel that cannot be read ends it.
        """
        task = asyncio.ensure_future(coroutine)
        try:
            await asyncio.wait({task, self._report}, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                try:
                    task.result()
                except (ValueError, TypeError, KeyError, AttributeError, zmq.ZMQError):
                    self._command(KILL)
                    await self._report
                    return "it sent a message that cannot be read, and was killed"
                return None
            return _ending(self._report.result())
        finally:
            task.cancel()

    def _command(self, command: bytes) -> None:
        stdin = self._process.stdin
        if stdin is not None and not stdin.is_closing():
            stdin.write(command)

    async def _read_report(self) -> dict[str, Any]:
        """The supervisor's report, when the kernel has ended; empty if the supervisor was killed."""
        assert self._process.stdout is not None
        try:
            report = json.loads(await self._process.stdout.readline())
        except ValueError:
            report = {}
        return report if isinstance(report, dict) else {}


def _environment(work: Path, run: Path) -> dict[str, str]:
    """A kernel's environment variables."""
    inherited = {name: os.environ[name] for name in _INHERITED if name in os.environ}
    return {
        **inherited,
        "HOME": str(work),
        "TMPDIR": str(work),
        "IPYTHONDIR": str(run / "ipython"),
        "JUPYTER_PREFER_ENV_PATH": "0",
        "PYTHONIOENCODING": "utf-8:replace",
        "OMP_NUM_THREADS": "4",
        "OPENBLAS_NUM_THREADS": "4",
        "CUDA_VISIBLE_DEVICES": "",  # the accelerator is the engine's
        "JAX_PLATFORMS": "cpu",
    }


def _ending(report: dict[str, Any]) -> str:
    """Why a kernel has ended, in words."""
    reason, status = report.get("reason"), report.get("status")
    if reason == "processes":
        return "it had more processes than it may have, and was killed"
    if reason == "memory":
        return "it used more memory than it may, and was killed"
    if reason == "exit" and isinstance(status, int) and status >= 0:
        return f"its process exited with status {status}"
    if reason == "exit" and isinstance(status, int):
        return f"its process was ended by signal {-status}"
    return "it was killed"


def _shown(kind: str, content: dict[str, Any]) -> str:
    """The text that a message of the output adds."""
    if kind == "stream":
        return str(content.get("text", ""))
    if kind in ("display_data", "execute_result"):
        data = content.get("data", {})
        others = ", ".join(map(str, data.get("others", [])))
        return str(data.get("text/plain", "")) + "\n" + (f"[not shown: {others}]\n" if others else "")
    return ""


def _count(value: object) -> int:
    return value if isinstance(value, int) else 0
