"""`gptoss-jax chat`: a conversation at the terminal."""

from __future__ import annotations

import argparse
import io
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from gptoss_jax.commands.here_or_server import (
    KEY_VARIABLE,
    MODEL_OPTIONS,
    check_choice,
    defaults_of,
    server_key,
)
from gptoss_jax.commands.options import (
    add_header_guard_option,
    add_model_options,
    add_sampling_options,
    add_tool_options,
    load_engine,
    tools_of,
)
from gptoss_jax.commands.parsing import CommandError

if TYPE_CHECKING:
    from gptoss_jax.chat import Backend, MessageInput, Transcript
    from gptoss_jax.tools import Tool

_HERE = {
    **MODEL_OPTIONS,
    "tool": "--tool",
    "tool_rounds": "--tool-rounds",
    "python_seconds": "--python-seconds",
    "python_memory_mib": "--python-memory-mib",
}
"""Options of a model in this process."""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command and its options."""
    parser = commands.add_parser(
        "chat",
        help="talk with the model at the terminal",
        description="Talk with a model at the terminal: one in this process, or with --url one behind a "
        "server. /help lists the commands of the chat. Ctrl-C stops an answer, Ctrl-D ends the program. "
        "Where standard input is no terminal, each of its lines is a message or a command.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--instructions", "--system", metavar="TEXT", help="instructions that go before the conversation"
    )
    parser.add_argument(
        "--tools",
        type=Path,
        metavar="FILE.json",
        help="functions that the model may call, as in Chat Completions; you type the results of its calls",
    )
    parser.add_argument(
        "--resume",
        type=Path,
        metavar="FILE.jsonl",
        help="go on with this conversation, and save it after every turn; a file that does not exist is made",
    )
    parser.add_argument(
        "--show-reasoning", action="store_true", help="show the chain of thought, dimmed (default: hidden)"
    )
    parser.add_argument(
        "--no-stats",
        action="store_true",
        help="leave out the line with tokens, tokens/s and finish reason after each answer",
    )
    parser.add_argument(
        "--history-file",
        metavar="FILE",
        help="where what you type is kept for arrow up and Ctrl-R; none keeps nothing (default: "
        "gptoss-jax/chat_history in $XDG_STATE_HOME or ~/.local/state)",
    )
    server = parser.add_argument_group("server", "in place of a model in this process")
    server.add_argument(
        "--url",
        metavar="URL",
        help="a server that speaks Chat Completions, such as http://127.0.0.1:8000/v1",
    )
    server.add_argument("--model", metavar="NAME", help="the model's name (default: the server's only one)")
    server.add_argument(
        "--api-key-env",
        metavar="VARIABLE",
        help=f"the environment variable that holds the API key (default: {KEY_VARIABLE})",
    )
    add_model_options(parser)
    add_sampling_options(parser)
    add_header_guard_option(parser)
    add_tool_options(parser)
    # Without the option a server decides: its default may be another one.
    parser.set_defaults(
        run=run, temperature=None, top_p=None, seed=None, model_defaults=defaults_of(parser, _HERE)
    )


def run(options: argparse.Namespace) -> int:
    """Runs the command."""
    check_choice(options, _HERE, options.model_defaults, ("model", "api_key_env"))
    try:
        from gptoss_jax.chat import Chat, Display, described
        from gptoss_jax.chat.tools import ToolRunner
    except ImportError as error:
        raise _missing(error) from None
    tools = _read_tools(options.tools) if options.tools else None
    built_in = tools_of(options)
    transcript = _open_transcript(options)
    terminal = _terminal()
    refused = bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM") == "dumb"
    colour = terminal is not None and not refused
    messages = _open_input(options, terminal, colour)
    display = Display(
        _utf8(sys.stdout),
        sys.stderr,
        colour=colour and sys.stdout.isatty() and sys.stderr.isatty(),
        live=terminal is not None and sys.stderr.isatty(),
        show_reasoning=options.show_reasoning,
    )
    backend = _remote(options, tools) if options.url else _local(options, tools, built_in)
    if backend is None:
        return 0
    runner = ToolRunner(built_in) if built_in else None
    chat = Chat(
        backend,
        transcript,
        messages,
        display,
        effort=options.effort,
        stats=not options.no_stats,
        tools=runner,
        rounds=options.tool_rounds,
    )
    try:
        if terminal is not None:
            display.note(f"{backend.name}. /help lists commands, Ctrl-D ends.")
        if options.resume:
            display.note(f"{options.resume}: {described(transcript)}")
        chat.run()
    finally:
        if runner is not None:
            runner.close()
        backend.close()
    return 1 if chat.failures and terminal is None else 0


def _read_tools(path: Path) -> list[dict[str, Any]]:
    """The functions of a file: a list of tools as in Chat Completions, or of functions alone."""
    from harmony import HarmonyFormatError
    from harmony.openai_formats import conversation_from_chat

    try:
        document = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise CommandError(f"{path} is not valid JSON: {error}") from None
    items = document if isinstance(document, list) else [document]
    tools = [
        {"type": "function", "function": item}
        if isinstance(item, dict) and "name" in item and "function" not in item
        else item
        for item in items
    ]
    try:
        conversation_from_chat([{"role": "user", "content": ""}], tools=tools)
    except HarmonyFormatError as error:
        raise CommandError(f"{path}: {error}") from None
    return tools


def _open_transcript(options: argparse.Namespace) -> Transcript:
    from gptoss_jax.chat import Transcript

    path = options.resume
    if path is None:
        return Transcript(options.instructions)
    if not os.path.lexists(path):
        if not path.parent.is_dir():
            raise CommandError(f"cannot write {path}: there is no folder {path.parent}")
        return Transcript(options.instructions, path)
    transcript = Transcript.load(path)
    if options.instructions:
        transcript.instruct(options.instructions)
    return transcript


def _terminal() -> TextIO | None:
    """The stream that messages are edited on; None if no person sits at standard input."""
    if sys.stdin is None or not sys.stdin.isatty():
        return None
    return next((out for out in (sys.stdout, sys.stderr) if out is not None and out.isatty()), None)


def _open_input(options: argparse.Namespace, terminal: TextIO | None, colour: bool) -> MessageInput:
    if terminal is None:
        from gptoss_jax.chat.lines import LineInput

        if sys.stdin is None:
            raise CommandError("cannot read standard input: it is closed")
        return LineInput(sys.stdin.buffer)
    try:
        from prompt_toolkit.output import create_output

        from gptoss_jax.chat.editor import Editor
    except ImportError as error:
        raise _missing(error) from None
    return Editor(_history_file(options.history_file), colour=colour, output=create_output(terminal))


def _history_file(given: str | None) -> Path | None:
    if given is not None:
        return None if given == "none" else Path(given).expanduser()
    state = os.environ.get("XDG_STATE_HOME")
    return (Path(state) if state else Path("~/.local/state").expanduser()) / "gptoss-jax" / "chat_history"


def _sampling_fields(options: argparse.Namespace) -> dict[str, Any]:
    """The sampling options that were given."""
    names = ("temperature", "top_p", "max_tokens")
    return {name: getattr(options, name) for name in names if getattr(options, name) is not None}


def _remote(options: argparse.Namespace, tools: list[dict[str, Any]] | None) -> Backend:
    try:
        from gptoss_jax.chat.remote import RemoteBackend
    except ImportError as error:
        raise _missing(error) from None
    fields = _sampling_fields(options)
    if options.seed is not None:
        fields["seed"] = options.seed
    return RemoteBackend(options.url, options.model, key=server_key(options), fields=fields, tools=tools)


def _local(
    options: argparse.Namespace, tools: list[dict[str, Any]] | None, built_in: list[Tool]
) -> Backend | None:
    """The model in this process; None in all but the first of several processes, once that has ended."""
    from gptoss_jax.chat.local import LocalBackend
    from gptoss_jax.engine.request import SamplingParams
    from gptoss_jax.llm import LLM

    sampling = SamplingParams(**_sampling_fields(options))
    engine, encoding, _ = load_engine(options, slots=1)
    if not engine.is_leader:
        with engine:
            engine.follow()
        return None
    llm = LLM.from_engine(
        engine, encoding, options.checkpoint, seed=options.seed or 0, header_guard=options.header_guard
    )
    declarations = [tool.declaration for tool in built_in]
    return LocalBackend(llm, sampling=sampling, tools=tools, date=options.date, built_in_tools=declarations)


def _utf8(stream: TextIO) -> TextIO:
    """The stream, which writes UTF-8 whatever the locale is."""
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(encoding="utf-8")
    return stream


def _missing(error: ImportError) -> CommandError:
    return CommandError(f"chat needs the package {error.name}: pip install 'gptoss-jax[chat]'")
