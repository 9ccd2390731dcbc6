"""The commands that can be typed in a chat."""

from __future__ import annotations

import dataclasses
import re

EFFORTS = ("low", "medium", "high")


@dataclasses.dataclass(frozen=True)
class Command:
    """A command.

    name: with its slash.
    help: what it does, in a line.
    values: what may follow it; nothing for commands without an argument.
    takes_file: True for a command that is followed by a file's name.
    """

    name: str
    help: str
    values: tuple[str, ...] = ()
    takes_file: bool = False

    @property
    def usage(self) -> str:
        """The command and its argument."""
        argument = "FILE" if self.takes_file else "|".join(self.values)
        return f"{self.name} {argument}" if argument else self.name


COMMANDS = (
    Command("/help", "show this list"),
    Command("/clear", "begin a new conversation with the same instructions"),
    Command("/effort", "how much the model reasons from now on", values=EFFORTS),
    Command("/reasoning", "show or hide the chain of thought", values=("on", "off")),
    Command("/retry", "answer the last message again"),
    Command("/undo", "take back the last message and its answer"),
    Command("/save", "save the conversation to a new FILE, and after every turn", takes_file=True),
    Command("/load", "go on with the conversation of FILE, which is saved after every turn", takes_file=True),
    Command("/quit", "end the program, as Ctrl-D does"),
)


def split_command(text: str) -> tuple[str, str] | None:
    """A command's name and its argument; None for a message to the model.

    A command is one line that begins with a slash and a word of letters, so that paths are messages. So is
    what begins with a space.
    """
    found = re.fullmatch(r"(/[A-Za-z]+)(?:[ \t]+(.*?))?[ \t]*", text)
    return (found[1], found[2] or "") if found else None
