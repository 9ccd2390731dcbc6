"""The argument parser of all commands, its help, and their one-line errors."""

from __future__ import annotations

import argparse
import platform
import shutil
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

_WIDEST_HELP = 100
"""The width of help in columns, at most: longer lines are hard to read."""


class CommandError(ValueError):
    """A command cannot run with what it was given. The message is one line that says why."""


class HelpFormatter(argparse.HelpFormatter):
    """Help as wide as the terminal (or $COLUMNS, if set), with a short usage."""

    def __init__(self, prog: str, **settings: Any):
        width = min(shutil.get_terminal_size().columns, _WIDEST_HELP) - 2
        super().__init__(prog, **{"width": width, **settings})

    def add_usage(
        self,
        usage: str | None,
        actions: Iterable[argparse.Action],
        groups: Iterable[argparse._MutuallyExclusiveGroup],
        prefix: str | None = None,
    ) -> None:
        """Shows only required arguments; other options are "[options]", as they are listed below."""
        if usage is None and prefix != "":  # argparse passes "" when it builds the name of a subcommand
            prefix = "usage: " if prefix is None else prefix
            given = " ".join(("%(prog)s [options]", *filter(None, map(_usage_of, actions))))
            text = given.replace("%(prog)s", self._prog)
            usage = textwrap.fill(text, max(self._width - len(prefix), 11), subsequent_indent="  ")
            usage = usage.replace("%", "%%")
        super().add_usage(usage, actions, groups, prefix)


def _usage_of(action: argparse.Action) -> str | None:
    """An argument or required option in the usage; None for an optional one."""
    choices = "{" + ",".join(map(str, action.choices)) + "}" if action.choices is not None else None
    metavar = action.metavar or choices or action.dest
    if action.option_strings:
        return f"{action.option_strings[0]} {metavar}" if action.required else None
    return {argparse.OPTIONAL: f"[{metavar}]", argparse.PARSER: f"{metavar} ..."}.get(
        str(action.nargs), str(metavar)
    )


class CommandParser(argparse.ArgumentParser):
    """The parser of `gptoss-jax` and of its commands.

    Options cannot be abbreviated, and every command has ``--verbose``.
    """

    def __init__(self, **settings: Any):
        super().__init__(**{"allow_abbrev": False, "formatter_class": HelpFormatter, **settings})
        self.add_argument(
            "-v",
            "--verbose",
            action="count",
            default=argparse.SUPPRESS,  # a default of the command would override a -v before the command
            help="log to standard error; -vv logs details",
        )


class ShowVersion(argparse.Action):
    """Prints the versions of this package, of jax and of Python, and exits."""

    def __init__(self, option_strings: Sequence[str], dest: str, **settings: Any):
        super().__init__(option_strings, argparse.SUPPRESS, nargs=0, help="print versions and exit")

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        """Prints the versions."""
        ours, jax = _version_of("gptoss-jax"), _version_of("jax")
        print(f"gptoss-jax {ours} (jax {jax}, Python {platform.python_version()})")
        parser.exit()


class PrintCompletion(argparse.Action):
    """Prints a shell script for tab completion of commands, options and values, and exits."""

    def __init__(self, option_strings: Sequence[str], dest: str, **settings: Any):
        super().__init__(
            option_strings,
            argparse.SUPPRESS,
            choices=("bash", "zsh", "tcsh"),
            metavar="SHELL",
            help="print a script for tab completion in bash, zsh or tcsh and exit "
            "(needs the package shtab: pip install 'gptoss-jax[completion]')",
        )

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, *_: object
    ) -> None:
        """Prints the script."""
        try:
            import shtab
        except ImportError:
            parser.error("--print-completion needs the package shtab: pip install 'gptoss-jax[completion]'")
        for action in _all_actions(parser):
            if action.metavar == "DIR":
                action.complete = shtab.DIRECTORY  # type: ignore[attr-defined]
            elif action.type is Path or str(action.metavar).endswith(("FILE", ".jsonl")):
                action.complete = shtab.FILE  # type: ignore[attr-defined]
        print(shtab.complete(parser, values))
        parser.exit()


def _all_actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """The options and arguments of a parser and of the commands below it."""
    for action in parser._actions:
        yield action
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                yield from _all_actions(command)


def _version_of(package: str) -> str:
    from importlib import metadata  # slow to import, and only --version needs it

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:  # run from the sources without being installed
        return "not installed"
