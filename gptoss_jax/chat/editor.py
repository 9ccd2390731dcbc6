"""Input of a chat at a terminal: lines that can be edited, with history and completion."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import CompleteEvent, Completer, Completion, PathCompleter
from prompt_toolkit.document import Document
from prompt_toolkit.enums import DEFAULT_BUFFER
from prompt_toolkit.filters import has_focus
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings
from prompt_toolkit.output import ColorDepth

from gptoss_jax.chat.commands import COMMANDS
from gptoss_jax.chat.text import without_surrogates
from gptoss_jax.terminal import printable

if TYPE_CHECKING:
    from prompt_toolkit.input import Input
    from prompt_toolkit.key_binding import KeyPressEvent
    from prompt_toolkit.output import Output


class Editor:
    """Messages from a terminal.

    Enter sends; Alt-Enter, or Enter behind a backslash, begins a new line; what is pasted stays whole.
    Arrow up and Ctrl-R find earlier messages, tab completes commands, Ctrl-X Ctrl-E opens $EDITOR.
    """

    is_interactive = True

    def __init__(
        self,
        history: Path | None = None,
        *,
        colour: bool = True,
        input: Input | None = None,
        output: Output | None = None,
    ) -> None:
        """An editor.

        Args:
            history: the file of earlier messages, made where it is missing; None remembers them only until
                the program ends.
            colour: False uses no colours.
            input: where keys come from; None is the terminal of this process.
            output: what it draws on; None is the terminal of this process.
        """
        kept: History = _FileHistory(history) if history is not None else InMemoryHistory()
        self._messages = _session(kept, colour, input, output, CommandCompleter())
        self._results = _session(InMemoryHistory(), colour, input, output, None)

    def message(self) -> str:
        """The next message. Raises EOFError for Ctrl-D, KeyboardInterrupt for Ctrl-C."""
        return without_surrogates(self._messages.prompt("> "))

    def result(self, name: str) -> str:
        """The result of a call. Raises as `message`."""
        return without_surrogates(self._results.prompt(f"result of {printable(name)}> "))


def _session(
    history: History,
    colour: bool,
    input: Input | None,
    output: Output | None,
    completer: Completer | None,
) -> PromptSession[str]:
    return PromptSession(
        history=history,
        completer=completer,
        multiline=True,
        prompt_continuation=lambda width, line, wrapped: " " * width,
        key_bindings=_key_bindings(),
        color_depth=None if colour else ColorDepth.DEPTH_1_BIT,
        include_default_pygments_style=False,
        enable_open_in_editor=True,
        enable_suspend=True,
        reserve_space_for_menu=4,
        input=input,
        output=output,
    )


def _key_bindings() -> KeyBindings:
    bindings = KeyBindings()
    in_text = has_focus(DEFAULT_BUFFER)

    @bindings.add("enter", filter=in_text)
    def _(event: KeyPressEvent) -> None:
        """Takes the completion that is chosen; goes on behind a backslash; else sends."""
        buffer = event.current_buffer
        if buffer.complete_state is not None and buffer.complete_state.current_completion is not None:
            buffer.complete_state = None
        elif buffer.document.is_cursor_at_the_end and buffer.text.endswith("\\"):
            buffer.delete_before_cursor()
            buffer.newline(copy_margin=False)
        else:
            buffer.validate_and_handle()

    @bindings.add("escape", "enter", filter=in_text)
    def _(event: KeyPressEvent) -> None:
        """Begins a new line."""
        event.current_buffer.newline(copy_margin=False)

    return bindings


class CommandCompleter(Completer):
    """Completes the commands of the chat, their values and the names of files."""

    def __init__(self) -> None:
        self._commands = {command.name: command for command in COMMANDS}
        self._files = PathCompleter(expanduser=True)

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterator[Completion]:
        """See `Completer`."""
        text = document.text_before_cursor
        if not text.startswith("/") or "\n" in document.text:
            return
        name, space, argument = text.partition(" ")
        command = self._commands.get(name)
        if not space:
            for offered in self._commands.values():
                if offered.name.startswith(name):
                    yield Completion(offered.name, -len(name), display_meta=offered.help)
        elif command is not None and command.takes_file:
            yield from self._files.get_completions(Document(argument), complete_event)
        elif command is not None:
            for value in command.values:
                if value.startswith(argument):
                    yield Completion(value, -len(argument))


class _FileHistory(FileHistory):
    """Earlier messages in a file that its owner alone can read; without it where it cannot be used."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        with contextlib.suppress(OSError):
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            os.close(os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600))

    def load_history_strings(self) -> Iterable[str]:
        """The messages of the file, the newest first."""
        try:
            return list(super().load_history_strings())
        except OSError:
            return []

    def store_string(self, string: str) -> None:
        """Adds a message to the file."""
        with contextlib.suppress(OSError):
            super().store_string(without_surrogates(string))
