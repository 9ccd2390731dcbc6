"""A program at a terminal of its own: what it writes, and keys for it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b[=>]|\r")
# The terminal becomes the program's own, so that Ctrl-C is a signal to it, which it does not ignore.
_MAIN = (
    "import fcntl, signal, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); "
    "signal.signal(signal.SIGINT, signal.default_int_handler); "
    "from gptoss_jax import cli; sys.exit(cli.main())"
)


class PtyProgram:
    """`gptoss-jax` with arguments, at a terminal of 80 columns and 24 lines."""

    def __init__(self, *arguments: str, **environment: str) -> None:
        own, other = os.openpty()
        fcntl.ioctl(other, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        settings = {
            **{name: value for name, value in os.environ.items() if name != "NO_COLOR"},
            "PYTHONPATH": str(ROOT),
            "TERM": "xterm",
            "PROMPT_TOOLKIT_NO_CPR": "1",
            **environment,
        }
        self.process = subprocess.Popen(
            [sys.executable, "-c", _MAIN, *arguments],
            stdin=other,
            stdout=other,
            stderr=other,
            env=settings,
            start_new_session=True,
        )
        os.close(other)
        self._terminal = own
        self.raw = ""
        self._seen = 0

    def send(self, text: str) -> None:
        """Types."""
        os.write(self._terminal, text.encode())

    def until(self, text: str, seconds: float = 60) -> str:
        """What is written up to where a text comes, without control codes."""
        end = time.monotonic() + seconds
        while True:
            plain = _CONTROL.sub("", self.raw)
            at = plain.find(text, self._seen)
            if at >= 0:
                shown, self._seen = plain[self._seen : at + len(text)], at + len(text)
                return shown
            if time.monotonic() > end or not self._read(0.5):
                raise AssertionError(f"no {text!r} in {plain[self._seen :]!r}")

    def _read(self, seconds: float) -> bool:
        """Reads what there is. False once the program has gone."""
        if select.select([self._terminal], [], [], seconds)[0]:
            try:
                data = os.read(self._terminal, 65536)
            except OSError:
                return False
            self.raw += data.decode(errors="replace")
            return bool(data)
        return True

    def exit_code(self) -> int:
        """Waits for the end."""
        while self._read(20):
            pass
        return self.process.wait(20)

    def close(self) -> None:
        """Ends the program, whatever it does."""
        self.process.kill()
        self.process.wait()
        os.close(self._terminal)


@contextlib.contextmanager
def at_terminal(*arguments: str, **environment: str) -> Iterator[PtyProgram]:
    """A program that runs."""
    program = PtyProgram(*arguments, **environment)
    try:
        yield program
    finally:
        program.close()
