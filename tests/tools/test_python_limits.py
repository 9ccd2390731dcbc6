"""The Python tool against code that breaks things: limits hold, sessions go on, and nothing stays behind."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gptoss_jax.tools.python.limits import PythonLimits
from gptoss_jax.tools.python.tool import PythonTool
from tests.tools.calls import Running, call_of

needs_proc = pytest.mark.skipif(not os.path.exists("/proc/self/task"), reason="there is no /proc here")


def running(**limits: float) -> Iterator[Running]:
    small = {"seconds": 30, "memory_bytes": 512 << 20, "processes": 12, **limits}
    session = Running(PythonTool(PythonLimits(**small)).session(), "python")
    try:
        yield session
    finally:
        session.close()


@pytest.fixture(scope="module")
def python() -> Iterator[Running]:
    yield from running()


@pytest.fixture(scope="module")
def hasty() -> Iterator[Running]:
    yield from running(seconds=1)


def processes_with(word: str) -> list[int]:
    """The ids of the running processes that have a word in their arguments or environment."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            said = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
            state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if word.encode() in said and state != "Z":
            found.append(int(entry.name))
    return found


def wait_until_gone(word: str) -> list[int]:
    """What is left of the processes with a word, once they had the time to end."""
    end = time.monotonic() + 60
    while (left := processes_with(word)) and time.monotonic() < end:
        time.sleep(0.05)
    return left


def folder_of(session: Running) -> str:
    """The folder of a session, whose name is in the environment of all of its processes."""
    return os.path.basename(os.path.dirname(session.run("import os; print(os.getcwd())")))


def test_memory_has_a_limit_and_the_session_goes_on(python: Running) -> None:
    assert "MemoryError" in python.run("kept = 1\nbytearray(10**9)")
    assert python.run("kept") == "1"


def test_an_endless_loop_is_interrupted_and_variables_stay(hasty: Running) -> None:
    answer = hasty.run("kept = 2\nwhile True: pass")
    assert "KeyboardInterrupt" in answer and answer.endswith(
        "[The call ran for 1 seconds and was interrupted.]"
    )
    assert hasty.run("kept") == "2"


def test_exit_ends_the_session_and_the_next_call_begins_a_new_one(python: Running) -> None:
    python.run("kept = 3; open('file.txt', 'w').write('x')")
    assert "has ended: the code asked it to" in python.run("exit()")
    answer = python.run("import os\nprint(os.listdir()); kept")
    assert "file.txt" in answer and "NameError" in answer


def test_a_cancelled_call_is_interrupted_and_variables_stay(python: Running, tmp_path: Path) -> None:
    async def cancel() -> None:
        mark = tmp_path / "began"
        code = f"kept = 4\nopen({str(mark)!r}, 'w').close()\nwhile True: pass"
        task = asyncio.ensure_future(python.session.run(call_of("python", code)))
        while not mark.exists():
            assert not task.done()
            await asyncio.sleep(0.02)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    python.wait(cancel())
    assert python.run("kept") == "4"


@needs_proc
def test_a_closed_session_leaves_no_process_and_no_folder(tmp_path: Path) -> None:
    session = Running(PythonTool().session(), "python")
    word = folder_of(session)
    session.run("import subprocess; subprocess.Popen(['setsid', 'sleep', '1000'])")
    assert processes_with(word)
    session.close()
    assert wait_until_gone(word) == []
    assert not (Path(tempfile.gettempdir()) / word).exists()


@pytest.mark.slow
class TestSlow:
    def test_what_will_not_be_interrupted_is_killed(self, hasty: Running) -> None:
        code = (
            "import time\nwhile True:\n    try:\n        time.sleep(1)\n"
            "    except BaseException:\n        pass"
        )
        answer = hasty.run(code)
        assert "did not end when it was interrupted, and was killed" in answer
        assert hasty.run("1 + 1") == "2"

    @pytest.mark.parametrize(
        ("code", "said"),
        [
            ("import os; os._exit(3)", "its process exited with status 3"),
            ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "its process was ended by signal 11"),
            ("import os; os.kill(os.getppid(), 9)", "it was killed"),
            ("import os\nwhile True: os.fork()", "it had more processes than it may have"),
            ("import os\nwhile True:\n    if not os.fork(): os.setsid()", "more processes than it may have"),
            (
                "import mmap, time\nkept = []\nfor _ in range(30):\n"
                "    kept.append(mmap.mmap(-1, 50 << 20))\n"
                "    for page in range(0, 50 << 20, 4096): kept[-1][page] = 1\ntime.sleep(60)",
                "it used more memory than it may",
            ),
        ],
    )
    def test_a_session_that_ends_says_why_and_the_next_call_begins_a_new_one(
        self, python: Running, code: str, said: str
    ) -> None:
        if "more" in said and not os.path.exists(f"/proc/{os.getpid()}/task/{os.getpid()}/children"):
            pytest.skip("this system does not say which processes are whose children")
        word = folder_of(python)
        answer = python.run(code)
        assert said in answer and "the next call begins a new session" in answer
        assert wait_until_gone(word) == []
        assert python.run("print(6 * 7)") == "42"

    def test_a_kernel_that_died_between_calls_is_replaced(self, python: Running) -> None:
        (pid,) = [int(python.run("import os; print(os.getpid())"))]
        os.kill(pid, signal.SIGKILL)
        answer = python.run("print('here')")
        assert "ended" in answer
        assert python.run("print('there')") == "there"

    @needs_proc
    def test_nothing_runs_between_calls(self, python: Running) -> None:
        code = (
            "import threading\ncount = 0\ndef f():\n    global count\n    while True: count += 1\n"
            "threading.Thread(target=f, daemon=True).start(); import os; print(os.getpid())"
        )
        pid = int(python.run(code))
        end = time.monotonic() + 30
        while True:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
            if state == "T" or time.monotonic() > end:
                break
            time.sleep(0.02)
        assert state == "T"

    def test_a_flood_of_output_is_bounded(self, hasty: Running) -> None:
        answer = hasty.run("while True: print('x' * 10000, flush=True)")
        assert len(answer) < 30_000 and "[The output is cut: 10000 of " in answer
        assert hasty.run("print('next')").endswith("next")

    @needs_proc
    def test_nothing_outlives_a_process_that_is_killed(self, tmp_path: Path) -> None:
        program = (
            "import asyncio, os, signal\n"
            "from gptoss_jax.tools.python.tool import PythonTool\n"
            "from tests.tools.calls import call_of, text_in\n"
            "async def main():\n"
            "    session = PythonTool().session()\n"
            '    code = \'import os, subprocess; subprocess.Popen(["setsid", "sleep", "1000"]); \'\n'
            "    answer = await session.run(call_of('python', code + 'print(os.getcwd())'))\n"
            "    print(text_in(answer), flush=True)\n"
            "    await session.run(call_of('python', 'while True: pass'))\n"
            "asyncio.run(main())\n"
        )
        victim = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
        assert victim.stdout is not None
        folder = Path(victim.stdout.readline().strip()).parent
        assert folder.name.startswith("gptoss-python-") and processes_with(folder.name)
        victim.kill()
        victim.wait()
        victim.stdout.close()
        assert wait_until_gone(folder.name) == []
        assert not folder.exists()


@pytest.mark.parametrize(
    "limits",
    [{"seconds": 0}, {"seconds": -1}, {"memory_bytes": 1 << 20}, {"processes": 0}, {"output_characters": 0}],
)
def test_limits_that_cannot_be_are_refused(limits: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(limits))):
        PythonLimits(**limits)


def test_the_declaration_says_the_time_that_holds() -> None:
    assert "time out after 120.0 seconds" in (PythonTool().declaration.description or "")
    assert "time out after 5.0 seconds" in (PythonTool(PythonLimits(seconds=5)).declaration.description or "")
