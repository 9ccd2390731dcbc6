"""`gptoss-jax harmony`: render, parse, view and convert conversations, also in pipes.

None of these commands loads a model or imports jax. Wrong input raises HarmonyFormatError, which the command
line prints as one line.
"""

from __future__ import annotations

import argparse

_FORMS = "a harmony conversation, a Chat Completions or Responses request, or ChatML"


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command `harmony`, its subcommands and their options."""
    parser = commands.add_parser(
        "harmony",
        help="render, parse, view and convert conversations",
        description="Work with conversations in the harmony format. No model is loaded.",
        allow_abbrev=False,
    )
    own = parser.add_subparsers(dest="harmony_command", metavar="COMMAND", required=True)
    _add_render(own)
    _add_parse(own)
    _add_view(own)
    _add_convert(own)


def _add_render(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "render",
        help="conversation → text with special tokens, or token ids",
        description="Print a conversation exactly as the model reads it: as text with special tokens, or "
        "with --tokens as token ids on one line. `gptoss-jax harmony parse` reads both.",
        allow_abbrev=False,
    )
    _add_input(parser)
    parser.add_argument("--tokens", action="store_true", help="print token ids instead of text")
    parser.add_argument(
        "--for",
        dest="purpose",
        choices=("conversation", "completion", "training"),
        metavar="PURPOSE",
        default="conversation",
        help="conversation: the messages as they are (default); completion: the prompt for the assistant's "
        "next message; training: a last final message ends in <|return|>",
    )
    parser.add_argument(
        "--analysis",
        choices=("compatible", "guide", "none"),
        help="which old analysis messages are dropped: compatible: as openai-harmony does (default for "
        "completion and training); guide: as OpenAI's guide says; none: none (default for conversation)",
    )
    parser.add_argument(
        "--recipient",
        choices=("role", "channel"),
        help="where to= stands in headers: after the role or the channel (default: as each message has it)",
    )
    parser.add_argument(
        "--schema",
        choices=("compatible", "improved"),
        default="compatible",
        help="how the JSON Schemas of functions are written: compatible: as openai-harmony does (default); "
        "improved: everything that they say, also anyOf, $ref and const",
    )
    _add_vocabulary(parser)
    parser.set_defaults(run=_render)


def _add_parse(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "parse",
        help="token ids, or text with special tokens → messages as JSON",
        description="Print the messages of a completion or a rendered conversation as JSON, and what was "
        "wrong with it. Without --strict any input is accepted, and no text is lost.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "file",
        nargs="?",
        default="-",
        metavar="FILE",
        help="token ids (separated by spaces, commas or line breaks, or a JSON list) or text with special "
        "tokens; - is standard input (default)",
    )
    parser.add_argument(
        "--from",
        dest="form",
        choices=("auto", "tokens", "text"),
        default="auto",
        help="what the input is (default: auto: tokens if it has only numbers, else text)",
    )
    parser.add_argument(
        "--role",
        choices=("assistant", "user", "system", "developer", "tool", "none"),
        metavar="ROLE",
        help="the input is what follows <|start|>ROLE: assistant, user, system, developer or tool; none: it "
        "begins with <|start|> itself (default: none if it does, else assistant)",
    )
    parser.add_argument(
        "--strict", action="store_true", help="refuse malformed input, as openai-harmony does"
    )
    _add_vocabulary(parser)
    parser.set_defaults(run=_parse)


def _add_view(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "view",
        help="show a conversation with its channels, calls and token counts",
        description="Show a conversation, in colour on a terminal: headers, channels, calls, and the number "
        "of tokens of each message. Characters that would control the terminal are shown escaped.",
        allow_abbrev=False,
    )
    _add_input(parser)
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--tokens", action="store_true", help="show each message's tokens, id and text")
    how.add_argument(
        "--side-by-side",
        choices=("chatml",),
        help="show harmony and ChatML side by side, and what is lost in ChatML",
    )
    parser.add_argument(
        "--color",
        choices=("auto", "always", "never"),
        default="auto",
        help="auto: on a terminal, unless NO_COLOR is set (default)",
    )
    _add_vocabulary(parser)
    parser.set_defaults(run=_view)


def _add_convert(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "convert",
        help="ChatML, Chat Completions or Responses → harmony JSON, or any of them → ChatML",
        description="Print a conversation as harmony JSON or as ChatML. What is lost in ChatML is listed on "
        "standard error.",
        allow_abbrev=False,
    )
    _add_input(parser)
    parser.add_argument("--to", choices=("harmony", "chatml"), required=True, help="the form to print")
    parser.set_defaults(run=_convert)


def _add_input(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "file", nargs="?", default="-", metavar="FILE", help=f"{_FORMS}; - is standard input (default)"
    )
    parser.add_argument(
        "--from",
        dest="form",
        choices=("auto", "harmony", "chat", "responses", "chatml"),
        metavar="FORM",
        default="auto",
        help="what FILE is: harmony, chat, responses or chatml (default: auto: its keys decide)",
    )
    parser.add_argument(
        "--date",
        metavar="YYYY-MM-DD",
        help="the current date in the system message of a request or a ChatML transcript (default: today)",
    )


def _add_vocabulary(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--vocabulary",
        metavar="PATH",
        help="a .tiktoken file, a tokenizer.json, or tiny for the embedded model's "
        "(default: o200k_harmony, which is in the package)",
    )


# The modules of the commands import pydantic and load a vocabulary, so each is imported when its command
# runs.


def _render(options: argparse.Namespace) -> int:
    from gptoss_jax.commands.harmony import render

    return render.run(options)


def _parse(options: argparse.Namespace) -> int:
    from gptoss_jax.commands.harmony import parse

    return parse.run(options)


def _view(options: argparse.Namespace) -> int:
    from gptoss_jax.commands.harmony import view

    return view.run(options)


def _convert(options: argparse.Namespace) -> int:
    from gptoss_jax.commands.harmony import convert

    return convert.run(options)
