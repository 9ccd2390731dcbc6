"""Input of a chat whose standard input is no terminal: a message is a line."""

from __future__ import annotations

from typing import BinaryIO

from gptoss_jax.chat.errors import ChatError
from gptoss_jax.chat.text import without_surrogates


class LineInput:
    """Messages from a pipe or a file. A line that ends with a backslash goes on with the next one."""

    is_interactive = False

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._number = 0

    def message(self) -> str:
        """The next message. Raises EOFError at the end, ChatError for one that is not UTF-8."""
        lines: list[str] = []
        while True:
            raw = self._stream.readline()
            if not raw:
                if lines:
                    return "\n".join(lines)
                raise EOFError
            self._number += 1
            try:
                line = raw.decode().removeprefix("\ufeff").rstrip("\r\n")
            except UnicodeDecodeError as error:
                reason = f"{error.reason} at byte {error.start + 1}"
                raise ChatError(f"line {self._number} of the input is not UTF-8: {reason}") from None
            if not line.endswith("\\"):
                return without_surrogates("\n".join([*lines, line]))
            lines.append(line[:-1])

    def result(self, name: str) -> str:
        """The result of a call: the next line."""
        return self.message()
