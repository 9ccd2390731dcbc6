"""`gptoss-jax harmony convert`: conversations between harmony, OpenAI's API bodies and ChatML."""

from __future__ import annotations

import argparse
import sys

from gptoss_jax.commands.harmony.inputs import read_conversation, source_name
from gptoss_jax.commands.harmony.losses import lost_in_chatml
from gptoss_jax.commands.harmony.terminal import is_terminal, json_text, printable, write
from harmony import Conversation, HarmonyFormatError
from harmony.chatml import chatml_from_conversation


def run(options: argparse.Namespace) -> int:
    """Runs the command."""
    conversation = read_conversation(options.file, options.form, options.date)
    if options.to == "harmony":
        write(json_text(conversation.to_dict()) + "\n")
        return 0
    text = chatml_of(conversation, source_name(options.file))
    write(printable(text) if is_terminal() else text)
    sys.stdout.flush()
    for lost in lost_in_chatml(conversation):
        print(f"gptoss-jax: lost in ChatML: {printable(lost)}", file=sys.stderr)
    return 0


def chatml_of(conversation: Conversation, source: str) -> str:
    """The conversation as ChatML; the error names the input."""
    try:
        return chatml_from_conversation(conversation)
    except HarmonyFormatError as error:
        raise HarmonyFormatError(f"{source}: {error}") from None
