"""Runs the command line inside the test's own process."""

from __future__ import annotations

import io
import sys
from typing import NamedTuple

from gptoss_jax import cli


class Done(NamedTuple):
    """What a command did."""

    code: int
    output: bytes
    error: str

    @property
    def text(self) -> str:
        return self.output.decode()


class _Terminal(io.TextIOWrapper):
    def isatty(self) -> bool:
        return True


def run(*arguments: str, stdin: bytes | str = b"", terminal: bool = False) -> Done:
    """Runs a command with bytes or text on standard input, its output a terminal or not."""
    data = stdin.encode() if isinstance(stdin, str) else stdin
    before = sys.stdin, sys.stdout, sys.stderr
    kind = _Terminal if terminal else io.TextIOWrapper
    out, error = kind(io.BytesIO(), encoding="ascii"), io.StringIO()
    sys.stdin, sys.stdout, sys.stderr = io.TextIOWrapper(io.BytesIO(data)), out, error
    try:
        code = cli.main(arguments)
    finally:
        sys.stdin, sys.stdout, sys.stderr = before
    out.flush()
    assert isinstance(out.buffer, io.BytesIO)
    return Done(code, out.buffer.getvalue(), error.getvalue())
