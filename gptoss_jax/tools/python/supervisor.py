"""The process between the engine's and the Python kernel's: it starts the kernel, and holds it to its limits.

It runs as a script, with the standard library alone. Its standard input is its lifeline: one byte is a
command, and the end of it, which comes even if the other side is killed, means that all must end. When the
kernel has ended it reports one line of JSON on standard output, `{"reason": "exit", "status": STATUS}`. The
reason is "exit", "processes", "memory", "killed" or "closed"; the status is that of
`os.waitstatus_to_exitcode`.

On Linux all descendants of the kernel are watched and ended, also those that have left its process group.
Elsewhere that is the process group alone.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import select
import signal
import sys
from collections.abc import Callable

INTERRUPT, FREEZE, THAW, KILL = b"i", b"f", b"t", b"k"

_TICK_MS = 50
"""How often the limits are checked while a call runs."""

_SET_PARENT_DEATH_SIGNAL = 1
_SET_CHILD_SUBREAPER = 36
"""Options of Linux' prctl(2)."""

_FILE_BYTES = 1 << 30
"""The longest file that the kernel may write."""

_TASKS_BEYOND = 4096
"""How many tasks (processes and threads) the user may have beyond those of now. The system counts them per
user and not per session, so this is no more than a net under a fork bomb that is faster than the checks."""


def main() -> None:
    """Runs the command of the first argument, a JSON object, until it ends or must end."""
    settings = json.loads(sys.argv[1])
    prctl = _prctl()
    prctl(_SET_CHILD_SUBREAPER, 1)  # so that what the kernel leaves behind becomes a child of this process
    kernel = _start(settings["command"], settings["memory_bytes"], prctl)
    reason, status = _watch(kernel, settings["memory_bytes"], settings["processes"])
    remains = _end_all(kernel)
    status = remains if status is None else status
    if reason == "closed" and settings["folder"] is not None:
        import shutil

        shutil.rmtree(settings["folder"], ignore_errors=True)
    try:
        print(json.dumps({"reason": reason, "status": status}), flush=True)
    except OSError:  # nobody listens any more
        os._exit(0)


def _prctl() -> Callable[[int, int], object]:
    """Linux' prctl with two arguments; a function that does nothing where there is none."""
    function = getattr(ctypes.CDLL(None), "prctl", None)
    if function is None:
        return lambda option, value: None
    return lambda option, value: function(option, ctypes.c_ulong(value), 0, 0, 0)


def _start(command: list[str], memory: int, prctl: Callable[[int, int], object]) -> int:
    """Starts the command in a process group of its own, and returns its process id."""
    parent = os.getpid()
    tasks = _tasks_of_user()
    pid = os.fork()
    if pid:
        return pid
    try:
        os.setpgid(0, 0)
        prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
        nowhere = os.open(os.devnull, os.O_RDWR)
        os.dup2(nowhere, 0)
        os.dup2(nowhere, 1)  # standard error stays: it is where a kernel says why it does not start
        # A tenth is left for what does not count as data, so that one process gets a MemoryError and is not
        # killed.
        _limit(resource.RLIMIT_DATA, memory - memory // 10)
        _limit(resource.RLIMIT_FSIZE, _FILE_BYTES)
        _limit(resource.RLIMIT_CORE, 0)
        if tasks is not None:
            _limit(resource.RLIMIT_NPROC, tasks + _TASKS_BEYOND)
        os.nice(3)  # what checks the limits comes first
        os.execv(command[0], command)
    finally:
        os._exit(127)


def _limit(kind: int, value: int) -> None:
    _, hard = resource.getrlimit(kind)
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(kind, (value, value))


def _tasks_of_user() -> int | None:
    """How many tasks this process' user has; None where the system does not say."""
    try:
        names = os.listdir("/proc")
    except OSError:
        return None
    count, user = 0, os.getuid()
    for name in names:
        try:
            if name.isdigit() and os.stat(f"/proc/{name}").st_uid == user:
                count += len(os.listdir(f"/proc/{name}/task"))
        except OSError:
            continue
    return count


def _watch(kernel: int, memory: int, processes: int) -> tuple[str, int | None]:
    """Carries out commands and checks the limits until something must end it: the reason, and the status."""
    poll = select.poll()
    poll.register(0, select.POLLIN)
    frozen = False
    while True:
        ready = poll.poll(20 * _TICK_MS if frozen else _TICK_MS)
        command = os.read(0, 1) if ready else None
        if command in (b"", KILL):
            return "closed" if command == b"" else "killed", None
        if command == INTERRUPT:
            _signal_group(kernel, signal.SIGINT)
        elif command in (FREEZE, THAW):
            frozen = command == FREEZE
            _signal_all(kernel, signal.SIGSTOP if frozen else signal.SIGCONT)
        status = _reap(kernel)
        if status is not None:
            return "exit", status
        members = _descendants(os.getpid())
        if len(members) > processes:
            return "processes", None
        if sum(map(_resident, members)) > memory and sum(map(_proportional, members)) > memory:
            return "memory", None


def _end_all(kernel: int) -> int | None:
    """Kills the kernel and all its descendants. Returns the kernel's status; None if it is not known."""
    status = None
    while True:
        _signal_group(kernel, signal.SIGKILL)
        for pid in _descendants(os.getpid()):
            _signal(pid, signal.SIGKILL)
        try:
            pid, raw = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return status
        if pid == 0:
            select.select([], [], [], 0.001)
        elif pid == kernel:
            status = os.waitstatus_to_exitcode(raw)


def _reap(kernel: int) -> int | None:
    """Collects the ended children. Returns the kernel's status, if it is among them."""
    while True:
        try:
            pid, raw = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return 0  # the kernel was collected by nobody else: this cannot be, and ends all the same
        if pid == 0:
            return None
        if pid == kernel:
            return os.waitstatus_to_exitcode(raw)


def _signal_all(kernel: int, number: int) -> None:
    """Sends a signal to the kernel's group and all descendants, also those that are born meanwhile."""
    _signal_group(kernel, number)
    known: set[int] = set()
    while new := set(_descendants(os.getpid())) - known:
        known |= new
        for pid in new:
            _signal(pid, number)


def _signal_group(kernel: int, number: int) -> None:
    try:
        os.killpg(kernel, number)
    except OSError:  # it has ended, or has not made its group yet
        _signal(kernel, number)


def _signal(pid: int, number: int) -> None:
    with contextlib.suppress(OSError):
        os.kill(pid, number)


def _descendants(parent: int) -> list[int]:
    """The ids of all processes below one; none where the system does not say."""
    found: list[int] = []
    waiting = [parent]
    while waiting:
        pid = waiting.pop()
        try:
            tasks = os.listdir(f"/proc/{pid}/task")
        except OSError:
            continue
        for task in tasks:
            children = [int(word) for word in _read(f"/proc/{pid}/task/{task}/children").split()]
            found += children
            waiting += children
    return found


def _resident(pid: int) -> int:
    """The bytes of a process that are in memory, those that it shares included."""
    fields = _read(f"/proc/{pid}/statm").split()
    return int(fields[1]) * resource.getpagesize() if len(fields) > 1 else 0


def _proportional(pid: int) -> int:
    """As `_resident`, with shared pages divided among those that share them."""
    for line in _read(f"/proc/{pid}/smaps_rollup").splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) << 10
    return _resident(pid)


def _read(path: str) -> str:
    try:
        with open(path) as file:
            return file.read()
    except OSError:
        return ""


if __name__ == "__main__":
    main()
