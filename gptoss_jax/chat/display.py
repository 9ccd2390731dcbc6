"""What a chat writes: answers to standard output, all else to standard error."""

from __future__ import annotations

from typing import TextIO

from gptoss_jax.chat.backend import Piece
from gptoss_jax.terminal import printable

_DIM, _RED, _PLAIN = "\x1b[2m", "\x1b[31m", "\x1b[0m"
_THINKING = "thinking…"
_TOOL_CHARACTERS = 400
"""How much of what a built-in tool is given is shown."""


class Display:
    """Shows answers as they come, and notes beside them.

    Nothing that a model or a server says can act on the terminal: it is escaped by `printable`.
    """

    def __init__(self, out: TextIO, notes: TextIO, *, colour: bool, live: bool, show_reasoning: bool) -> None:
        """A display.

        Args:
            out: gets the answers.
            notes: gets notes, statistics and errors.
            colour: True dims reasoning and notes; False uses no control codes for it, and names the sections
                of an answer where reasoning is shown.
            live: True shows that an answer is awaited, and takes that away again; for terminals.
            show_reasoning: True shows the chain of thought; may be changed between answers.
        """
        self.show_reasoning = show_reasoning
        self._out = out
        self._notes = notes
        self._colour = colour
        self._live = live
        self._waits = False  # the line that says so is on the screen
        self._section: str | None = None  # the kind of the piece that was shown last
        self._mid_line = False

    def wait(self) -> None:
        """An answer is awaited."""
        if self._live and not self._waits:
            self._waits = True
            self._notes.write(self._painted(_THINKING, _DIM))
            self._notes.flush()

    def piece(self, piece: Piece) -> None:
        """Shows new text of the answer."""
        if piece.kind == "reasoning" and not self.show_reasoning:
            return
        self._stop_waiting()
        if piece.kind != self._section:
            self._begin(piece.kind)
        text = printable(piece.text)
        self._out.write(self._painted(text, _DIM) if piece.kind == "reasoning" else text)
        self._out.flush()
        self._mid_line = not text.endswith("\n")

    def finish(self) -> None:
        """Ends the answer, whole or not."""
        self._stop_waiting()
        self._end_line()
        self._section = None

    def call(self, name: str, arguments: str) -> None:
        """Shows a call of a function."""
        self.finish()
        self._out.write(printable(f"[call] {name} {arguments}") + "\n")
        self._out.flush()

    def tool_call(self, name: str, text: str) -> None:
        """Shows in one line what a built-in tool is given."""
        line = " ⏎ ".join(part.strip() for part in text.splitlines() if part.strip())
        shown = line if len(line) <= _TOOL_CHARACTERS else line[: _TOOL_CHARACTERS - 1] + "…"
        self.note(f"[{name}] {shown}")

    def tool_result(self, text: str) -> None:
        """Shows what a built-in tool answers, where the chain of thought is shown, to which it belongs."""
        if self.show_reasoning:
            self.note(text)

    def note(self, text: str) -> None:
        """A line beside the conversation."""
        self._note(printable(text), _DIM)

    def error(self, text: object) -> None:
        """What went wrong, in one line."""
        self._note(printable(f"gptoss-jax: {' '.join(str(text).split())}"), _RED)

    def _note(self, text: str, paint: str) -> None:
        self.finish()
        self._notes.write(self._painted(text, paint) + "\n")
        self._notes.flush()

    def _begin(self, kind: str) -> None:
        if self._section is not None:
            self._end_line()
            self._out.write("\n")
        self._section = kind
        if self.show_reasoning and not self._colour:
            self._out.write("[reasoning]\n" if kind == "reasoning" else "[answer]\n")

    def _end_line(self) -> None:
        if self._mid_line:
            self._out.write("\n")
            self._out.flush()
            self._mid_line = False

    def _stop_waiting(self) -> None:
        if self._waits:
            self._waits = False
            width = len(_THINKING) + len("^C")  # which the terminal writes when it is pressed
            self._notes.write("\r" + " " * width + "\r")
            self._notes.flush()

    def _painted(self, text: str, paint: str) -> str:
        return f"{paint}{text}{_PLAIN}" if self._colour and text else text
